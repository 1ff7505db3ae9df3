"""Retention: what a store lets go of, and what it keeps: `hf.retention`."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdfast.core import mark_ends, reserve
from holdfast.core.arguments import Duration, check_flag, check_seconds, check_text, check_ttl
from holdfast.core.expiry import ExpiryPolicy
from holdfast.core.kernel import Kernel
from holdfast.core.limits import DiskWatch, Quota, local_places
from holdfast.core.retention import GRACE_S, Binned, Hold, LetGo, Retained, Retainer, Retention
from holdfast.errors import UnavailableError, UsageError
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
"""The lifetime that `expire` gives to the scopes of a level, unless the caller gives another."""
_logger = logging.getLogger("holdfast.retention")


class RetentionRoom:
    """Removes data that nobody can ask for any more, by policies, with a bin and holds."""

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
        """Lets go of what nobody can ask for any more, and returns what went and what is left.

        This is the data of scopes that were removed, that were closed without keeping their state,
        or whose lifetime is over, each at least `grace_s` seconds ago. Scopes on hold keep
        everything. Before that, `policies` (or those that the store was opened with) remove the
        scopes that they select, and choose what goes of scopes that stay.

        `whole` takes more time: it makes the store as small as it can, and deletes blobs that
        nothing names. One run works at a time; another waits up to `wait_s` seconds for it and then
        raises LeaseLostError. `preview` returns what would go. On a full disk it uses the reserve
        of `DiskWatch(reserve=…)`, and keeps that free again afterwards.
        """
        check_seconds(grace_s, "grace_s", above=-1e-9)
        check_seconds(wait_s, "wait_s", above=-1e-9)

        def run() -> Retention:
            applied = self._applied(policies, grace_s)
            mark_ends.sweep(self._log)
            return self._retainer.run(grace_s=grace_s, whole=whole, wait_s=wait_s, policies=applied)

        try:
            done = run()
        except UnavailableError as error:
            # What is let go of is written down first. On a full disk the reserve is for that.
            if not reserve.use_if_full(local_places(self._log.describe())):
                raise
            _logger.warning("the reserve is used to let go on a full disk: %s", error)
            done = run()
        reserve.keep_all(self._log.limits)
        return done

    def preview(
        self, *, grace_s: float = GRACE_S, policies: Sequence[RetentionPolicy] | None = None
    ) -> Retention:
        """Returns what `run` would let go of, and why, without changing anything."""
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
        """Returns what was let go of so far, and when and why, oldest first."""
        return self._retainer.let_go()

    def hold(self, scope: Scope | str, reason: str | None = None) -> None:
        """Keeps all data of a scope from `run` until `unhold`, even if the scope is removed.

        Raises NotFoundError if there is no such scope.
        """
        name = scope.name if isinstance(scope, Scope) else self._scopes.scope(scope).name
        self._retainer.hold(name, check_text(reason, "reason", optional=True) or "")

    def unhold(self, scope: Scope | str) -> None:
        """Ends the hold of a scope."""
        name = scope.name if isinstance(scope, Scope) else self._scopes.scope(scope).name
        self._retainer.release(name)

    def holds(self) -> list[Hold]:
        """Returns the holds, in the order of scope names, each with its time and reason."""
        return self._retainer.holds()

    def bin(self) -> list[Binned]:
        """Returns the scopes that policies have removed, by name; `bring_back` restores one."""
        return in_bin(self._log, self._retainer)

    def bring_back(self, scope: Scope | str) -> int:
        """Brings back a scope that a policy has removed, with all it held; returns its revision.

        The scope counts as written now, so the policy selects it again once it is old enough; use
        `hold` to keep it longer. Raises NotFoundError if the scope is not in the bin.
        """
        found = scope if isinstance(scope, Scope) else self._scopes.scope(scope)
        return unretain(self._log, self._retainer, found)

    def expire(
        self, level: str, *, ttl_s: Duration | None = EXPIRES_S, slides: bool = True
    ) -> None:
        """Sets the lifetime of scopes of a level that are begun without `ttl_s` from now on.

        The rule is stored, and applies to every handle and process of the store. The lifetime
        starts again with each write; with `slides=False` the end is fixed when the scope begins.
        `ttl_s=None` ends the rule: new scopes of the level last, and those with an end keep it.
        """
        if level == GLOBAL:
            raise UsageError("the global scope lasts: there is one, and it cannot begin again")
        self._scopes.scope(level, "any")  # raises unless there is such a level
        check_flag(slides, "slides")
        said = None if ttl_s is None else {"ttl_s": check_ttl(ttl_s), "slides": slides}
        set_policy(self._kernel.part(RecordContext), ("expires", level), said)

    @property
    def expiry(self) -> dict[str, ExpiryPolicy]:
        """The lifetimes of new scopes, by level; scopes of other levels have no end."""
        return terms_of_levels(self._log)

    def on_close(self, level: str, *, keep: bool) -> None:
        """Sets whether `close()` keeps the state of this level's scopes; `keep=False` drops it.

        The rule is stored, and applies to every handle and process of the store from now on. A
        `keep` that is passed to `close()` goes before it.
        """
        self._scopes.scope(
            level, None if level == GLOBAL else "any"
        )  # raises unless there is such a level
        set_policy(self._kernel.part(RecordContext), ("keep", level), check_flag(keep, "keep"))
