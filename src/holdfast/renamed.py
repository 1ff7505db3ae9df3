"""Old public names and their new ones, for error messages to users of the old; until 0.1.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

_STORE = {
    "start": "runs.start",
    "resume": "runs.resume",
    "answer": "runs.answer",
    "signal": "runs.signal",
    "send": "runs.send",
    "cancel": "runs.cancel",
    "settle": "runs.settle",
    "adopt": "runs.adopt",
    "fork": "runs.fork",
    "run": "runs.get",
    "remove_run": "runs.remove",
    "use_executor": "runs.use_executor",
    "decision": "decisions.get",
    "outcome": "decisions.close",
    "prioritise": "decisions.prioritise",
    "policy": "decisions.policy",
    "catches": "decisions.catches",
    "audit": "scope(…).life.audit",
    "process": "nodes.process",
    "why": "nodes.why",
    "plan": "nodes.plan",
    "accept": "nodes.accept",
    "invalidate": "nodes.invalidate",
    "forget_nodes": "nodes.forget",
    "projected": "projections.of",
    "sql": "search.sql",
    "similar": "search.similar",
    "resolve": "search.resolve",
    "dangling_links": "search.dangling_links",
    "index_status": "search.status",
    "rebuild_index": "search.rebuild",
    "refresh_tables": "search.tables",
    "retain": "retention.run",
    "let_go": "retention.past",
    "hold": "retention.hold",
    "unhold": "retention.unhold",
    "holds": "retention.holds",
    "binned": "retention.bin",
    "unretain": "retention.bring_back",
    "expiry_policy": "retention.expire",
    "expiry_policies": "retention.expiry",
    "close_policy": "retention.on_close",
    "subject": "subjects.get",
    "pseudonym": "subjects.pseudonym",
    "hold_subject": "subjects.hold",
    "unhold_subject": "subjects.unhold",
    "erase": "subjects.erase",
    "finish_erasures": "subjects.finish",
    "erasures": "subjects.receipts",
    "key_status": "keys.status",
    "rotate_key": "keys.rotate",
    "rewrap_key": "keys.rewrap",
    "guard_secrets": "secrets.guard",
    "migrate": "schemas.migrate",
    "suspects": "workers.suspects",
    "worker": "workers.own",
    "lease_keeper": "workers",
    "lease": "workers.lease",
    "leases": "workers.leases",
    "renew": "workers.renew",
    "release": "workers.release",
    "claim": "workers.claim",
    "marks": "workers.marks",
    "group": "workers.group",
    "groups": "workers.groups",
    "follow_changes": "follow()",
    "follow_events": "follow(as_events=True)",
    "submit": "commit(waits=False)",
    "boot": "context(…, boot=True)",
    "find": "scopes(id=…)",
    "states": "view().states",
    "rewinds": "git",
}
STORE = {
    **{name: f"hf.{new}" for name, new in _STORE.items()},
    "drain": "drain of what hf.subscribe(…) returns",
    "register_level": "holdfast.open(…, settings=holdfast.Settings(levels=…))",
}
"""Old attributes of a store `hf`, and what to write instead."""

_SCOPE = {
    "values": "state.values",
    "items": "state.items",
    "to_dict": "state.to_dict",
    "pop": "edit()",
    "set_default": "set(…, if_absent=True)",
    "replace_state": "update(…, replace=True)",
    "modified": "diff(…).keys",
    "revision_of": "life.revision_at",
    "is_closed": "life.is_closed",
    "updated_at": "life.updated_at",
    "expires_at": "life.expires_at",
    "ends_at": "life.ends_at",
    "touch": "life.touch",
    "catch": "decisions.catch",
    "catches": "decisions.catches",
    "catch_decisions": "decisions.catch_unrecorded",
    "recall": "decisions.recall",
    "effect": "decisions.effect",
    "turn": "messages.turn",
    "status": "session.status",
    "export_session": "session.export",
}
SCOPE = {
    **{name: f"scope.{new}" for name, new in _SCOPE.items()},
    "is_scratch": "isinstance(scope, holdfast.store.ScratchScope)",
}
"""Old attributes of a scope `scope`, and what to write instead."""

_MOVED = {
    "context": "LeftOut PromptContext PromptPart",
    "contrib.task_lifetimes": "job",
    "decisions": "Catch Link OpenDecision Policy UndecidedWarning",
    "errors": (
        "ExpiredError FilesTakenError FormatError GitError HeldError KeyMissingError "
        "LetGoError LostCommitsError NewerSchemaError NodeError OtherStoreError "
        "ProgramError ProjectionError RunCancelledError SecretError StillRunningError "
        "StoreKeyError UndecidedError UntrustedError UpgradeError ValueDomainError"
    ),
    "facts": "Fact Facts",
    "keys": ("CommandKeys FolderKeys KeyStatus KeyStore KeyringKeys StoreKey SubjectKey TableKeys"),
    "nodes": (
        "Applied Artifact Cause Conflict Node NodeState Plan Planned Resolved StoredNode Walk Why"
    ),
    "projections": "Projected Projection",
    "record": (
        "Audit AuditItem Comparison Difference FileChange Memory MemoryItem MemorySection "
        "MessageChange Messages Restored Stale TaskChange load_verifiers read_as repair"
    ),
    "retention": (
        "Binned DiskWatch ExpiryPolicy Hold LetGo Quota Retained Retention RetentionPolicy"
    ),
    "runs": "Current Outcome Output Progress RunSummary",
    "schemas": "Migration Misfit Outdated",
    "scope": (
        "AsyncState ConversationState Edit GlobalState Recalled State TeamState "
        "WorkflowState json_default"
    ),
    "search": "DanglingLink Embedder Hit Hits IndexStatus Rows Similar StateIndex Where",
    "secrets": "SecretWarning",
    "sessions": "OpenTurn Session",
    "store": (
        "Checkpoint CommitResult JointCommit JointScope Meta Observed Observer OwnEvent "
        "Page PendingCommit PendingScope Position Recovered Recovery Report ScratchScope "
        "StateAt Subscriber View"
    ),
    "subjects": "ErasedScope ErasureReceipt Subject",
    "tasks": "Tasks",
    "tenants": "NewTenant Tenant TenantReceipt Tenants",
    "thumbprint": "register_thumb thumb",
    "undo": "Dependent NotTakenBack TakenBack Undone",
    "workers": "Delivery Group GroupStatus Held HeldLease Lease Mark Worker",
}
SETTINGS = (
    *("clear_ids", "clock", "config", "disk_watch", "embedder", "heartbeat_s", "indexes"),
    *("levels", "quotas", "retention", "secrets", "unchecked"),
)
"""Former options of `holdfast.open` that are fields of `holdfast.Settings` now."""

NAMES = {name: f"holdfast.{home}" for home, names in _MOVED.items() for name in names.split()}
"""Former names of `holdfast`, and the modules that have them now."""


class NotCalled:
    """A room whose name used to be a method of the store; calling it explains that."""

    if not TYPE_CHECKING:

        def __call__(self, *_: object, **__: object) -> NoReturn:
            room = type(self).__name__.removesuffix("Room").lower()
            raise TypeError(f"hf.{room} is a room now: call hf.{room}.list(…)")


def no_attribute(what: str, name: str, table: dict[str, str]) -> AttributeError:
    """Returns the error for a missing attribute; for an old name it has the new one."""
    new = table.get(name)
    if new is None:
        return AttributeError(f"{what} has no attribute {name!r}")
    return AttributeError(f"{what} has no attribute {name!r} any more: it is {new} now", name=name)


def option_hint(name: str) -> str:
    """Returns a hint for an option that `holdfast.open` does not have."""
    if name == "backend":
        return "give the open backend in place of the URL: holdfast.open(backend)"
    if name in SETTINGS:
        return f"it is a setting now: holdfast.open(…, settings=holdfast.Settings({name}=…))"
    return (
        f'one of the backend\'s own is given as settings=holdfast.Settings(options={{"{name}": …}})'
    )


def not_here(name: str) -> ImportError | None:
    """Returns the error for a name that moved from `holdfast` to a module; None for others."""
    home = NAMES.get(name)
    if home is None:
        return None
    return ImportError(f"holdfast.{name} is in {home} now: from {home} import {name}", name=name)
