"""The facts of all scopes: `hf.facts`."""

from __future__ import annotations

from holdfast.core.arguments import check_flag
from holdfast.core.kernel import Kernel
from holdfast.core.page import PAGE_SIZE, Page, cut
from holdfast.record.context import RecordContext, Stale
from holdfast.record.facts import Contradicted, Fact, Facts, Holds, all_facts, stale_facts

__all__ = ["Contradicted", "Fact", "Facts", "FactsRoom", "Holds", "Stale"]


class FactsRoom:
    """The facts of all scopes: claims about the outside world; `scope.facts` has those of one."""

    def __init__(self, kernel: Kernel) -> None:
        self._context = kernel.part(RecordContext)

    def __repr__(self) -> str:
        return "<FactsRoom>"

    def stale(self, *, verify: bool = True) -> list[Stale]:
        """Returns the facts that are not to be trusted: past their time, or contradicted.

        Each is asked about by its verifier, unless `verify` is False.
        """
        return list(stale_facts(self._context, verify=check_flag(verify, "verify")))

    def list(self, *, after: str | None = None, limit: int | None = PAGE_SIZE) -> Page[Fact]:
        """Returns a page of the facts of all scopes, by scope and name.

        Pass the cursor of a page as `after` to get the next page.
        """
        found = sorted(all_facts(self._context), key=_place)
        return cut("facts", found, _place, after=after, limit=limit)


def _place(fact: Fact) -> tuple[str, str]:
    return fact.scope, fact.name
