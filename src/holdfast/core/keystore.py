"""Keys of subjects, kept apart from every store: to destroy a key is to erase what it sealed.

A key store has a random id and a key for each person or other subject. Only the key store knows
their names: a store has the id. The key store also keeps the ids of erased subjects, so that
"erased" and "the key is missing" can be told apart, even in a store restored from an older backup.

`FolderKeys` is a folder of small files:

    secret          32 random bytes; file names are digests of subjects' names, keyed with it
    names/<digest>  the key of a subject, found by the subject's name
    ids/<id>        a hard link to the same file, found by the subject's id
    erased/<id>     an empty file for each subject that was erased
    ledger/<n>.…    which events lost their data, so that an older backup does not bring it back

A key file is made under a temporary name and synced. Then `link` gives it its names, which succeeds
in one process only. A key is destroyed in this order: noted as erased, overwritten, unlinked. If a
process is killed in between, the next `destroy` or `make` finishes the work.
"""

from __future__ import annotations

import hmac
import os
import re
import subprocess
from base64 import b32hexencode, b64decode, b64encode
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from holdfast.backends.rescue import sync_way
from holdfast.clock import Clock, SystemClock
from holdfast.errors import CorruptError, UnavailableError, UsageError
from holdfast.names import new_id

KEY_BYTES = 32
COMMAND_TIMEOUT_S = 30.0
_FILE_BYTES_MAX = 65536


class SubjectKey(Struct, frozen=True):
    """The key of one subject; `name` is the application's name for the subject."""

    id: str
    name: str
    key: bytes

    def __repr__(self) -> str:
        return f"<SubjectKey {self.id}>"


@runtime_checkable
class KeyStore(Protocol):
    """A place for keys, which must not be the store whose data they seal, nor in its backups."""

    def make(self, name: str) -> SubjectKey:
        """Returns the key of a subject by its name; makes one, durably, if there was none."""
        ...

    def find(self, name: str) -> SubjectKey | None:
        """Returns the key of a subject by its name; None if there is none."""
        ...

    def get(self, id: str) -> SubjectKey | None:
        """Returns a key by the subject's id; None if it is not there."""
        ...

    def has(self, id: str) -> bool:
        """Returns whether the key of an id is there; each commit asks, so it should be cheap."""
        ...

    def is_erased(self, id: str) -> bool:
        """Returns whether the subject of an id was erased."""
        ...

    def destroy(self, id: str) -> None:
        """Notes that a subject is erased, and destroys its key. It may be called again.

        An id that was never made is noted too, and `is_erased` says so from then on: whose name is
        erased or admitted again is noted as a pseudonym.
        """
        ...

    def subjects(self) -> list[SubjectKey]:
        """Returns every key that is there, ordered by id."""
        ...

    def pseudonym(self, text: str) -> str:
        """Returns `p-` and a digest of text, keyed with a secret that only this key store has."""
        ...


@runtime_checkable
class KeepsLedger(Protocol):
    """The further methods of a key store that keeps the ledger of what was erased (0075)."""

    def note(self, entry: bytes) -> None:
        """Keeps an entry, a JSON document on one line, durably; a repeated one is kept once."""
        ...

    def noted(self) -> list[bytes]:
        """Returns the entries that were noted, in any order."""
        ...


PSEUDONYM = re.compile(r"p-[0-9a-v]{32}\Z")
_OPAQUE = re.compile(
    r"[0-9a-hjkmnp-tv-z]{26}\Z|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\Z|[0-9a-f]{32,64}\Z"
)


def is_pseudonym(id: str) -> bool:
    """Returns whether an id looks opaque: like a pseudonym, a UUID, a random id or a digest."""
    return PSEUDONYM.match(id) is not None or _OPAQUE.match(id) is not None


def to_pseudonym(secret: bytes, text: str) -> str:
    """Returns the pseudonym of text under a secret."""
    digest = hmac.new(secret, b"pseudonym " + text.encode(errors="surrogatepass"), sha256).digest()
    return "p-" + b32hexencode(digest[:20]).decode().lower()


class _File(Struct):
    id: str
    name: str
    key: str
    holdfast: str = "subject key"
    format: int = 1


def encode_key(key: SubjectKey) -> bytes:
    """Returns a key as the JSON document that files have and commands print."""
    return msgspec.json.encode(_File(key.id, key.name, b64encode(key.key).decode()))


