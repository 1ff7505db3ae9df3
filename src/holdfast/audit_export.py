"""Audit exports: signed files that say what a store held, each bound to the one before (0078).

An export has the head of every stream, and a digest of the links added since the export before. A
link is made from the previous link and the digest of the event, so a head stands for every event of
its stream. Links stay when data is let go of or erased, so what remains can still be verified.

An export is signed with an Ed25519 key. Without an anchor the signature only proves that the owner
of the key said so, at a time given by the clocks of store and host. An anchor is a token of a third
party over the digest of the export, such as a time stamp of RFC 3161: it proves that the export
existed when the token was made.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import DecodeError, Struct, ValidationError
from msgspec import json as json_codec

from holdfast.backends.protocol import Finding, Head
from holdfast.core.check import Content, add_up, all_heads
from holdfast.core.kernel import kernel_of
from holdfast.core.log import Log
from holdfast.errors import (
    CorruptError,
    NotFoundError,
    OtherStoreError,
    UnavailableError,
    UsageError,
    unloaded,
)
from holdfast.exchange import new_file
from holdfast.store import Store

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

_FORMAT = 1
_PAGE = 1000
_FILE_BYTES_MAX = 1 << 30
_TOKEN_BYTES_MAX = 1 << 20
_COMMAND_S = 120


class AuditBody(Struct, frozen=True):
    """The signed part. Times are microseconds since 1970, by the clocks of store and host."""

    format: int
    stores: list[str]
    number: int
    previous: str | None
    store_us: int
    host_us: int
    digest: str
    streams: int
    events: int
    heads: dict[str, tuple[int, str]]
    links: dict[str, tuple[int, int, str]]


class AuditFile(Struct, frozen=True):
    """An export as stored: the signed text, its digest, key and signature, and any anchor."""

    body: str
    digest: str
    key: str
    signature: str
    anchor: str | None = None

    def read(self) -> AuditBody:
        return json_codec.decode(self.body, type=AuditBody)


class AuditExport(Struct, frozen=True):
    """A summary of an export that was made."""

    path: str
    digest: str
    key: str
    number: int
    previous: str | None
    streams: int
    events: int
    is_anchored: bool


# --- making one ---------------------------------------------------------------------------------


def export_audit(
    store: Store,
    path: str | os.PathLike[str],
    *,
    sign: str | os.PathLike[str],
    after: str | os.PathLike[str] | None = None,
    anchor: str | None = None,
) -> AuditExport:
    """Writes a signed export to a new file.

    `sign` is a file with an Ed25519 private key (PEM), and `after` the export before this one.
    `anchor` is a command that gets the digest as its last argument; its output is stored unchanged.
    Raises ExistsError if the file exists, and CorruptError if the store lacks something that the
    export before has.
    """
    key = _private_key(Path(sign))
    place = Path(path)
    before = None if after is None else read_export(after)
    try:
        # The file comes first: where it cannot be made, no anchor is asked for.
        with new_file(place) as file:
            body = _body(store, before)
            text = json_codec.encode(body).decode()
            digest = sha256(text.encode()).hexdigest()
            public = key.public_key().public_bytes_raw().hex()
            token = None if anchor is None else b64encode(_run(anchor, digest, b"")).decode()
            made = AuditFile(text, digest, public, key.sign(text.encode()).hex(), token)
            file.write(json_codec.encode(made) + b"\n")
    except OSError as error:
        raise UnavailableError(f'"{place}" cannot be written: {error.strerror}') from error
    return AuditExport(
        str(place), digest, public, body.number, body.previous, body.streams, body.events,
        token is not None,
    )  # fmt: skip


def _body(store: Store, before: AuditFile | None) -> AuditBody:
    log = kernel_of(store).log
    stores = sorted(set(log.store_ids))
    earlier = None if before is None else before.read()
    if earlier is not None:
        _check_store(earlier, stores, "the export before")
        if lost := list(_missing(log, earlier)):
            raise CorruptError(
                f"the store lacks what the export before has: {lost[0].where}: {lost[0].problem}",
                where=lost[0].where,
                hint="holdfast check --expect, with that export, lists all of it",
            )
    heads = {name: head for name, head in all_heads(log) if head is not None}
    content: Content = add_up(iter(heads.items()))
    links: dict[str, tuple[int, int, str]] = {}
    for name, head in heads.items():
        known = 0 if earlier is None else earlier.heads.get(name, (0, ""))[0]
        if head.revision > known and not log.expiry.has_ended(name, head):
            first = max(known + 1, head.first)
            links[name] = first, head.revision, _links_digest(log, name, first, head.revision)
    return AuditBody(
        _FORMAT,
        stores,
        1 if earlier is None else earlier.number + 1,
        None if before is None else before.digest,
        log.now_us("global"),
        log.clock.now_us(),
        content.digest,
        content.streams,
        content.events,
        {name: (head.revision, head.link.hex()) for name, head in heads.items()},
        links,
    )


def _links_digest(log: Log, stream: str, first: int, last: int) -> str:
    """Returns a digest of the links of a range of events of a stream."""
    digest, after = sha256(), first - 1
    while after < last:
        page = log.stored(stream, after=after, until=last)
        if not page:
            break
        for record in page:
            digest.update(record.link)
        after = page[-1].revision
    return digest.hexdigest()


# --- verifying one ------------------------------------------------------------------------------


def read_export(path: str | os.PathLike[str]) -> AuditFile:
    """Reads an export; raises CorruptError if its digest or signature does not fit."""
    place = Path(path)
    try:
        with place.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX)
    except FileNotFoundError as error:
        raise NotFoundError(f'there is no file "{place}"') from error
    except OSError as error:
        raise UsageError(f'"{place}" cannot be read: {error.strerror}') from error
    try:
        found = json_codec.decode(data, type=AuditFile)
        body = found.read()
    except (DecodeError, ValidationError, UnicodeDecodeError) as error:
        raise CorruptError(
            f'"{place}" is not an audit export, or was changed', where=str(place)
        ) from error
    if body.format != _FORMAT:
        raise UsageError(
            f'"{place}" has format {body.format}, this holdfast knows {_FORMAT}',
            hint="upgrade holdfast",
        )
    if sha256(found.body.encode()).hexdigest() != found.digest or not _is_signed(found):
        raise CorruptError(
            f'"{place}" was changed since it was signed', where=str(place),
            hint="get it again from where it was kept",
        )  # fmt: skip
    return found


def verify_export(
    store: Store,
    path: str | os.PathLike[str],
    *,
    signed_by: str | os.PathLike[str] | None = None,
    earlier: Sequence[str | os.PathLike[str]] = (),
    anchor: str | None = None,
) -> tuple[AuditFile, list[Finding]]:
    """Returns an export and what the store lacks of it; raises if it cannot be trusted.

    `signed_by` is a file with the public key (PEM) that must have signed. Without it the key in the
    export is used, which proves nothing about who signed. `earlier` are older exports, which must
    form an unbroken chain with this one. `anchor` is a command that verifies the token: it gets the
    digest as its last argument and the token on its standard input.
    """
    found = read_export(path)
    if signed_by is not None and _public_key(Path(signed_by)).public_bytes_raw().hex() != found.key:
        raise CorruptError(
            f'"{path}" was signed by another key than that of "{signed_by}": {found.key}',
            where=str(path),
            hint="get the export, or the public key of its signer, again from where it was kept",
        )
    log = kernel_of(store).log
    _check_store(found.read(), log.store_ids, f'"{path}"')
    chain = [found]
    for one in sorted((read_export(one) for one in earlier), key=lambda one: -one.read().number):
        if chain[-1].read().previous != one.digest or one.key != found.key:
            raise CorruptError(
                f"export {chain[-1].read().number} does not follow export {one.read().number} "
                "of those given: one between is missing, or it is of another chain",
                where=str(path),
            )
        chain.append(one)
    if anchor is not None:
        if found.anchor is None:
            raise UsageError(f'"{path}" has no anchor: it proves no time but that of its maker')
        _run(anchor, found.digest, b64decode(found.anchor))
    findings = [one for export in chain for one in _missing(log, export.read())]
    return found, findings


def _missing(log: Log, body: AuditBody) -> Iterator[Finding]:
    """Yields what an export has and the store lacks or has differently."""
    names = list(body.heads)
    for start in range(0, len(names), _PAGE):
        page = names[start : start + _PAGE]
        for name, head in zip(page, log.heads(page), strict=True):
            if head is not None and log.expiry.has_ended(name, head):
                continue  # its lifetime is over, so it may be gone
            yield from _missing_of(log, body, name, head)


def _missing_of(log: Log, body: AuditBody, name: str, head: Head | None) -> Iterator[Finding]:
    revision, link = body.heads[name]
    if head is None or head.revision < revision:
        found = 0 if head is None else head.revision
        yield Finding(name, f"ends at revision {found}, and the export has {revision}")
        return
    [record] = log.stored(name, after=revision - 1, until=revision) or [None]
    if record is None or record.link.hex() != link:
        yield Finding(f"{name}@{revision}", "is another event than the export has")
        return
    if name in body.links:
        first, last, digest = body.links[name]
        if _links_digest(log, name, first, last) != digest:
            yield Finding(name, f"has other events from {first} to {last} than the export")


def _check_store(body: AuditBody, stores: list[str], what: str) -> None:
    if sorted(body.stores) != sorted(set(stores)):
        raise OtherStoreError(
            f"{what} is of another store: {', '.join(body.stores)}, found {', '.join(stores)}",
            hint="name the store that it was made of",
        )


# --- keys and commands --------------------------------------------------------------------------


def _private_key(path: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = _load(path, "load_pem_private_key", "private", password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(path, "private")
    return key


def _public_key(path: Path) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = _load(path, "load_pem_public_key", "public")
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(path, "public")
    return key


def _load(path: Path, how: str, kind: str, **options: Any) -> object:
    """Returns the key of a PEM file; errors never show its content."""
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError as error:
        raise UsageError(
            "signing needs the package cryptography, which is not installed",
            hint='pip install "holdfast[seal]"',
        ) from error
    except OSError as error:
        raise unloaded("cryptography", error) from error
    try:
        return getattr(serialization, how)(path.read_bytes(), **options)
    except FileNotFoundError as error:
        raise NotFoundError(
            f'there is no file "{path}" with a {kind} key',
            hint="openssl genpkey -algorithm ed25519 -out KEY.pem makes one",
        ) from error
    except OSError as error:
        raise UsageError(f'"{path}" cannot be read: {error.strerror}') from error
    except (ValueError, TypeError) as error:
        raise _no_key(path, kind) from error


def _no_key(path: Path, kind: str) -> UsageError:
    return UsageError(
        f'"{path}" is not an Ed25519 {kind} key in PEM without a password',
        hint="openssl genpkey -algorithm ed25519 -out KEY.pem makes one; "
        "openssl pkey -in KEY.pem -pubout -out KEY.pub its public half",
    )


def _is_signed(found: AuditFile) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(found.key))
        key.verify(bytes.fromhex(found.signature), found.body.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def _run(command: str, digest: str, token: bytes) -> bytes:
    """Runs the command of an anchor and returns its output, which is the token when making one."""
    words = [*shlex.split(command), digest]
    try:
        done = subprocess.run(words, input=token, capture_output=True, timeout=_COMMAND_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f'the anchor "{words[0]}" cannot be run: {error}') from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[-200:]
        raise UnavailableError(
            f'the anchor "{words[0]}" ended with {done.returncode}' + (f": {said}" if said else "")
        )
    if not token and not 0 < len(done.stdout) <= _TOKEN_BYTES_MAX:
        raise UnavailableError(f'the anchor "{words[0]}" printed no token of at most 1 MiB')
    return done.stdout
