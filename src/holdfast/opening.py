"""Opening a store: the caller's arguments become a backend, a log, a kernel and a `Store`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from inspect import signature
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from holdfast import manifests as manifests  # what the layers own, before a store is opened
from holdfast.backends.protocol import DURABILITIES, Backend, Durability
from holdfast.backends.registry import check_backend, looked_at, open_backend
from holdfast.backends.tenancy import TenantRecord, check_tenant
from holdfast.clock import Clock, SystemClock
from holdfast.core import reserve
from holdfast.core.arguments import check_flag, check_seconds
from holdfast.core.encryption import Encryption, check_plain
from holdfast.core.kernel import Kernel, kernel_of
from holdfast.core.key_place import to_keys
from holdfast.core.key_tables import TableKeys
from holdfast.core.keystore import FolderKeys, KeyStore, default_folder
from holdfast.core.layers import kept_with, reserved_prefixes
from holdfast.core.limits import DiskWatch, Quota, quotas_of
from holdfast.core.listing import note_level
from holdfast.core.log import Log
from holdfast.core.provenance import Said, Source, check_provenance
from holdfast.core.redaction import check_rules
from holdfast.core.sealing import Sealing
from holdfast.core.store_key import StoreKey, to_store_key
from holdfast.core.typed import Typed
from holdfast.errors import UsageError, show_value
from holdfast.names import SCHEME, Levels, without_secrets, worker_id
from holdfast.query.paths import check_indexes, read_indexes
from holdfast.query.questions import Questions
from holdfast.query.vectors import check_embedder
from holdfast.record.context import FoundDecision, RecordContext
from holdfast.record.decisions import term_of_level
from holdfast.record.retention_policies import Care, LevelRule, check_policies, read_care
from holdfast.record.secret_rules import SecretRules
from holdfast.record.trust import read_config
from holdfast.renamed import option_hint
from holdfast.settings import DEFAULTS, Settings
from holdfast.store import Store


class _DefaultPlace(str):
    """The default path of a store, told apart from the same path given by a caller."""


DEFAULT_PLACE = _DefaultPlace(".holdfast")


class _StateFiles(str):
    """The path of a files store whose folder shows every state as a file (0051)."""

    directory: str
    suffix: str


P = ParamSpec("P")
R = TypeVar("R")


def _with_known_options(open_it: Callable[P, R]) -> Callable[P, R]:
    """Refuses unknown options by name, with a hint where to find those that were moved."""
    known = signature(open_it).parameters

    @wraps(open_it)
    def checked(*given: P.args, **options: P.kwargs) -> R:
        for name in options.keys() - known.keys():
            raise UsageError(f'holdfast.open has no option "{name}"', hint=option_hint(name))
        return open_it(*given, **options)

    return checked


@_with_known_options
def open_store(
    url: object = DEFAULT_PLACE,
    *,
    durability: Durability = "full",
    actor: str | None = None,
    source: Source | None = None,
    trust: str | None = None,
    create: bool = True,
    read_only: bool = False,
    schemas: Sequence[type[Any]] = (),
    keys: str | os.PathLike[str] | KeyStore | None = None,
    store_key: str | bytes | StoreKey | None = None,
    tenant: str | None = None,
    settings: Settings = DEFAULTS,
) -> Store:
    """Opens a store, and creates it if it is not there.

    `url` is one of: the path of a folder for plain files (the default is `./.holdfast`);
    "sqlite:state.db", "postgresql://…", "redis://…" or "memory:"; a mapping from level to URL, with
    "*" for the other levels, or a TOML file that holds one; "yaml:FOLDER", plain files that also
    show every state as a YAML file; or an open backend, which the store closes in the end.

    `durability` is what an acknowledged commit survives: "full", "process" or "none". With
    `create=False` a store that is not there raises NotFoundError. `read_only` refuses every write.

    `actor` is stored in every event; the default is this worker's id. `source` and `trust` say
    where what is written came from, and how far that is trusted. `schemas` are classes made with
    `@holdfast.schema`; a scope that has another schema is not written to. `keys` is where the keys
    of subjects are, such as a folder or a database. `store_key` encrypts the store at rest.
    `tenant` opens the store of that tenant. `settings` holds everything else (`holdfast.Settings`).
    """
    backend = None if _names_a_place(url) else url
    if backend is not None and not hasattr(backend, "commit"):
        raise UsageError(
            "a store is opened by a URL, a path, a mapping of these or an open backend, "
            f"found {show_value(backend)}",
            hint='holdfast.open(".holdfast"), holdfast.open("sqlite:state.db")',
        )
    _check_options(durability, create, read_only, settings.clock)
    said, clock = check_provenance(source, actor, trust), settings.clock or SystemClock()
    worker, named = worker_id(clock, actor), _read_place(url)
    url = named.url
    encryption = _encryption(store_key or named.key, url, clock, worker, read_only=read_only)
    care = _with_care(named.care, settings.retention, settings.quotas, settings.disk_watch)
    known = _known_levels(named.levels, settings.levels)
    settings = _checked(settings, care, named.settings)
    typed = _check_schemas(schemas, settings.unchecked)
    options = {"durability": durability, "create": create, "read_only": read_only}
    options |= settings.options
    entry = _Entry(_which_tenant(tenant, named.tenant, backend, url))
    opened, shown = _open_or_take(backend, url, known, clock, encryption, entry, options)
    said = said._replace(actor=said.actor or worker)
    log = _make_log(opened, clock, said, typed, entry.with_quotas(care), entry.keys(keys), shown)
    log.use_place(backend or _place_of(shown) or opened)
    kernel = Kernel(
        log,
        url=shown,
        worker=worker,
        levels=known,
        heartbeat_s=settings.heartbeat_s,
        read_only=read_only,
        encryption=encryption,
        settings=settings,
    )
    return _with_files(store_of(kernel), url, care.levels)


def _checked(settings: Settings, care: Care, of_file: Mapping[str, Any]) -> Settings:
    """Returns the checked settings that a store is made from, or raises UsageError.

    Settings of the file that names the store apply where the caller has left the default.
    """
    said = {
        name: value
        for name, value in of_file.items()
        if getattr(settings, name) == getattr(DEFAULTS, name)
    }
    settings = replace(settings, **said)
    return replace(
        settings,
        secrets=check_rules(settings.secrets),
        indexes=check_indexes(settings.indexes),
        embedder=check_embedder(settings.embedder),
        retention=care.retention,
        clear_ids=check_flag(settings.clear_ids, "clear_ids"),
        heartbeat_s=check_seconds(settings.heartbeat_s, "heartbeat_s"),
    )


def store_of(kernel: Kernel) -> Store:
    """Returns a store on a kernel, and puts its levels, lifetimes and secret rules in force."""
    log, levels = kernel.log, kernel.levels
    for level in levels.registered():
        note_level(log, level)
    log.expiry.of_level = partial(term_of_level, log, levels.reserved)
    context = kernel.part(RecordContext)
    context.find_decisions = partial(_find_decisions, kernel)
    kernel.part(SecretRules).use()
    return Store(kernel)


def _find_decisions(
    kernel: Kernel, stream: str | None, passed: tuple[str | int, ...] | None, events: int
) -> list[FoundDecision] | None:
    return kernel.part(Questions).find_decisions(stream, passed, events)


def _with_files(store: Store, url: object, rules: Mapping[str, LevelRule]) -> Store:
    """Starts the files that the URL or a configuration keeps beside the store, and returns it.

    The rules for levels of the file that names the store are stored first. If anything fails, the
    store is closed.
    """
    kernel = kernel_of(store)
    config = kernel.settings.config
    try:
        if not kernel.read_only:
            _store_rules(store, rules)
            reserve.keep_all(kernel.log.limits)
        if isinstance(url, _StateFiles) and not kernel.read_only:
            _keep_states(store, url)
        if config is not None:
            _keep_configured(store, config)
    except BaseException:
        store.close()
        raise
    return store


def _keep_states(store: Store, place: _StateFiles) -> None:
    """Shows every state as a file, from now on until the store is closed."""
    from holdfast.views.config import state_views
    from holdfast.views.directory import Views
    from holdfast.views.kept import KeptViews

    files = Views(store, place.directory, [], more=partial(state_views, store, place.suffix))
    kernel_of(store).part(KeptViews).keep(files)
    files.sync()
    files.keep_fresh()


def _keep_configured(store: Store, config: str | os.PathLike[str]) -> None:
    """Keeps the views and commits of a holdfast.toml until the store is closed."""
    from holdfast.git.auto_commit import Configured
    from holdfast.views.kept import KeptViews

    read_config(config)  # raises if the file is missing: here that is a mistake
    kernel = kernel_of(store)
    configured = Configured(store, config)
    kernel.reports.append(configured.reports)
    if configured.views is not None:
        kernel.part(KeptViews).show(configured.views)
    if not kernel.read_only:
        kernel.on_close(configured.close)
        configured.start()


def _store_rules(store: Store, rules: Mapping[str, LevelRule]) -> None:
    """Stores the rules for levels of a file; rules that are stored already write nothing."""
    for level, rule in rules.items():
        if rule.expires is not None:
            store.retention.expire(level, ttl_s=rule.expires, slides=rule.slides)
        if rule.on_close is not None:
            store.retention.on_close(level, keep=rule.on_close == "keep")


def _make_log(
    backend: Backend,
    clock: Clock,
    said: Said,
    typed: Typed,
    care: Care,
    keys: object,
    shown: str,
) -> Log:
    sealing = _sealing(keys, shown, backend)
    log = Log(backend, clock=clock, actor=said.actor or "", sealing=sealing)
    log.said = said if said.meta is not None else None
    log.use_schemas(typed)
    log.use_limits(care.quotas, care.disk)
    return log


def _sealing(keys: object, shown: str, backend: Backend) -> Sealing:
    return Sealing(
        partial(_keys_apart, keys, shown, backend), closes=not isinstance(keys, KeyStore)
    )


def _keys_apart(given: object, shown: str, backend: Backend) -> KeyStore:
    """Returns where keys are, or raises UsageError if that is inside the store.

    A key inside the store would be part of every copy and backup of it. Destroying the key would
    then leave those readable, and an erasure would achieve nothing.
    """
    keys = to_keys(given)
    if isinstance(keys, TableKeys):
        try:
            for part in _described(backend):
                keys.check_apart(part)
            _check_outside(keys.path, _paths(backend))
        except BaseException:
            if keys is not given:
                keys.close()
            raise
    elif isinstance(keys, FolderKeys):
        place = _place_of(shown)
        if hasattr(backend, "routing"):
            _check_outside(keys.path, _paths(backend))
        elif place is not None and "://" not in place:
            _check_outside(keys.path, [place.partition(":")[2]])
    return keys


def _described(backend: Backend) -> list[dict[str, Any]]:
    """Returns the description of a backend, or of each part of a mixed one."""
    facts = backend.inspect.describe()
    return list(facts["levels"].values()) if "levels" in facts else [facts]


def _paths(backend: Backend) -> list[str]:
    return [part["path"] for part in _described(backend) if "path" in part]


def _check_outside(keys: str | os.PathLike[str] | None, stores: Sequence[str]) -> None:
    """Raises UsageError if keys are below one of these places."""
    for store in map(os.path.realpath, stores if keys is not None else ()):
        inside = os.path.realpath(cast("str", keys))
        if os.path.commonpath([store, inside]) == store:
            raise UsageError(
                f'the keys in "{inside}" are inside the store "{store}": a backup of it would have '
                "them too",
                hint="keep keys in a folder of their own: keys=… or HOLDFAST_KEYS",
            )


def _open_or_take(
    given: object,
    url: object,
    known: Levels,
    clock: Clock,
    encryption: Encryption | None,
    entry: _Entry,
    options: dict[str, Any],
) -> tuple[Backend, str]:
    """Returns the backend of a store, and its place as it may be shown.

    With encryption the backend is wrapped. Without, a store that is encrypted is refused.
    """
    each = check_plain if encryption is None else encryption.wrap
    if given is not None:
        taken, shown = _take_backend(given, options)
        if not hasattr(taken, "routing"):
            return looked_at(taken, each), shown
        if encryption is not None:
            raise UsageError(
                "a given backend of several parts cannot be encrypted: its parts are open already",
                hint="give the parts as URLs: holdfast.open({level: url}, store_key=…)",
            )
        return looked_at(taken, _check_plain_parts), shown
    return open_backend(
        url,
        levels=known.names(),
        kept_with=kept_with(),
        clock=clock,
        each=each,
        tenant=entry.name,
        entered=entry.records.append,
        **options,
    )


class _Entry:
    """The tenant that is asked for, and its record at the place of its store."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.records: list[TenantRecord] = []

    def with_quotas(self, care: Care) -> Care:
        """Returns the care, with the quotas added that the administrator gave the tenant."""
        given = [quota for one in self.records for quota in quotas_of(one.settings)]
        added = tuple(quota for quota in dict.fromkeys(given) if quota not in care.quotas)
        return Care(care.retention, (*care.quotas, *added), care.disk, care.levels)

    def keys(self, given: object) -> object:
        """Returns where keys are; by default each tenant has a separate folder for them."""
        return tenant_keys(self.records[0].id) if given is None and self.records else given


