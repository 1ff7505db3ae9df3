"""The people and others whose data a store holds: `hf.subjects`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from msgspec.structs import replace

from holdfast.backends.protocol import Leftover
from holdfast.core.arguments import check_flag, check_seconds, check_text
from holdfast.core.kernel import Kernel
from holdfast.erasure import ErasedScope, Erasure, ErasureReceipt, Subject
from holdfast.errors import HoldfastError, UsageError
from holdfast.names import check_name, check_scope_name
from holdfast.renamed import NotCalled
from holdfast.scope import Scope, Scopes
from holdfast.views.kept import KeptViews

__all__ = ["ErasedScope", "ErasureReceipt", "Subject", "SubjectsRoom"]

P = ParamSpec("P")


def _files_follow(
    erase: Callable[Concatenate[SubjectsRoom, P], ErasureReceipt],
) -> Callable[Concatenate[SubjectsRoom, P], ErasureReceipt]:
    """Wraps an erasure so that the view files of this handle are written again after it.

    They are also synchronised before it: an edit imported afterwards could bring back what was
    erased. A file that cannot be written is listed in the receipt as left; it stops no erasure.
    """

    @functools.wraps(erase)
    def erased(self: SubjectsRoom, /, *given: P.args, **more: P.kwargs) -> ErasureReceipt:
        if more.get("dry_run"):
            return erase(self, *given, **more)
        self._write_files()
        receipt = erase(self, *given, **more)
        return replace(receipt, left=[*receipt.left, *self._write_files()])

    return erased


class SubjectsRoom(NotCalled):
    """The subjects whose data is in the store, and how to erase it for good."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._erasure = kernel.part(Erasure)
        self._scopes = kernel.part(Scopes)

    def __repr__(self) -> str:
        return "<SubjectsRoom>"

    def list(self) -> list[Subject]:
        """Returns the subjects that have data in the store and were not erased, by name."""
        return self._erasure.subjects()

    def get(self, name: str) -> Subject:
        """Returns a subject by name: its random id, its scopes, and whether it is held.

        Raises NotFoundError if there is no such subject.
        """
        return self._erasure.subject(check_name(name, "subject"))

    def pseudonym(self, text: str) -> str:
        """Makes an id for a scope from any text, such as an e-mail address.

        It is a digest with a secret of the key store, so nobody without that can guess the text.
        The same text and the same key store give the same pseudonym.
        """
        return self._kernel.log.sealing.keys.pseudonym(
            check_text(text, "what a pseudonym is made from")
        )

    def hold(self, name: str, reason: str | None = None) -> None:
        """Keeps a subject from being erased until `unhold`: a legal hold."""
        text = check_text(reason, "reason", optional=True)
        self._erasure.hold(check_name(name, "subject"), text or "")

    def unhold(self, name: str) -> None:
        """Ends a legal hold of a subject."""
        self._erasure.release(check_name(name, "subject"))

    @_files_follow
    def erase(
        self,
        subject: str | None = None,
        *,
        scope: Scope | str | None = None,
        match: str | None = None,
        ignore_case: bool = False,
        dry_run: bool = False,
        wait_s: float = 60.0,
    ) -> ErasureReceipt:
        """Erases a subject, a scope, or a text for good, and returns a receipt.

        With `subject`, its key is destroyed, its scopes are removed and their bytes go. From then
        on nothing of it can be read, here or in any copy, backup or export made earlier. It cannot
        be undone. Raises HeldError if the subject is held, and NotFoundError if there is no such
        subject. One of its scopes that is held is exempt, and the key stays for it, until the hold
        has ended and the call is made again. If the process is killed, do the same, or call
        `finish`. While a `retention.run` is at work it waits up to `wait_s` seconds.

        With `scope`, it removes one scope that was never sealed, and its bytes go at once. Copies
        that were made earlier still have them. Raises NotFoundError if there is no such scope, and
        HeldError if it is held; for one that was erased before it returns the receipt of then.

        With `match`, it cuts a text out of everything that was never sealed, or only out of the
        `scope` given with it: out of values, keys and words of paths, in any event. The rest of
        each event stays. The text itself is stored nowhere. `dry_run` returns what would go, and
        changes nothing. A scope that is held is exempt. Raises UsageError if an unfinished run has
        the text.
        """
        check_seconds(wait_s, "wait_s", above=-1e-9)
        check_flag(ignore_case, "ignore_case")
        check_flag(dry_run, "dry_run")
        if match is not None and subject is None:
            name = scope.name if isinstance(scope, Scope) else scope
            name = None if name is None else check_scope_name(name)
            return self._erasure.erase_match(
                match, ignore_case=ignore_case, scope=name, dry_run=dry_run, wait_s=wait_s
            )
        if (subject is None) == (scope is None) or match is not None:
            raise UsageError("expected the name of a subject, a scope, or a text as match")
        if ignore_case or dry_run:
            raise UsageError("ignore_case and dry_run are for a match: hf.subjects.erase(match=…)")
        if scope is not None:
            one = scope if isinstance(scope, Scope) else self._scopes.scope(scope)
            return self._erasure.erase_scope(one.name, self._remove, wait_s=wait_s)
        return self._erasure.erase(check_name(subject, "subject"), wait_s=wait_s)

    def finish(self, *, wait_s: float = 60.0) -> list[ErasureReceipt]:
        """Finishes what a killed process or a hold left half erased, and returns the receipts.

        If one of them cannot be finished, the others are, and then it raises. The view files of
        this handle are written again, as after `erase`.
        """
        check_seconds(wait_s, "wait_s", above=-1e-9)
        if not self._erasure.is_pending():
            return []
        self._write_files()
        try:
            done = self._erasure.finish(self._remove, wait_s=wait_s)
        except HoldfastError:
            self._write_files()  # the others were finished
            raise
        left = self._write_files()
        return [replace(receipt, left=[*receipt.left, *left]) for receipt in done]

    def readmit(self, name: str) -> None:
        """Lets somebody who was erased be written for again, as another subject of that name.

        Until then every write with that `subject` raises ErasedError, in all stores that have the
        key store. Nothing that was erased comes back. Raises NotFoundError if nobody of that name
        was erased, and UsageError while the erasure is not finished, here or in another store.
        """
        self._erasure.readmit(check_name(name, "subject"))

    def _remove(self, scope: str) -> int:
        return self._scopes.scope(scope).remove()

    def receipts(self) -> list[dict[str, Any]]:
        """Returns the receipts of all erasures, by the id of the subject."""
        return self._erasure.receipts()

    def _write_files(self) -> list[Leftover]:
        """Writes the view files of this handle; returns those that could not be written."""
        kept = self._kernel.made(KeptViews)
        return [] if kept is None else kept.write_all()
