"""Messages as they are stored and read. Each is an event of its conversation's own stream.

    message.added        {"id", "role", "content"?, "parts"?, "tool_calls"?, "tool_call_id"?,
                          "usage"?, "metadata"?, "links"?, "files"?, "turn"?, "said_at"?,
                          "foreign_id"?, "foreign"?}      what is absent is left out
    message.edited       {"at", "set": {field: value}}    a null takes the field away
    message.deleted      {"at"}
    message.popped       {"at"}                           deleted as the newest one
    messages.cleared     {"to": 0}                        none before this event is there
    messages.rewound     {"to"}                           none after that revision is
    messages.merged      {"to", "from", "until"}          the same; what was merged follows
    message.moved        {"foreign_id", "key"?}           its key is that id's; a merge follows
    messages.compacted   {"through", "summary": {message}, "tokens_before", "tokens_after"}
    messages.summarised  {"through", "text", "tokens_before", "tokens_after"}
    turn.begun           {"id", "worker"}
    turn.ended           {"id", "outcome", "error"?}      outcome: completed or failed

`at`, `to`, `through` and `until` are revisions. In one stream, and in everything that was forked
from it, a revision names one event for ever, so a reader knows without any lookup which event is
changed. A message's `id` is for people and other programs, and stays the same when it is merged. A
foreign item is in `foreign`, the last field, exactly as it was given; its role and content are not
stored a second time. A field of 64 KiB or more is a blob, and so is each such part of `parts`. A
subject's message in a scope that is not the subject's has everything but its id, role and turn in
one sealed value, `sealed`; an edit of it has a sealed value as its `set`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, TypedDict, cast

from msgspec import Raw, Struct

from holdfast.backends.protocol import GONE, Record
from holdfast.clock import Clock
from holdfast.core import codec
from holdfast.core.blobs import BLOB_BYTES_MIN
from holdfast.core.event import from_datetime, to_datetime
from holdfast.core.log import WRITER
from holdfast.core.meta import source_and_trust
from holdfast.errors import CorruptError, LetGoError, UsageError, show_value
from holdfast.names import NAME_BYTES_MAX, check_name, new_id

ADDED = "message.added"
EDITED = "message.edited"
DELETED = "message.deleted"
POPPED = "message.popped"
CLEARED = "messages.cleared"
REWOUND = "messages.rewound"
MERGED = "messages.merged"
MOVED = "message.moved"
COMPACTED = "messages.compacted"
SUMMARISED = "messages.summarised"

EDITABLE = ("role", "content", "parts", "tool_calls", "tool_call_id", "usage", "metadata",
            "links", "files", "foreign")  # fmt: skip
_LISTS = ("parts", "tool_calls", "links", "files")
_KEY_PREFIX = "message:"

Spill = Callable[[bytes], bytes]
"""Returns an encoded value as it is, or the reference to a blob that it was written to."""
ReadBlob = Callable[[str, int], bytes]


class FileChange(Struct, frozen=True):
    """A changed file, with its sha256 in hex before and after; None where there was no file."""

    path: str
    before: str | None = None
    after: str | None = None

    @classmethod
    def of(cls, path: str, before: bytes | None, after: bytes | None) -> FileChange:
        """Makes the change from the file's content before and after."""
        return cls(path, *(None if data is None else sha256(data).hexdigest()
                           for data in (before, after)))  # fmt: skip