def tenant_keys(id: str) -> str | None:
    """Returns the default folder for the keys of a tenant's subjects.

    Returns None if HOLDFAST_KEYS is not a folder: then tenants share that place, as stores do.
    """
    folder = os.environ.get("HOLDFAST_KEYS") or str(default_folder())
    return None if SCHEME.match(folder) else os.path.join(folder, "tenants", id)


def _which_tenant(given: object, named: str | None, backend: object, url: object) -> str | None:
    """Returns the tenant named by the call or by the file of the store, or None."""
    if given is None and named is None:
        return None
    if backend is not None or isinstance(url, _StateFiles):
        raise UsageError(
            "a tenant is one of a place that a URL names, found an open backend or files of states",
            hint="open the store by its URL: holdfast.open(url, tenant=…)",
        )
    if given is not None and named is not None and given != named:
        raise UsageError(f'the file names tenant "{named}", found tenant {show_value(given)}')
    return check_tenant(named if given is None else given)


def _check_plain_parts(mixed: Backend) -> Backend:
    for part in cast("Sequence[Backend]", getattr(mixed, "parts", ())):
        check_plain(part)
    return mixed


def _encryption(
    given: object, url: object, clock: Clock, actor: str, *, read_only: bool
) -> Encryption | None:
    """Returns the encryption of a store, or None; reads the key before any file is touched."""
    if given is None:
        return None
    if isinstance(url, _StateFiles):
        raise UsageError(
            "a store whose states are files in clear cannot be encrypted",
            hint="open the folder itself, without yaml: or json:",
        )
    return Encryption(to_store_key(given), clock, actor, create=not read_only)


