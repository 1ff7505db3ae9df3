"""The names of the four-scope document (ADR-002) on top of scopes.

Code that was written against that document runs once this import is changed. Its states are our
scopes. Its checkpoints are kept by value, in scopes of a level of their own: a saved checkpoint
never changes, whatever happens to the live state.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any

from holdfast.errors import NotFoundError, UsageError, show_value
from holdfast.names import CONVERSATION
from holdfast.scope import Scope
from holdfast.store import Store, open_store

__all__ = ["GlobalStateManager", "StateScope"]

SAVED = "checkpoint"


class StateScope(Enum):
    """The four scopes, from the narrowest to the widest."""

    CONVERSATION = "conversation"
    WORKFLOW = "workflow"
    TEAM = "team"
    GLOBAL = "global"


class StateDict(dict[str, Any]):
    """A plain dict that knows the id of its scope, so that a checkpoint of it has that id."""

    scope_id: str | None = None


class ScopeState:
    """A scope as the document describes it: like a dict, with `update` and `to_dict`."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.id = scope.id

    def get(self, key: str, default: Any = None) -> Any:
        return self.scope.get(key, default)

    def set(self, key: str, value: Any) -> int:
        return self.scope.set(key, value)

    def update(self, values: Mapping[str, Any]) -> int:
        return self.scope.update(values)

    def to_dict(self) -> dict[str, Any]:
        """Returns a plain copy that knows the id of its scope."""
        state = StateDict(self.scope.to_dict())
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


class GlobalStateManager:
    """The single entry point that the document describes."""

    _instance: GlobalStateManager | None = None
    _guard = threading.Lock()

    def __init__(self, store: Store) -> None:
        self.store = store
        if SAVED not in store._levels.names():
            store.register_level(SAVED, below=CONVERSATION)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="holdfast-compat")

    @classmethod
    def get_instance(cls) -> GlobalStateManager:
        """Returns the shared instance; without `configure` it uses ./.holdfast."""
        with cls._guard:
            if cls._instance is None:
                cls._instance = cls(open_store())
            return cls._instance

    @classmethod
    def configure(cls, store: Store | None) -> None:
        """Sets the store of the shared instance; None drops the instance."""
        with cls._guard:
            cls._instance = None if store is None else cls(store)

    def get_conversation_state(self, session_id: str) -> ScopeState:
        """Returns the state of a session; two ids never share data."""
        return self._state(StateScope.CONVERSATION, session_id)

    def get_workflow_state(self, workflow_id: str) -> ScopeState:
        """Returns the state of a workflow execution."""
        return self._state(StateScope.WORKFLOW, workflow_id)

    def get_team_state(self, team_id: str) -> ScopeState:
        """Returns the state of a team."""
        return self._state(StateScope.TEAM, team_id)

    def get_global_state(self) -> ScopeState:
        """Returns the one global state."""
        return self._state(StateScope.GLOBAL, None)

    async def save_checkpoint(
        self, scope: StateScope, state: Mapping[str, Any] | ScopeState
    ) -> None:
        """Stores a checkpoint of a scope; its id is that of the state, if the state has one."""
        self._check(scope)
        await self._in_thread(self._save, scope, state)

    async def load_checkpoint(self, scope: StateScope, id: str | None = None) -> dict[str, Any]:
        """Returns the newest checkpoint of an id; without an id the newest of its scope."""
        self._check(scope)
        return await self._in_thread(self._load, scope, id)

    def _save(self, scope: StateScope, state: Mapping[str, Any] | ScopeState) -> None:
        if isinstance(state, ScopeState):
            state = state.to_dict()
        if not isinstance(state, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"a checkpoint is a mapping, found {show_value(state)}")
        id = getattr(state, "scope_id", None)
        plain = dict(state)
        with self.store.commit() as tx:
            tx.scope(self._saved(scope, None)).set("newest", {"id": id, "state": plain})
            if id is not None:
                tx.scope(self._saved(scope, id)).set("newest", {"id": id, "state": plain})

    def _load(self, scope: StateScope, id: str | None) -> dict[str, Any]:
        saved = self._saved(scope, id).get("newest")
        if saved is None:
            what = f'"{id}"' if id is not None else f"the {scope.value} scope"
            raise NotFoundError(
                f"there is no checkpoint of {what}", hint="save_checkpoint stores one"
            )
        return saved["state"].to_dict()

    def _saved(self, scope: StateScope, id: str | None) -> Scope:
        return self.store.scope(SAVED, scope.value if id is None else f"{scope.value}/{id}")

    def _state(self, scope: StateScope, id: str | None) -> ScopeState:
        return ScopeState(self.store.scope(scope.value, id))

    def _check(self, scope: object) -> None:
        if not isinstance(scope, StateScope):
            raise UsageError(f"expected a StateScope, found {show_value(scope)}")

    async def _in_thread(self, function: Any, *args: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._executor, function, *args))