class Message:
    """One message; its bytes are decoded when a field is first read."""

    __slots__ = ("_blobs", "_edits", "_fields", "_record")

    def __init__(self, record: Record, blobs: ReadBlob, edits: Iterable[bytes] = ()) -> None:
        self._record = record
        self._blobs = blobs
        self._edits = tuple(edits)
        self._fields: dict[str, Any] | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """Its fields, with the argument names of `add` and edits applied; do not change them."""
        fields = self._fields
        if fields is None:
            fields = self._fields = self._decode()
        return fields

    @property
    def stored_fields(self) -> Any:
        """Its fields, or the sealed bytes of a subject's message: safe to make a digest of."""
        return self.fields if self.subject is None else [self._record.payload, *self._edits]

    def _place(self, record: Record) -> None:
        """Takes over its event, once the joint commit that added it is durable."""
        self._record, self._fields = record, None

    def _decode(self) -> dict[str, Any]:
        data = self._value(self._record.payload)
        if self._record.type == COMPACTED:
            data = data["summary"]
        if "sealed" in data:
            sealed = data.pop("sealed")
            if not isinstance(sealed, dict):  # erased, or read where sealed values stay closed
                return {**data, "content": sealed}
            data |= cast("dict[str, Any]", sealed)
        for edit in self._edits:
            for name, value in self._value(edit)["set"].items():
                if value is None:
                    data.pop(name, None)
                else:
                    data[name] = value
        return data

    def _value(self, payload: bytes) -> dict[str, Any]:
        if payload == GONE:
            raise LetGoError(self._record.stream, self.revision)
        data = codec.decode(payload, blob=self._value_of_blob)
        if not isinstance(data, dict):
            raise CorruptError(
                f'event {self.revision} of "{self._record.stream}" is not an event of a message',
                stream=self._record.stream,
                revision=self.revision,
            )
        return cast("dict[str, Any]", data)

    @property
    def subject(self) -> str | None:
        """In a shared scope, the random id of the subject whose message it is; else None."""
        if codec.SEALED_VALUE not in self._record.payload:
            return None
        return next(iter(codec.subjects_in(self._record.payload)), None)

    def _value_of_blob(self, name: str, size: int) -> Any:
        return codec.decode(self._blobs(name, size), blob=self._value_of_blob)

    @property
    def id(self) -> str:
        """Its id, unique in its conversation."""
        return self.fields["id"]

    @property
    def role(self) -> str:
        """Who speaks: user, assistant, system, tool, or any other name.

        Empty for a foreign item without a speaker, such as a tool call or a reasoning item.
        """
        return self.fields.get("role") or str(_foreign_field(self.fields, "role") or "")

    @property
    def content(self) -> str | None:
        """The text, or that of the foreign item if no other was given; None if it is not text."""
        content = self.fields.get("content")
        if content is None:
            content = _foreign_field(self.fields, "content")
        return content if isinstance(content, str) else None

    @property
    def text(self) -> str:
        """The content, or the texts of all parts in lines; empty if there is no text."""
        content = self.content
        if content is not None:
            return content
        foreign = _foreign_field(self.fields, "content")
        parts = self.parts or (cast("list[Any]", foreign) if isinstance(foreign, list) else [])
        texts = [cast("dict[str, Any]", part).get("text") for part in parts if type(part) is dict]
        return "\n".join(text for text in texts if isinstance(text, str))

    @property
    def parts(self) -> list[Any]:
        """Its parts, if it is more than one text: images, files and so on."""
        return self.fields.get("parts", [])

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The tool calls that it asks for."""
        return self.fields.get("tool_calls", [])

    @property
    def tool_call_id(self) -> str | None:
        """The id of the tool call that it is the result of, or None."""
        return self.fields.get("tool_call_id")

    @property
    def usage(self) -> dict[str, Any]:
        """Its cost, such as numbers of tokens, as it was given."""
        return self.fields.get("usage", {})

    @property
    def metadata(self) -> dict[str, Any]:
        """Further data that was given with it."""
        return self.fields.get("metadata", {})

    @property
    def links(self) -> tuple[str, ...]:
        """Related conversations, decisions and so on: `conversation/b`, `decision:17`."""
        return tuple(self.fields.get("links", ()))

    @property
    def files(self) -> tuple[FileChange, ...]:
        """The file changes that it caused."""
        return tuple(FileChange(**change) for change in self.fields.get("files", ()))

    @property
    def foreign(self) -> Any:
        """The foreign item, exactly as it was given; None if there is none."""
        return self.fields.get("foreign")

    @property
    def foreign_id(self) -> str | None:
        """Its id in the program that it comes from, or None."""
        return self.fields.get("foreign_id")

    @property
    def turn(self) -> str | None:
        """The id of the turn that it belongs to, or None."""
        return self.fields.get("turn")

    @property
    def revision(self) -> int:
        """The revision of the event that added it, which never changes."""
        return self._record.revision

    @property
    def time(self) -> datetime:
        """When it was said; a merged message keeps the time of the conversation it came from."""
        return to_datetime(said_us(self))

    @property
    def actor(self) -> str:
        """Who wrote it."""
        return self._record.actor

    @property
    def source(self) -> str | None:
        """Where it came from, as its writer said; None if nobody did."""
        return source_and_trust(self._record.meta)[0]

    @property
    def trust(self) -> str | None:
        """How far its source is trusted, as its writer said; None if nobody did."""
        return source_and_trust(self._record.meta)[1]

    @property
    def is_edited(self) -> bool:
        """Whether it was edited since it was added."""
        return bool(self._edits)

    @property
    def is_summary(self) -> bool:
        """Whether it is the summary of messages that were compacted."""
        return self._record.type == COMPACTED

    @property
    def item(self) -> Any:
        """The foreign item, or else the request form: role, content, tool calls and results."""
        if "foreign" in self.fields:
            return self.fields["foreign"]
        return self.to_request()

    def to_request(self) -> dict[str, Any]:
        """Returns it in the form that most model APIs take: role, content, calls and results."""
        fields = self.fields
        content = fields.get("parts", self.content)
        request: dict[str, Any] = {"role": self.role, "content": content}
        for name in ("tool_calls", "tool_call_id"):
            if name in fields:
                request[name] = fields[name]
        return request

    def to_dict(self) -> dict[str, Any]:
        """Returns the whole message as a plain dict."""
        return {
            **self.fields,
            "role": self.role,
            "content": self.content,
            "revision": self.revision,
            "time": self.time.isoformat(),
            "actor": self.actor,
            "edited": self.is_edited,
            "summary": self.is_summary,
        }

    def __repr__(self) -> str:
        return f"<Message {self._record.stream}@{self.revision} {self.role}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        mine = (self._record.stream, self.revision, self._edits)
        return mine == (other._record.stream, other.revision, other._edits)

    def __hash__(self) -> int:
        return hash((self._record.stream, self.revision))


def said_us(message: Message) -> int:
    """Returns when a message was said, in microseconds."""
    return message.fields.get("said_at", message._record.time)


def _foreign_field(fields: dict[str, Any], name: str) -> Any:
    foreign = fields.get("foreign")
    return cast("dict[str, Any]", foreign).get(name) if isinstance(foreign, dict) else None


# --- checking fields -----------------------------------------------------------------------------


class MessageFields(TypedDict, total=False):
    """The fields that a message may have beside its role and content."""

    parts: list[Any] | None
    tool_calls: list[dict[str, Any]] | None
    tool_call_id: str | None
    usage: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None
    links: Iterable[object] | None
    files: Iterable[FileChange] | None
    foreign: Any
    foreign_id: str | None
    said_at: datetime | None


def check_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the fields of a message, and returns those that are present; a foreign item is last.

    `content` may be a list, as in several model APIs; it is then stored as `parts`.
    """
    fields: dict[str, Any] = {}
    for name, value in given.items():
        check = _CHECKS.get(name)
        if check is None and name != "foreign":
            raise UsageError(
                f"a message has no field {show_value(name)}: expected {', '.join(_CHECKS)} "
                "or foreign"
            )
        if check is not None and value is not None:
            fields[name] = check(value, name)
    if type(fields.get("content")) is list:
        if "parts" in fields:
            raise UsageError("a message has its parts in content or in parts, found both")
        fields["parts"] = fields.pop("content")
    if given.get("foreign") is not None:
        fields["foreign"] = given["foreign"]  # it may have a role of its own, or none
    elif "role" not in fields:
        raise UsageError("a message needs a role, such as user or assistant")
    return fields


