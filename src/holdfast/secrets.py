"""What happens to secrets in what is written: `hf.secrets`."""

from __future__ import annotations

from holdfast.core.kernel import Kernel
from holdfast.core.redaction import Mode, SecretWarning, check_rules
from holdfast.record.context import RecordContext
from holdfast.record.decisions import set_policy
from holdfast.record.secret_rules import SecretRules
from holdfast.scope import Scope

__all__ = ["Mode", "SecretWarning", "SecretsRoom"]


class SecretsRoom:
    """What happens to secrets in what is written, by pattern of scopes."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._rules = kernel.part(SecretRules)

    def __repr__(self) -> str:
        return "<SecretsRoom>"

    def guard(self, mode: Mode, *, scope: Scope | str = "*") -> None:
        """Sets what happens to secrets in what is written: off, warn, redact or refuse.

        `scope` is a name, or a pattern in which * stands for any characters; `run/*` is all runs.
        If several patterns fit a scope, the longest applies. The rule is stored. It applies to this
        handle at once, and to every handle opened from now on. `Settings(secrets=…)` applies too
        where it is stricter.
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
        """The rules of this handle, by pattern of scopes; where none fits, nothing is done."""
        return {} if self._kernel.log.redactor is None else dict(self._kernel.log.redactor.rules)