def _known_levels(named: Mapping[str, str], levels: object) -> Levels:
    """Returns the levels of a store: the built-in ones, those of its file, and those given."""
    known = Levels(reserved=reserved_prefixes())
    for name, below in {**named, **_check_levels(levels)}.items():
        known.register(name, below=below)
    return known


def _with_care(stored: Care | None, retention: object, quotas: object, disk: object) -> Care:
    """Returns retention, quotas and disk watch: those of the file and those of the caller."""
    stored = stored or Care()
    limits, watch = _check_limits(quotas, disk)
    policies = (*stored.retention, *check_policies(retention))
    return Care(policies, (*stored.quotas, *limits), watch or stored.disk, stored.levels)


def _check_limits(quotas: object, disk: object) -> tuple[Sequence[Quota], DiskWatch | None]:
    if not isinstance(quotas, Sequence) or isinstance(quotas, str):
        raise UsageError(f"quotas are a list, found {show_value(quotas)}")
    for one in cast("Sequence[object]", quotas):
        if not isinstance(one, Quota):
            raise UsageError(f"expected a Quota, found {show_value(one)}")
    if disk is not None and not isinstance(disk, DiskWatch):
        raise UsageError(f"disk_watch is a DiskWatch, found {show_value(disk)}")
    return cast("Sequence[Quota]", quotas), disk