def _check_name(value: object, name: str) -> str:
    return check_name(value, name)


def _check_id(value: object, name: str) -> str:
    """Accepts any text that is not empty, because ids come from other programs."""
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name} is text, found {show_value(value)}")
    return str.__str__(value)


def _check_content(value: object, name: str) -> object:
    if isinstance(value, str):
        return value
    return _check_list(value, name, "text, or a list of parts")


def _check_list(value: object, name: str, expected: str = "a list") -> list[Any]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{name} is {expected}, found {show_value(value)}")
    return list(cast("list[Any]", value))


def _check_calls(value: object, name: str) -> list[Any]:
    calls = _check_list(value, name)
    for call in calls:
        id: object = cast("dict[str, Any]", call).get("id") if isinstance(call, dict) else None
        if not isinstance(id, str):
            raise UsageError(
                f"a tool call is a dict with an id, found {show_value(cast('object', call))}",
                hint="a result names the call that it belongs to by that id: tool_call_id",
            )
    return calls


def _check_mapping(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} is a mapping, found {show_value(value)}")
    return dict(cast("Mapping[str, Any]", value))


def _check_links(value: object, name: str) -> list[str]:
    links = [value] if isinstance(value, str) else _check_list(value, name, "a list of names")
    # A scope has a `name`; anything else is linked by its text.
    return [check_name(getattr(link, "name", None) or str(link), "link") for link in links]


