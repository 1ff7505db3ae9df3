"""What `holdfast.open` is told beside where a store is: settings that few programs need."""

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
    """Levels of scopes beside the built-in ones, each with the level above it."""
    secrets: Mode | Mapping[str, Mode] = "off"
    """What is done about secrets in what is written: off, warn, redact or refuse, by scope."""
    retention: Sequence[RetentionPolicy] = ()
    """Which scopes and events `hf.retention.run()` lets go of, besides those that are removed."""
    quotas: Sequence[Quota] = ()
    """How much scopes may hold: what goes beyond it is refused."""
    disk_watch: DiskWatch | None = None
    """What is done when the disk is nearly full."""
    indexes: Sequence[StateIndex] = ()
    """Paths of states that questions are answered from (`holdfast.index`)."""
    embedder: Embedder | None = None
    """What turns texts into vectors, for `hf.search.similar`."""
    unchecked: bool = False
    """Whether scopes are written to that have another schema than this program."""
    clear_ids: bool = False
    """Whether the ids of a subject's scopes may be any text, although they are stored in clear."""
    config: str | os.PathLike[str] | None = None
    """A holdfast.toml whose views and commits are kept while the store is open."""
    heartbeat_s: float = HEARTBEAT_S
    """How often this worker says that it lives."""
    clock: Clock | None = None
    """Time and chance; those of the system unless a test gives others."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the backend of the URL takes besides, such as sizes of its files."""


DEFAULTS = Settings()
