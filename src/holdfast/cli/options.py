"""What every verb takes: which store, in which form to answer, in whose name to write."""

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
"""What is written comes from there, and is trusted so far. --source is for looking."""
KEY_VARIABLE = "HOLDFAST_STORE_KEY"
TENANT_VARIABLE = "HOLDFAST_TENANT"
_LONG_S = 0.5
"""A command that takes longer keeps views and commits fresh while it works."""

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
    """A store as it is typed, and whose: its text is the place alone."""

    tenant: str | None = None


def place_of(store: str, tenant: str | None) -> str:
    """Returns a store that was typed, with the tenant that was typed beside it."""
    if tenant is None:
        return store
    place = Place(store)
    place.tenant = tenant
    return place


def tenant_of(place: str) -> str | None:
    """Returns whose store is meant; None if it is nobody's in particular."""
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
    """Whose store is meant, where several tenants have one there."""
    verbose: Flag = False
    """Show the log on standard error: retries, recovery, errors that were overcome."""

    @property
    def place(self) -> str:
        """The store that is meant."""
        return place_of(self.store or DEFAULT_PLACE, self.tenant)

    @property
    def writer(self) -> str | None:
        """The actor that is meant; None, which means a random id, for a user without a name."""
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
    page: Page[Any], words: Sequence[str], options: Options, option: str = "--after"
) -> None:
    """Says that a list goes on, and how to see the rest of it."""
    if page.more and page.cursor is not None:
        verb = " ".join(shlex.quote(word) for word in [*words, option, page.cursor])
        print_aside(f"there is more: {command(verb, options.place)}")


def open_reading(options: Options, *, schemas: Sequence[type[Any]] = ()) -> Store:
    """Opens the store to look at; it must exist. Looking waits for no writer."""
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
    """Has the views written and the commits made that ./holdfast.toml asks for.

    Before the store is closed, and meanwhile if the command takes its time. What cannot be done is
    told, and does not fail the command: what it did is durable.
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
    """Opens a store to read from, read-only where it cannot be written.

    A store that was not closed is recovered by whoever opens it next, and only who may write can do
    that: a read-only handle would not see what a crash left in the journal alone. So reading
    verbs open like any other, and fall back with a warning on a disk that takes no writes, and on a
    store that has lost commits: writing to it would hide the loss, looking at it does not.
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
    """Asks on the terminal whether something is to go, and returns what was answered."""
    check_terminal("a removal", is_json=options.json)
    return confirm(f"remove {what}")


def check_terminal(what: str, *, is_json: bool = False, hint: str = "add --yes") -> None:
    """Raises UsageError if nobody is there to be asked about something."""
    if is_json or not sys.stdin.isatty():
        raise UsageError(f"{what} is asked for on a terminal, and there is none", hint=hint)


def confirm(question: str) -> bool:
    """Asks whoever is at the terminal, and returns what was answered."""
    print(f"{question}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