def _check_options(durability: object, create: object, read_only: object, clock: object) -> None:
    """Raises UsageError for an option with a wrong value, for every backend alike.

    This is checked here because a misspelt durability must never become a weaker one.
    """
    if durability not in DURABILITIES:
        raise UsageError(
            f"durability is one of {', '.join(DURABILITIES)}, found {show_value(durability)}"
        )
    check_flag(create, "create")
    check_flag(read_only, "read_only")
    if clock is not None and not hasattr(clock, "boot_us"):
        raise UsageError(f"clock is a Clock or None, found {show_value(clock)}")


def _place_of(shown: str) -> str | None:
    """Returns the name of a store's place within this process; None if any part is in memory."""
    if "memory:" in shown:
        return None
    scheme, colon, rest = shown.partition(":")
    is_path = not colon or "//" not in rest
    return f"{scheme if colon else ''}:{os.path.realpath(rest or shown)}" if is_path else shown


_OF_A_URL = {"durability": "full", "create": True, "read_only": False}


def _take_backend(backend: object, options: dict[str, Any]) -> tuple[Backend, str]:
    """Returns a backend that the caller opened, and its place as it may be shown."""
    if given := [name for name in options if options[name] != _OF_A_URL.get(name)]:
        raise UsageError(
            f"{', '.join(given)} is not an option of a store on a backend, which is open already",
            hint="open the backend with it",
        )
    backend = check_backend(backend, "url")
    return backend, without_secrets(str(backend.inspect.describe()["place"]))


