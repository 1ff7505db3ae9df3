"""What a store lets go of, and what it keeps: `hf.retention`."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import mark_ends
from holdfast.core.arguments import Duration, check_flag, check_seconds, check_text, check_ttl
from holdfast.core.expiry import ExpiryPolicy
from holdfast.core.kernel import Kernel
from holdfast.core.limits import DiskWatch, Quota
from holdfast.core.retention import GRACE_S, Binned, Hold, LetGo, Retained, Retainer, Retention
from holdfast.errors import UsageError
from holdfast.names import GLOBAL
from holdfast.record.context import RecordContext
from holdfast.record.decisions import set_policy, terms_of_levels
from holdfast.record.retention_policies import (
    AppliedPolicies,
    RetentionPolicy,
    check_policies,
    in_bin,
    unretain,
)
from holdfast.scope import Scope, Scopes

__all__ = [
    "Binned",
    "DiskWatch",
    "ExpiryPolicy",
    "Hold",
    "LetGo",
    "Quota",
    "Retained",
    "Retention",
    "RetentionPolicy",
    "RetentionRoom",
]

EXPIRES_S = 3600.0
"""How long the scopes of a level last that is told to expire, unless another time is given."""


class RetentionRoom:
    """Lets go of what nobody can ask for any more, by policies, with a bin and holds."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._log = kernel.log
        self._scopes = kernel.part(Scopes)
        self._retainer = kernel.part(Retainer)

    def __repr__(self) -> str:
        return "<RetentionRoom>"

    def run(
        self,
        *,
        grace_s: float = GRACE_S,
        whole: bool = False,
        wait_s: float = 0.0,
        policies: Sequence[RetentionPolicy] | None = None,
    ) -> Retention:
        """Lets go of what nobody can ask for any more, and says what went and what is left.

        That is what removed scopes held, those closed without their state, and those whose
        lifetime is over, each for `grace_s` at least. Held scopes keep everything. `policies`, or
        those that the store was opened with, first remove the scopes that they are for, and say
        which own events go. `whole` takes its time to make the store smaller, and looks for blobs
        that nobody names. While another one is at work it waits `wait_s`, then raises
        LeaseLostError. `preview` says what would go.
        """
        check_seconds(grace_s, "grace_s", above=-1e-9)
        check_seconds(wait_s, "wait_s", above=-1e-9)
        applied = self._applied(policies, grace_s)
        mark_ends.sweep(self._log)
        return self._retainer.run(grace_s=grace_s, whole=whole, wait_s=wait_s, policies=applied)

    def preview(
        self, *, grace_s: float = GRACE_S, policies: Sequence[RetentionPolicy] | None = None
    ) -> Retention:
        """Returns what `run` would let go of, and why; it changes no byte."""
        check_seconds(grace_s, "grace_s", above=-1e-9)
        return self._retainer.plan(grace_s=grace_s, policies=self._applied(policies, grace_s))

    def _applied(
        self, policies: Sequence[RetentionPolicy] | None, grace_s: float
    ) -> AppliedPolicies | None:
        rules = self.policies if policies is None else check_policies(policies)
        if not rules:
            return None
        return AppliedPolicies(
            self._log,
            self._retainer,
            rules,
            levels=self._scopes.levels,
            scope_of=self._scopes.scope,
            grace_s=grace_s,
        )

    @property
    def policies(self) -> Sequence[RetentionPolicy]:
        """The policies that the store was opened with."""
        return self._kernel.settings.retention

    def past(self) -> list[LetGo]:
        """Returns every letting-go that there was, oldest first."""
        return self._retainer.let_go()

    def hold(self, scope: Scope | str, reason: str | None = None) -> None:
        """Keeps everything of a scope from `run`, also when it is removed, until `unhold`."""
        name = scope.name if isinstance(scope, Scope) else self._scopes.scope(scope).name
        self._retainer.hold(name, check_text(reason, "reason", optional=True) or "")

    def unhold(self, scope: Scope | str) -> None:
        """Ends a hold."""
        name = scope.name if isinstance(scope, Scope) else self._scopes.scope(scope).name
        self._retainer.release(name)

    def holds(self) -> list[Hold]:
        """Returns the scopes that are held, by name, with since when and why."""
        return self._retainer.holds()

    def bin(self) -> list[Binned]:
        """Returns the scopes that policies have removed, by name; `bring_back` undoes it."""
        return in_bin(self._log, self._retainer)

    def bring_back(self, scope: Scope | str) -> int:
        """Brings a scope back that a policy has removed, whole; returns its new revision.

        It counts as written to now, so the policy finds it again when it is that old again; `hold`
        keeps it for longer. Raises NotFoundError if it is not in the bin.
        """
        found = scope if isinstance(scope, Scope) else self._scopes.scope(scope)
        return unretain(self._log, self._retainer, found)

    def expire(
        self, level: str, *, ttl_s: Duration | None = EXPIRES_S, slides: bool = True
    ) -> None:
        """Says how long the scopes of a level last that are begun from now on without `ttl_s`.

        It is stored, and counts for every handle and process of the store. An hour unless said
        otherwise, which begins anew with each write; with `slides=False` the end is fixed when the
        scope begins. With `ttl_s=None` scopes of the level last again, those with an end keep it.
        """
        if level == GLOBAL:
            raise UsageError("the global scope lasts: there is one, and it cannot begin again")
        self._scopes.scope(level, "any")  # raises unless there is such a level
        check_flag(slides, "slides")
        said = None if ttl_s is None else {"ttl_s": check_ttl(ttl_s), "slides": slides}
        set_policy(self._kernel.part(RecordContext), ("expires", level), said)

    @property
    def expiry(self) -> dict[str, ExpiryPolicy]:
        """How long new scopes of levels last, by level; those of other levels last for good."""
        return terms_of_levels(self._log)

    def on_close(self, level: str, *, keep: bool) -> None:
        """Says what `close()` does to the state of a level's scopes, unless it is told otherwise.

        It is stored, and counts for every handle and process of the store from now on. With
        `keep=False` the state is dropped.
        """
        self._scopes.scope(
            level, None if level == GLOBAL else "any"
        )  # raises unless there is such a level
        set_policy(self._kernel.part(RecordContext), ("keep", level), check_flag(keep, "keep"))