def decode_key(data: bytes) -> SubjectKey | None:
    """Returns the key in a document; None if the bytes are not one, as after an overwrite."""
    try:
        found = msgspec.json.decode(data, type=_File)
        key = b64decode(found.key, validate=True)
    except (msgspec.MsgspecError, ValueError):
        return None
    return SubjectKey(found.id, found.name, key) if len(key) == KEY_BYTES else None


# --- a folder -------------------------------------------------------------------------------------


def user_folder() -> Path:
    """Returns this package's data folder of the current user."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "holdfast"


def default_folder() -> Path:
    """Returns the folder of keys that is used if no other place is given."""
    return user_folder() / "keys"


class FolderKeys:
    """Keys as files in a folder, for one host. The folder is made with the first key."""

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock | None = None) -> None:
        self.path = Path(path).absolute()
        self._clock = clock or SystemClock()
        self._secret: bytes | None = None
        self._places: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<FolderKeys {self.path}>"

    def make(self, name: str) -> SubjectKey:
        """Returns the key of a subject by its name; makes one, durably, if there was none."""
        with self._reported():
            for folder in (self.path, *map(self.path.joinpath, ("names", "ids", "erased"))):
                _make_folder(folder)
            while True:
                found = self.find(name)
                if found is None:
                    found = self._make(name)
                if found is not None:
                    return found

    def find(self, name: str) -> SubjectKey | None:
        """Returns the key of a subject by its name; None if there is none."""
        with self._reported():
            secret = self._read_secret(is_made=(self.path / "names").is_dir())
            if secret is None:
                return None
            place = self._named(name, secret)
            data = _read(place)
            if data is None:
                return None
            found = _decoded(place, data)
            if found is None or self.is_erased(found.id):
                # An erasure was killed before it ended. It cannot be taken back, so it is finished.
                if found is not None:
                    self.destroy(found.id)
                place.unlink(missing_ok=True)
                return None
            by_id = self._by_id(found.id)
            if not by_id.exists():
                with suppress(FileExistsError):
                    os.link(place, by_id)
                _sync_folder(by_id.parent)
            return found

    def get(self, id: str) -> SubjectKey | None:
        """Returns a key by the subject's id; None if it is not there."""
        with self._reported():
            place = self._by_id(id)
            data = _read(place)
            return None if data is None or self.is_erased(id) else _decoded(place, data)

    def has(self, id: str) -> bool:
        """Returns whether the key of an id is there."""
        place = self._places.get(id)
        if place is None:
            place = self._places[id] = str(self._by_id(id))
        return os.access(place, os.F_OK)  # each commit asks, and this costs half of a stat

    def is_erased(self, id: str) -> bool:
        """Returns whether the subject of an id was erased."""
        return (self.path / "erased" / _file_name(id)).exists()

    def destroy(self, id: str) -> None:
        """Notes that a subject is erased, and destroys its key."""
        with self._reported():
            for folder in (self.path, self.path / "erased"):
                _make_folder(folder)
            noted = self.path / "erased" / _file_name(id)
            # The note comes first: a process that is killed later leaves a key that counts as
            # erased already. The id's file goes last: it is what a repeated call starts from.
            if noted.exists():
                _sync_folder(noted.parent)  # whoever made it may have been killed before
            else:
                _write(noted, b"", exclusive=False)
            place = self._by_id(id)
            data = _read(place)
            if data is None:
                return
            _overwrite(place, len(data))
            found = decode_key(data)
            if found is not None:
                secret = self._read_secret(is_made=True)
                assert secret is not None, "BUG: a key without the secret of its folder"
                self._named(found.name, secret).unlink(missing_ok=True)
            else:
                self._unlink_overwritten(place)
            _sync_folder(self.path / "names")
            place.unlink(missing_ok=True)
            _sync_folder(place.parent)

    def subjects(self) -> list[SubjectKey]:
        """Returns every key that is there, ordered by id."""
        with self._reported():
            try:
                ids = sorted(one.name for one in (self.path / "ids").iterdir())
            except FileNotFoundError:
                return []
            return [found for id in ids if (found := self.get(id)) is not None]

    def pseudonym(self, text: str) -> str:
        """Returns a digest of text under a secret of this key store."""
        with self._reported():
            for folder in (self.path, self.path / "names"):
                _make_folder(folder)
            secret = self._read_secret(is_made=True)
        assert secret is not None, "BUG: no secret although it is made"
        return to_pseudonym(secret, text)

    def note(self, entry: bytes) -> None:
        """Keeps an entry of the ledger of what was erased."""
        with self._reported():
            folder = self.path / "ledger"
            for one in (self.path, folder):
                _make_folder(one)
            digest = sha256(entry).hexdigest()[:32]
            names = os.listdir(folder)
            if any(name.endswith(digest) for name in names):
                _sync_folder(folder)  # whoever made it may have been killed before
                return
            with self._temporary(entry) as temporary:
                os.replace(temporary, folder / f"{len(names):08d}.{digest}")
            _sync_folder(folder)

    def noted(self) -> list[bytes]:
        """Returns the entries that were noted, oldest first."""
        folder = self.path / "ledger"
        with self._reported():
            try:
                names = sorted(os.listdir(folder))
            except FileNotFoundError:
                return []
            return [(folder / name).read_bytes() for name in names]

    def _make(self, name: str) -> SubjectKey | None:
        """Makes a key and returns it; None if another process was faster."""
        secret = self._read_secret(is_made=True)
        assert secret is not None, "BUG: no secret although it is made"
        key = SubjectKey(new_id(self._clock), name, self._clock.random_bytes(KEY_BYTES))
        place = self._named(name, secret)
        with self._temporary(encode_key(key)) as temporary:
            try:
                os.link(temporary, place)
            except FileExistsError:
                return None
            # Another process may find the key by its name now, and makes this link then.
            with suppress(FileExistsError):
                os.link(temporary, self._by_id(key.id))
            _sync_folder(place.parent)
            _sync_folder(self.path / "ids")
        return key

    def _read_secret(self, *, is_made: bool) -> bytes | None:
        if self._secret is None and is_made:
            place = self.path / "secret"
            if _read(place) is None:
                # Before the folder has its secret, because nothing does it later. A power loss must
                # not take the folder: what its keys sealed would be lost with it.
                sync_way(str(self.path))
                random = self._clock.random_bytes(KEY_BYTES)
                with self._temporary(random) as temporary, suppress(FileExistsError):
                    os.link(temporary, place)
                _sync_folder(self.path)
            self._secret = _read(place)
        return self._secret

    def _named(self, name: str, secret: bytes) -> Path:
        digest = hmac.new(secret, name.encode(errors="surrogatepass"), sha256)
        return self.path / "names" / digest.hexdigest()

    def _by_id(self, id: str) -> Path:
        return self.path / "ids" / _file_name(id)

    def _unlink_overwritten(self, by_id: Path) -> None:
        """Unlinks files of names that an erasure overwrote before it was killed.

        The bytes do not tell the name any more, so all files are looked at.
        """
        for place in (self.path / "names").iterdir():
            with suppress(FileNotFoundError):  # another process may finish the same erasure
                data = place.read_bytes()
                is_overwritten = bool(data) and not data.strip(b"\0")
                # An empty one is damage, and another subject's unless it is this very file.
                if is_overwritten or place.samefile(by_id):
                    place.unlink()

    @contextmanager
    def _temporary(self, data: bytes) -> Generator[Path]:
        path = self.path / f"new.{self._clock.random_bytes(8).hex()}"
        _write(path, data, exclusive=True)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def _reported(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise UnavailableError(
                f'the keys in "{self.path}" are out of reach: {error.strerror}',
                hint="keys=… or HOLDFAST_KEYS say where they are",
            ) from error


def _decoded(place: Path, data: bytes) -> SubjectKey | None:
    """Returns the key in a file; None if an erasure overwrote it; else raises CorruptError.

    Only a file of zeros was overwritten on purpose. A key that the disk damaged must not be taken
    for an erased one: its file would be removed and a new key made, and nobody would know why the
    sealed data cannot be read.
    """
    found = decode_key(data)
    if found is None and (not data or data.strip(b"\0")):
        raise CorruptError(
            f'the key in "{place}" is damaged: what it sealed cannot be read',
            where=str(place),
            hint="bring the file back from a backup of the keys",
        )
    return found


def _file_name(id: str) -> str:
    """Returns a safe file name for an id, which may come from a store that is not trusted."""
    return id if id.isascii() and id.isalnum() else f"x{id.encode().hex()}"


def _make_folder(path: Path) -> None:
    """Makes a folder that only its owner may enter, and syncs the folder that contains it."""
    if not path.is_dir():
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sync_folder(path.parent)


def _read(path: Path) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read(_FILE_BYTES_MAX)
    except FileNotFoundError:
        return None


def _write(path: Path, data: bytes, *, exclusive: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if exclusive else 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    _sync_folder(path.parent)


def _overwrite(path: Path, size: int) -> None:
    """Writes zeros over a key, in place: a file system that keeps no copies has lost it then."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, bytes(size))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- a command ------------------------------------------------------------------------------------


class CommandKeys:
    """Keys behind a command, such as that of a vault: it is called with a verb and a word.

    `make NAME`, `find NAME` and `get ID` print a key as JSON (`{"id":…,"name":…,"key":base64}`), or
    nothing. `erased ID` prints `true` or `false`, `destroy ID` nothing, `list` an array of keys,
    and `pseudonym TEXT` a keyed digest of text: `p-` and 32 base32hex digits in lower case.
    `destroy` and `erased` are also asked about ids that were never made, such as `p-…`: they say
    which names were erased. `destroy` of an unknown id notes it, and must not fail; `erased` prints
    `false` until then.

    `note` keeps the JSON document that it reads from its input, and `noted` prints an array of all
    of them. If `note` fails, the receipt of an erasure says that older backups are not covered. If
    `noted` fails, so does every restore, copy and import: else what was erased would come back. A
    program that keeps no ledger prints `[]`.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        if not self._command:
            raise UsageError("a command that keeps keys has at least one word, found none")

    def __repr__(self) -> str:
        return f"<CommandKeys {self._command[0]}>"

    def make(self, name: str) -> SubjectKey:
        """Returns the key of a subject by its name; makes one, durably, if there was none."""
        found = self._key("make", name)
        if found is None:
            raise UnavailableError(f'"{self._command[0]} make" printed no key')
        return found

    def find(self, name: str) -> SubjectKey | None:
        """Returns the key of a subject by its name; None if there is none."""
        return self._key("find", name)

    def get(self, id: str) -> SubjectKey | None:
        """Returns a key by the subject's id; None if it is not there."""
        return self._key("get", id)

    def has(self, id: str) -> bool:
        """Returns whether the key of an id is there."""
        return self._key("get", id) is not None

    def is_erased(self, id: str) -> bool:
        """Returns whether the subject of an id was erased."""
        return self._run("erased", id).strip() == b"true"

    def destroy(self, id: str) -> None:
        """Notes that a subject is erased, and destroys its key."""
        self._run("destroy", id)

    def subjects(self) -> list[SubjectKey]:
        """Returns every key that is there, ordered by id."""
        try:
            listed = msgspec.json.decode(self._run("list"), type=list[msgspec.Raw])
        except msgspec.MsgspecError as error:
            raise UnavailableError(f'"{self._command[0]} list" printed no array of keys') from error
        return [found for one in listed if (found := decode_key(bytes(one))) is not None]

    def pseudonym(self, text: str) -> str:
        """Returns a digest of text under a secret of this key store."""
        printed = self._run("pseudonym", text).decode(errors="replace").strip()
        if PSEUDONYM.match(printed) is None:
            raise UnavailableError(f'"{self._command[0]} pseudonym" printed no pseudonym')
        return printed

    def note(self, entry: bytes) -> None:
        """Keeps an entry of the ledger of what was erased."""
        self._run("note", given=entry)

    def noted(self) -> list[bytes]:
        """Returns the entries that were noted, oldest first.

        Raises UnavailableError if the command does not say. An answer that fails must never be read
        as an empty ledger: a restore would bring back what was erased, and nobody would be told.
        """
        try:
            printed = self._run("noted")
            return [bytes(one) for one in msgspec.json.decode(printed, type=list[msgspec.Raw])]
        except msgspec.MsgspecError:
            problem = f'"{self._command[0]} noted" printed no array of entries'
        except UnavailableError as error:
            problem = error.message
        raise UnavailableError(
            f"what was erased is not known: {problem}; nothing was taken over",
            hint="try again when the keys are in reach; a program that keeps no ledger prints []",
        )

    def _key(self, *words: str) -> SubjectKey | None:
        printed = self._run(*words).strip()
        if not printed:
            return None
        found = decode_key(printed)
        if found is None:
            raise UnavailableError(
                f'"{self._command[0]} {words[0]}" printed something else than a key'
            )
        return found

    def _run(self, *words: str, given: bytes = b"") -> bytes:
        try:
            done = subprocess.run(
                [*self._command, *words],
                input=given,
                capture_output=True,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnavailableError(
                f'the keys behind "{self._command[0]}" are out of reach: {error}'
            ) from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()[:200]
            raise UnavailableError(
                f'"{self._command[0]} {words[0]}" failed with {done.returncode}: {said}'
            )
        return done.stdout
