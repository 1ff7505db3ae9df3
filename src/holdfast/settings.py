"""Settings of `holdfast.open` that few programs need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.core.leases import HEARTBEAT_S

if TYPE_CHECKING:
    import os

    from holdfast.clock import Clock
    from holdfast.core.limits import DiskWatch, Quota
    from holdfast.core.redaction import Mode
    from holdfast.query.paths import StateIndex
    from holdfast.query.vectors import Embedder
    from holdfast.record.retention_policies import RetentionPolicy


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a store is opened: `holdfast.open(url, settings=Settings(secrets="redact"))`."""

    levels: Mapping[str, str] | None = None
    """Levels of scopes besides the built-in ones: a mapping from each to the level above it."""
    secrets: Mode | Mapping[str, Mode] = "off"
    """What happens to secrets in what is written: off, warn, redact or refuse.

    One mode for all scopes, or a mapping from patterns of scopes to modes.
    """
    retention: Sequence[RetentionPolicy] = ()
    """Policies that `hf.retention.run()` applies: what it lets go of besides removed scopes."""
    quotas: Sequence[Quota] = ()
    """How much each scope of a pattern may hold; a commit beyond that raises LimitError."""
    disk_watch: DiskWatch | None = None
    """What a store on a local disk does when little space is left."""
    indexes: Sequence[StateIndex] = ()
    """Paths of states to index, for `where` in queries (`holdfast.index`)."""
    embedder: Embedder | None = None
    """The model that turns texts into vectors, for `hf.search.similar`."""
    unchecked: bool = False
    """Whether scopes whose schema this program does not have may be written, unchecked."""
    clear_ids: bool = False
    """Whether ids of a subject's scopes may be any text, although ids are stored in clear."""
    config: str | os.PathLike[str] | None = None
    """The path of a holdfast.toml: its views and git commits are kept while the store is open."""
    heartbeat_s: float = HEARTBEAT_S
    """Seconds between two heartbeats, by which this worker shows that it is alive."""
    clock: Clock | None = None
    """The source of time and randomness; the system's, unless a test passes another."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """More options of the URL's backend, such as the sizes of its files."""


DEFAULTS = Settings()
