"""The API of the four-scope document (ADR-002) on top of scopes.

Code that was written for that document runs after its import is changed. Its states are scopes of
Holdfast. Its checkpoints are kept by value, in scopes of a separate level, so a saved checkpoint
never changes, whatever happens to the live state.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, cast

from holdfast.core.arguments import Path
from holdfast.core.kernel import kernel_of
from holdfast.core.listing import register_level
from holdfast.core.tree import Map
from holdfast.errors import NotFoundError, UsageError, show_value
from holdfast.joint_commit import JointCommit
from holdfast.names import CONVERSATION, check_name
from holdfast.opening import open_store
from holdfast.scope import Scope
from holdfast.store import Store

__all__ = ["GlobalStateManager", "StateScope"]

_logger = logging.getLogger("holdfast.compat")

SAVED = "checkpoint"


class StateScope(StrEnum):
    """The four scopes, from the narrowest to the widest, as text."""

    CONVERSATION = "conversation"
    WORKFLOW = "workflow"
    TEAM = "team"
    GLOBAL = "global"


class StateDict(dict[str, Any]):
    """A plain dict that knows the id of its scope, so that a checkpoint of it has that id."""

    scope_id: str | None = None

    def copy(self) -> StateDict:
        return self._like(super().copy())

    def __or__(self, other: Any) -> Any:
        return self._like(super().__or__(other))

    def _like(self, values: Any) -> Any:
        if not isinstance(values, dict):
            return values  # NotImplemented
        found = StateDict(cast("dict[str, Any]", values))
        found.scope_id = self.scope_id
        return found


class ScopeState(MutableMapping[str, Any]):
    """A scope as the document describes it: a dict that is stored, with `set` and `to_dict`."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.id = scope.id

    @property
    def name(self) -> str:
        """The full name of the scope."""
        return self.scope.name

    @property
    def state(self) -> Map:
        """The newest state, which never changes."""
        return self.scope.state

    def get(self, path: Path, default: Any = None) -> Any:
        """Returns the value at a key or path, or the default."""
        return self.scope.get(path, default)

    def set(self, path: Path, value: Any) -> int:
        """Sets the value at a key or path; returns the new revision."""
        return self.scope.set(path, value)

    def update(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, values: Mapping[str, Any] = MappingProxyType({}), /, **named: Any
    ) -> int:
        """Sets several keys in one commit; returns the new revision."""
        return self.scope.update({**values, **named})

    def to_dict(self) -> dict[str, Any]:
        """Returns a plain copy that knows the id of its scope."""
        state = StateDict(self.scope.state.to_dict())
        state.scope_id = self.id
        return state

    def __getitem__(self, key: str) -> Any:
        return self.scope[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.scope[key] = value

    def __delitem__(self, key: str) -> None:
        del self.scope[key]

    def __contains__(self, key: object) -> bool:
        return key in self.scope

    def __iter__(self) -> Iterator[str]:
        return iter(self.scope.state)

    def __len__(self) -> int:
        return len(self.scope.state)


class ConversationScopeState(ScopeState):
    """The state of a session."""

    @property
    def session_id(self) -> str:
        """The id of the session."""
        return self.id or ""


class WorkflowScopeState(ScopeState):
    """The state of a workflow execution."""

    @property
    def workflow_id(self) -> str:
        """The id of the execution."""
        return self.id or ""


class TeamScopeState(ScopeState):
    """The state of a team."""

    @property
    def team_id(self) -> str:
        """The id of the team."""
        return self.id or ""


class GlobalScopeState(ScopeState):
    """The one global state."""

    @property
    def is_global(self) -> Literal[True]:
        """Always True: there is one such state for the whole application."""
        return True


class GlobalStateManager:
    """The single entry point that the document describes."""

    _instance: GlobalStateManager | None = None
    _guard = threading.Lock()

    def __init__(self, store: Store, *, owns_store: bool = False) -> None:
        self.store = store
        self._owns_store = owns_store
        kernel = kernel_of(store)
        if SAVED not in kernel.levels.names():
            register_level(kernel, SAVED, below=CONVERSATION)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="holdfast-compat")

    @classmethod
    def get_instance(cls) -> GlobalStateManager:
        """Returns the shared instance; without `configure` it uses ./.holdfast."""
        with cls._guard:
            if cls._instance is None:
                cls._instance = cls(open_store(), owns_store=True)
            return cls._instance

    @classmethod
    def configure(cls, store: Store | None) -> None:
        """Sets the store of the shared instance; None drops the instance.

        The old instance closes its store if it opened it itself; a store that it was given stays
        open.
        """
        with cls._guard:
            before, cls._instance = cls._instance, None if store is None else cls(store)
        if before is not None:
            before.close()

    def close(self) -> None:
        """Waits for checkpoints in progress, and closes the store if this object opened it."""
        self._executor.shutdown()
        if self._owns_store:
            self.store.close()

    def get_conversation_state(self, session_id: str) -> ConversationScopeState:
        """Returns the state of a session; two ids never share data."""
        return ConversationScopeState(self.store.conversation(session_id))

    def get_workflow_state(self, workflow_id: str) -> WorkflowScopeState:
        """Returns the state of a workflow execution."""
        return WorkflowScopeState(self.store.workflow(workflow_id))

    def get_team_state(self, team_id: str) -> TeamScopeState:
        """Returns the state of a team."""
        return TeamScopeState(self.store.team(team_id))

    def get_global_state(self) -> GlobalScopeState:
        """Returns the one global state."""
        return GlobalScopeState(self.store.global_())

    async def save_checkpoint(
        self, scope: StateScope, state: Mapping[str, Any] | ScopeState, *, id: str | None = None
    ) -> None:
        """Stores a checkpoint of a scope, under `id` or else under the id of the state.

        The result of `to_dict()` and its copies have that id; any other dict needs `id`.
        """
        self._check(scope)
        await self._in_thread(self._save, scope, state, id)

    async def load_checkpoint(self, scope: StateScope, id: str | None = None) -> dict[str, Any]:
        """Returns the newest checkpoint of an id; without an id the newest of its scope."""
        self._check(scope)
        return await self._in_thread(self._load, scope, id)

    def _save(
        self, scope: StateScope, state: Mapping[str, Any] | ScopeState, id: str | None
    ) -> None:
        if isinstance(state, ScopeState):
            state = state.to_dict()
        if not isinstance(state, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"a checkpoint is a mapping, found {show_value(state)}")
        id = getattr(state, "scope_id", None) if id is None else check_name(id, "id")
        if id is None and scope is not StateScope.GLOBAL:
            _logger.warning(
                "a checkpoint of the %s scope has no id: load_checkpoint finds it without one "
                "only; give save_checkpoint an id",
                scope.value,
            )
        self.store.commit(partial(self._write, scope, id, dict(state)))

    def _write(
        self, scope: StateScope, id: str | None, state: dict[str, Any], tx: JointCommit
    ) -> None:
        """Stores the difference to the last checkpoint; the scope's newest is only a reference."""
        if id is None:
            tx.scope(self._saved(scope, None)).set(
                "newest", {"id": None, "state": state}, diff=True
            )
            return
        tx.scope(self._saved(scope, None)).set("newest", {"id": id}, diff=True)
        tx.scope(self._saved(scope, id)).set("newest", {"id": id, "state": state}, diff=True)

    def _load(self, scope: StateScope, id: str | None) -> dict[str, Any]:
        saved = self._saved(scope, id).get("newest")
        if saved is None:
            what = f'"{id}"' if id is not None else f"the {scope.value} scope"
            raise NotFoundError(
                f"there is no checkpoint of {what}", hint="save_checkpoint stores one"
            )
        if "state" not in saved:  # a reference: the newest checkpoint has an id, and is kept there
            return self._load(scope, saved["id"])
        return saved["state"].to_dict()

    def _saved(self, scope: StateScope, id: str | None) -> Scope:
        return self.store.scope(SAVED, scope.value if id is None else f"{scope.value}/{id}")

    def _check(self, scope: object) -> None:
        if not isinstance(scope, StateScope):
            raise UsageError(f"expected a StateScope, found {show_value(scope)}")

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """Runs a call in the manager's thread.

        A cancellation is raised only after the call has ended, so that the caller never goes on
        while a checkpoint is still being written.
        """
        future = asyncio.get_running_loop().run_in_executor(self._executor, function, *args)
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            future.exception()  # marked as retrieved: the cancellation is raised instead
            raise cancelled
        return future.result()
