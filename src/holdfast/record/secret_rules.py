"""What a store and the opener of a handle say about secrets, heeded by its log."""

from __future__ import annotations

import logging

from holdfast.core.kernel import Kernel
from holdfast.core.redaction import Mode, Redactor, check_rules, stricter
from holdfast.errors import HoldfastError
from holdfast.record.context import RecordContext
from holdfast.record.decisions import secret_rules

_logger = logging.getLogger("holdfast.secrets")


class SecretRules:
    """The stored rules and those given at opening: of two that fit alike the stricter counts."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._given = check_rules(kernel.settings.secrets)

    def use(self) -> None:
        """Has the log heed what is said now."""
        stored: dict[str, Mode] = {}
        try:
            stored = secret_rules(self._kernel.part(RecordContext))
        except HoldfastError as error:
            # A store that is too damaged to tell is still read; what is written is guarded by what
            # the opener says.
            _logger.warning("what the store says about secrets cannot be read: %s", error)
        rules = stricter(stored, self._given)
        is_on = any(mode != "off" for mode in rules.values())
        self._kernel.log.use_redactor(Redactor(rules) if is_on else None)