class _Named(NamedTuple):
    """Where a store is, and the options of the TOML file that names it, if there is one."""

    url: object
    levels: Mapping[str, str] = {}
    care: Care | None = None
    key: str | None = None
    tenant: str | None = None
    settings: Mapping[str, Any] = {}


def _read_place(url: object) -> _Named:
    """Returns the place of a store, and the options that the `url` argument implies."""
    if isinstance(url, str) and url.startswith(("yaml:", "json:")):
        suffix, _, directory = url.partition(":")
        place = _StateFiles(os.path.join(directory or ".", DEFAULT_PLACE))
        place.directory, place.suffix = directory or ".", suffix
        return _Named(place)
    is_path = isinstance(url, str | os.PathLike)
    path: object = os.fspath(cast("str", url)) if is_path else None
    # Also if the file is missing: treated as a folder it would become a new, empty store.
    if isinstance(path, str) and path.endswith(".toml") and not os.path.isdir(path):
        from holdfast.backends.mixed import read_mix

        urls, levels, tables = read_mix(path)
        tenant = tables.pop("tenant", None)
        if tenant is not None and not isinstance(tenant, str):
            raise UsageError(f'tenant in "{path}" is a name, found {show_value(tenant)}')
        key, care = _named_key(path, tables), read_care(path, tables)
        return _Named(urls, levels, care, key, tenant, _file_settings(path, tables))
    return _Named(url)


def _file_settings(path: str, tables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that a file may hold under the names of `Settings`."""
    plain = ("secrets", "unchecked", "clear_ids", "heartbeat_s")
    said = {name: tables[name] for name in plain if name in tables}
    if "indexes" in tables:
        said["indexes"] = read_indexes(path, tables["indexes"])
    return said


def _named_key(path: str, tables: Mapping[str, Any]) -> str | None:
    """Returns where the key of a store is, from `[encryption]` of its file.

    The file may come from somebody else, so it may not name a command to run. The key itself may
    not stand in it either.
    """
    table: object = tables.get("encryption")
    if table is None:
        return None
    found = cast("dict[str, object]", table).get("key") if isinstance(table, dict) else None
    if not isinstance(found, str) or not found.startswith(("env:", "file:", "keyring:")):
        raise UsageError(
            f'[encryption] of "{path}" names where the key is: key = "env:NAME", "file:PATH" or '
            '"keyring:SERVICE/NAME"',
            hint="a command, or the key itself, is given as store_key=… or HOLDFAST_STORE_KEY",
        )
    if len(cast("dict[str, object]", table)) > 1:
        raise UsageError(f'[encryption] of "{path}" has one line, key = …')
    return found


def _names_a_place(url: object) -> bool:
    return isinstance(url, str | os.PathLike | Mapping)


def _check_schemas(schemas: object, unchecked: object) -> Typed:
    if not isinstance(schemas, Sequence) or isinstance(schemas, str):
        raise UsageError(f"schemas is a list of classes, found {show_value(schemas)}")
    classes = cast("Sequence[type[Any]]", schemas)
    return Typed(classes, unchecked=check_flag(unchecked, "unchecked"))


def _check_levels(levels: object) -> Mapping[str, str]:
    if levels is not None and not isinstance(levels, Mapping):
        raise UsageError(
            f"levels is a mapping from a level to the one above it, found {show_value(levels)}"
        )
    return cast("Mapping[str, str]", levels or {})
