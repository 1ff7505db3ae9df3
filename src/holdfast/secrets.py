"""What is done about secrets in what is written: `hf.secrets`."""

from __future__ import annotations

from holdfast.core.kernel import Kernel
from holdfast.core.redaction import Mode, SecretWarning, check_rules
from holdfast.record.context import RecordContext
from holdfast.record.decisions import set_policy
from holdfast.record.secret_rules import SecretRules
from holdfast.scope import Scope

__all__ = ["Mode", "SecretWarning", "SecretsRoom"]


class SecretsRoom:
    """What is done about secrets in what is written, by pattern of scopes."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._rules = kernel.part(SecretRules)

    def __repr__(self) -> str:
        return "<SecretsRoom>"

    def guard(self, mode: Mode, *, scope: Scope | str = "*") -> None:
        """Says what is done about secrets in what is written to scopes: off, warn, redact, refuse.

        `scope` is a name, or a pattern in which * is any characters; runs are `run/*`. Of several
        that fit the longest counts. It is stored: this handle heeds it at once, and every one that
        is opened from now on. What `Settings(secrets=…)` says counts too where it is stricter.
        """
        pattern = scope if isinstance(scope, str) else scope.name
        set_policy(
            self._kernel.part(RecordContext),
            ("secrets", pattern),
            check_rules({pattern: mode})[pattern],
        )
        self._rules.use()

    @property
    def rules(self) -> dict[str, Mode]:
        """What is done about secrets here, by pattern of scopes; where none fits, nothing."""
        return {} if self._kernel.log.redactor is None else dict(self._kernel.log.redactor.rules)
