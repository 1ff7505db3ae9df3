"""The options of every verb, and how it opens its store: which one, the output, the actor."""

from __future__ import annotations

import os
import pwd
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

from cyclopts import Parameter, Token

import holdfast
from holdfast import Settings
from holdfast.backends.in_use import is_in_use
from holdfast.cli.printing import print_aside, warn
from holdfast.core.arguments import check_seconds
from holdfast.core.kernel import kernel_of
from holdfast.core.page import Page
from holdfast.errors import (
    HoldfastError,
    LostCommitsError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from holdfast.git.auto_commit import Configured
from holdfast.names import without_secrets
from holdfast.opening import DEFAULT_PLACE
from holdfast.store import Store
from holdfast.views.config import FILE

STORE_VARIABLE = "HOLDFAST_STORE"
ACTOR_VARIABLE = "HOLDFAST_ACTOR"
SOURCE_VARIABLE = "HOLDFAST_SOURCE"
TRUST_VARIABLE = "HOLDFAST_TRUST"
"""Source and trust are recorded with what a command writes; --source and --trust only filter."""
KEY_VARIABLE = "HOLDFAST_STORE_KEY"
TENANT_VARIABLE = "HOLDFAST_TENANT"
_LONG_S = 0.5
"""A command that takes longer than this keeps views and git commits fresh while it works."""

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
Words = Annotated[list[str] | None, Parameter(negative=())]
"""An option that may be given again."""


def read_seconds(_: type, tokens: Sequence[Token]) -> float:
    """Returns a length of time as it is typed: a number of seconds, or text such as 1h30m."""
    text = tokens[0].value
    what = f"--{(tokens[0].keyword or '').lstrip('-')}"
    try:
        seconds = float(text)
    except ValueError:
        return check_seconds(text, what, above=-1e-9)
    return check_seconds(seconds, what, above=-1e-9)


Seconds = Annotated[float | None, Parameter(converter=read_seconds)]
"""A length of time."""


class Place(str):
    """The place of a store, with its tenant; as text it is the place alone."""

    tenant: str | None = None


def place_of(store: str, tenant: str | None) -> str:
    """Returns the place of a store that was typed, with its tenant if one was typed."""
    if tenant is None:
        return store
    place = Place(store)
    place.tenant = tenant
    return place


def tenant_of(place: str) -> str | None:
    """Returns the tenant of a place; None if it has none."""
    return place.tenant if isinstance(place, Place) else None


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """The options of every verb that works on a store."""

    store: Annotated[str | None, Parameter(env_var=STORE_VARIABLE)] = None
    """A folder, sqlite:FILE, a server's URL, or a TOML file of several. Default: ./.holdfast."""
    json: Flag = False
    """Print one JSON document; errors are JSON too."""
    actor: Annotated[str | None, Parameter(env_var=ACTOR_VARIABLE)] = None
    """Who writes: recorded in every event. Without it your login name."""
    store_key: Annotated[str | None, Parameter(env_var=KEY_VARIABLE)] = None
    """The key of an encrypted store: env:NAME, file:PATH, command:WORDS or keyring:SERVICE/NAME."""
    tenant: Annotated[str | None, Parameter(env_var=TENANT_VARIABLE)] = None
    """The tenant whose store is meant, where several have one."""
    verbose: Flag = False
    """Show the log on standard error: retries, recovery, errors that were overcome."""

    @property
    def place(self) -> str:
        """The place of the store that is meant, with the tenant."""
        return place_of(self.store or DEFAULT_PLACE, self.tenant)

    @property
    def writer(self) -> str | None:
        """The actor to write as; None, which means a random id, for a user without a login name."""
        return self.actor or login_name()


DEFAULTS = Options()


def login_name() -> str | None:
    """Returns the name of the user who runs this, by the system's own list of users."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name or None
    except KeyError:
        return None


def command(verb: str, place: str) -> str:
    """Returns a command to type next, for the store that is meant; a password is left out."""
    tenant = tenant_of(place)
    is_named = tenant is not None and tenant != os.environ.get(TENANT_VARIABLE)
    whose = f"--tenant {shlex.quote(tenant)} " if is_named and tenant is not None else ""
    if place == (os.environ.get(STORE_VARIABLE) or DEFAULT_PLACE):
        return f"holdfast {whose}{verb}"
    return f"holdfast --store {shlex.quote(without_secrets(place))} {whose}{verb}"


def print_more(
    page: Page[Any], words: Sequence[str], options: Options, limit: int, option: str = "--after"
) -> None:
    """Says that a list goes on, and how to see the next page, which is as long as this one."""
    if page.more and page.cursor is not None:
        whole = [*words, "--limit", str(limit), option, page.cursor]
        verb = " ".join(shlex.quote(word) for word in whole)
        print_aside(f"there is more: {command(verb, options.place)}")


def open_reading(options: Options, *, schemas: Sequence[type[Any]] = ()) -> Store:
    """Opens the store to look at; it must exist. Looking waits for no writer.

    A store that another process has open is opened read-only: it needs no recovery, and a reader
    needs no lock, which a stopped process could hold for days.
    """
    if options.tenant is None and is_in_use(options.place):
        return open_place(
            options.place, read_only=True, schemas=schemas, store_key=options.store_key
        )
    return open_source(options.place, schemas=schemas, store_key=options.store_key)


def open_writing(
    options: Options, *, schemas: Sequence[type[Any]] = (), unchecked: bool = False
) -> Store:
    """Opens the store to write; it must exist, so that a misspelt name creates no other store."""
    store = open_place(
        options.place,
        actor=options.writer,
        schemas=schemas,
        unchecked=unchecked,
        source=os.environ.get(SOURCE_VARIABLE) or None,
        trust=os.environ.get(TRUST_VARIABLE) or None,
        store_key=options.store_key,
    )
    keep_configured(store)
    return store


def keep_configured(store: Store) -> None:
    """Makes the store write the views and git commits that ./holdfast.toml asks for.

    It does so before it is closed, and meanwhile if the command takes long. A failure there is a
    warning and does not fail the command, because what the command did is already durable.
    """
    if not os.path.exists(FILE):
        return
    configured = Configured(store, FILE, tell=warn)
    if not configured.is_empty:
        configured.start(after_s=_LONG_S)
        kernel_of(store).on_close(configured.close)


def open_source(
    place: str, *, schemas: Sequence[type[Any]] = (), store_key: str | None = None
) -> Store:
    """Opens a store to read from; falls back to read-only if it cannot be opened to write.

    After a crash the next handle that may write recovers the store; a read-only handle would not
    see what is in the journal alone. So verbs that read open the store like any other. They fall
    back, with a warning, on a disk that takes no writes, and on a store that has lost commits:
    writing to it would hide the loss, looking at it does not.
    """
    try:
        return open_place(place, schemas=schemas, store_key=store_key)
    except (LostCommitsError, UnavailableError) as refused:
        try:
            store = open_place(place, read_only=True, schemas=schemas, store_key=store_key)
        except HoldfastError:
            raise refused from None
        warn(f"opened read-only: {refused.message}")
        for report in store.status()["reports"]:
            warn(report)
        return store


def open_place(
    place: str,
    *,
    actor: str | None = None,
    read_only: bool = False,
    schemas: Sequence[type[Any]] = (),
    unchecked: bool = False,
    source: str | None = None,
    trust: str | None = None,
    store_key: str | None = None,
) -> Store:
    """Opens a store that must exist; the error says how to create it."""
    refuse_memory(place)
    try:
        return holdfast.open(
            place,
            create=False,
            actor=actor,
            read_only=read_only,
            schemas=schemas,
            source=cast("Any", source),
            trust=trust,
            store_key=store_key,
            tenant=tenant_of(place),
            settings=Settings(unchecked=unchecked),
        )
    except NotFoundError as absent:
        if tenant_of(place) is not None and (absent.hint or "").startswith("holdfast "):
            raise  # there is no such tenant, and it says how to make one
        raise NotFoundError(
            f'there is no store at "{place}"', hint=command("init", place)
        ) from absent


def refuse_memory(place: str) -> None:
    """Raises UsageError for a store in memory, which would end with the command."""
    if place.startswith("memory:"):
        raise UsageError(
            "a store in memory ends with the command that opened it",
            hint='use a folder such as ".holdfast", or "sqlite:state.db"',
        )


def confirm_removal(what: str, options: Options) -> bool:
    """Asks on the terminal whether to remove something; returns whether the answer is yes."""
    check_terminal("a removal", is_json=options.json)
    return confirm(f"remove {what}")


def check_terminal(what: str, *, is_json: bool = False, hint: str = "add --yes") -> None:
    """Raises UsageError if there is no terminal to ask a question on."""
    if is_json or not sys.stdin.isatty():
        raise UsageError(f"{what} is asked for on a terminal, and there is none", hint=hint)


def confirm(question: str) -> bool:
    """Asks a question on the terminal; returns whether the answer is yes."""
    print(f"{question}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
