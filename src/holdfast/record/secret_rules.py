"""The rules on secrets, of the store and of whoever opened it, that a log applies."""

from __future__ import annotations

import logging

from holdfast.core.kernel import Kernel
from holdfast.core.redaction import Mode, Redactor, check_rules, stricter
from holdfast.errors import HoldfastError
from holdfast.record.context import RecordContext
from holdfast.record.decisions import secret_rules

_logger = logging.getLogger("holdfast.secrets")


class SecretRules:
    """The stored rules combined with those given at opening: the stricter of two counts."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._given = check_rules(kernel.settings.secrets)

    def use(self) -> None:
        """Makes the log apply the present rules."""
        stored: dict[str, Mode] = {}
        try:
            stored = secret_rules(self._kernel.part(RecordContext))
        except HoldfastError as error:
            # A store that is too damaged to read its rules can still be opened. What is written is
            # then checked by the rules given at opening alone.
            _logger.warning("what the store says about secrets cannot be read: %s", error)
        rules = stricter(stored, self._given)
        is_on = any(mode != "off" for mode in rules.values())
        self._kernel.log.use_redactor(Redactor(rules) if is_on else None)