def _check_files(value: object, name: str) -> list[dict[str, Any]]:
    changes = [value] if isinstance(value, FileChange) else _check_list(value, name)
    found: list[dict[str, Any]] = []
    for change in changes:
        if not isinstance(change, FileChange) or not isinstance(change.path, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"files are FileChange(path, before, after), found {show_value(change)}"
            )
        for digest in (change.before, change.after):
            if digest is not None and not _is_digest(digest):
                raise UsageError(
                    f"a digest is 64 hex digits of sha256 or None, found {show_value(digest)}",
                    hint="FileChange.of(path, before, after) makes it from what the file holds",
                )
        found.append({"path": change.path, "before": change.before, "after": change.after})
    return found


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and not value.strip("0123456789abcdef")


def _check_time(value: object, name: str) -> int:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise UsageError(f"{name} is a datetime with a time zone, found {show_value(value)}")
    return from_datetime(value)


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "id": _check_id,
    "role": _check_name,
    "content": _check_content,
    "parts": _check_list,
    "tool_calls": _check_calls,
    "tool_call_id": _check_id,
    "usage": _check_mapping,
    "metadata": _check_mapping,
    "links": _check_links,
    "files": _check_files,
    "turn": _check_id,
    "said_at": _check_time,
    "foreign_id": _check_id,
}


def foreign_id_key(foreign_id: str, again: int = 0) -> str:
    """Returns the idempotency key of a foreign item.

    `again` is the revision that added the item before, if it was deleted since. An item that was
    popped may be added again, and a retry of that needs a key of its own to be found.
    """
    key = f"{_KEY_PREFIX}{foreign_id}"
    if not key.isprintable() or len(key.encode(errors="replace")) > NAME_BYTES_MAX - 32:
        digest = sha256(foreign_id.encode(errors="surrogatepass")).hexdigest()
        key = f"{_KEY_PREFIX}sha256:{digest}"
    return f"{key}@{again}" if again else key


def make_id(clock: Clock, fields: dict[str, Any], number: int = 0) -> str:
    """Returns an id for a message that was given none.

    In a run the id is derived from its place there, so that a replay writes the same bytes.
    """
    writer = WRITER.get()
    if writer is None:
        return new_id(clock)
    place = f"{writer.path} {number} ".encode(errors="surrogatepass")
    return sha256(place + codec.encode(fields)).hexdigest()[:26]


# --- encoding ------------------------------------------------------------------------------------

CLEAR = ("id", "role", "turn")
"""The fields of a subject's message that are not sealed: its place, and none of its content."""


def seal_fields(fields: dict[str, Any], seal: Callable[[bytes], bytes]) -> dict[str, Any]:
    """Returns the fields of a message with its content as one sealed value."""
    said = {name: value for name, value in fields.items() if name not in CLEAR}
    clear = {name: fields[name] for name in CLEAR if name in fields}
    return {**clear, "sealed": codec.SealedLeaf(seal(codec.encode(said)))}


def encode(fields: dict[str, Any], spill: Spill) -> bytes:
    """Returns the payload of a message; large fields, and large parts, become blobs."""
    payload = codec.encode(fields)
    if len(payload) < BLOB_BYTES_MIN:
        return payload
    lean: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _LISTS:
            raws = [Raw(spill(codec.encode(item, path=(name,)))) for item in value]
            raw = codec.encode_plain(raws)
        else:
            raw = codec.encode(value, path=(name,))
        lean[name] = Raw(spill(raw))
    return codec.encode_plain(lean)
