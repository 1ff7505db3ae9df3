"""Verbs for people whose data is held: subject list, show, export, erase, hold; erase."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.options import (
    DEFAULTS,
    Flag,
    Options,
    command,
    confirm_removal,
    open_reading,
    open_writing,
)
from holdfast.cli.printing import print_json, print_line, print_note, print_table, warn
from holdfast.core.kernel import kernel_of
from holdfast.erasure import Erasure, ErasureReceipt
from holdfast.errors import UsageError
from holdfast.render.subjects import (
    erasure_document,
    export_document,
    hold_document,
    readmitted_document,
    subject_document,
    subjects_document,
)
from holdfast.render.text import clean


def list_subjects(*, options: Options = DEFAULTS) -> None:
    """List the subjects that have data in the store, and how many scopes each has.

    Keys are looked for where HOLDFAST_KEYS says (a folder, command:…, keyring:…, sqlite:… or
    postgresql://…), or in a folder of your own.
    """
    with open_reading(options) as store:
        subjects, keys = store.subjects.list(), repr(kernel_of(store).log.sealing.keys)
    if options.json:
        print_json(subjects_document(subjects, keys))
        return
    rows = [(one.name, one.id, str(len(one.scopes)), one.hold or "") for one in subjects]
    print_table(("subject", "id", "scopes", "held"), rows)
    missing = sum(one.is_key_missing for one in subjects)
    if missing:
        warn(
            f"keys of subjects with data here are not in {keys} ({missing}): their names are not "
            "known, and nothing of them can be read; HOLDFAST_KEYS says where keys are"
        )
    print_note(f"keys: {keys}")


def show_subject(name: str, /, *, options: Options = DEFAULTS) -> None:
    """Show the scopes of a subject, and whether a hold keeps it.

    Parameters
    ----------
    name
        The name that the program gave the subject.
    """
    with open_reading(options) as store:
        subject = store.subjects.get(name)
    if options.json:
        print_json(subject_document(subject))
        return
    print_line(f"subject\t{clean(subject.name)}\t{subject.id}")
    if subject.hold is not None:
        print_line(f"held\t{clean(subject.hold)}")
    for scope in subject.scopes:
        print_line(f"scope\t{clean(scope)}")


def export_subject(name: str, /, *, options: Options = DEFAULTS) -> None:
    """Print everything that the store holds of a subject, opened, as one JSON document.

    Of a scope that is not the subject's own it prints the values that are sealed for the subject,
    and nothing else: the rest is other people's.

    Parameters
    ----------
    name
        The name that the program gave the subject.
    """
    with open_reading(options) as store:
        print_json(export_document(*kernel_of(store).part(Erasure).held_of(name)))


def erase_subject(
    name: str | None = None,
    /,
    *,
    yes: Flag = False,
    finish: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Erase a subject: destroy its key, remove its scopes and their bytes. There is no way back.

    Parameters
    ----------
    name
        The name that the program gave the subject.
    yes
        Do not ask on the terminal.
    finish
        Finish the erasures that were begun and are not done, because a process was killed or a
        scope was held.
    """
    if (name is None) != finish:
        raise UsageError("expected the name of a subject, or --finish")
    if name is not None and not yes and not confirm_removal(f"all data of {name}", options):
        print_line("nothing was erased")
        return
    with open_writing(options) as store:
        receipts = store.subjects.finish() if name is None else [store.subjects.erase(name)]
    _print_receipts(receipts, options)


def _print_receipts(receipts: Sequence[ErasureReceipt], options: Options) -> None:
    if options.json:
        print_json(erasure_document(receipts))
        return
    for receipt in receipts:
        rows = [
            (clean(one.scope), one.outcome, str(one.events), str(one.bytes), one.revisions,
             clean(one.reason))
            for one in receipt.scopes
        ]  # fmt: skip
        print_table(("scope", "outcome", "events", "bytes", "revisions", "reason"), rows)
        what = f"subject {receipt.subject}" if receipt.subject else "what was asked for"
        done = "would be erased" if receipt.is_dry_run else "is erased"
        exempt = sum(one.outcome == "exempt" for one in receipt.scopes)
        but = f"; exempt: {exempt}" if exempt else ""
        print_line(f"{what} {done}: {receipt.events} events, {receipt.blobs} blobs{but}")
        for left in receipt.left:
            print_line(f"still there\t{clean(left.where)}\t{clean(left.remedy)}")
        for text in receipt.beyond:
            print_line(f"out of reach\t{clean(text)}")


def erase(
    *,
    match: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    scope: Annotated[str | None, Parameter(name="--scope")] = None,
    ignore_case: Flag = False,
    dry_run: Flag = False,
    yes: Flag = False,
    options: Options = DEFAULTS,
) -> None:
    """Erase what was never sealed: a whole scope, or a text wherever it stands. No way back.

    Parameters
    ----------
    match
        The text to cut out of every event. `-` reads it from the standard input, so that it is in
        no list of processes and in no history of a shell.
    scope
        The scope to erase; with --match, the scope in which the text is looked for.
    ignore_case
        Match upper and lower case alike.
    dry_run
        Show what would be erased, and how; change nothing.
    yes
        Do not ask on the terminal.
    """
    if match is None and scope is None:
        raise UsageError("expected --match, --scope, or both")
    if match is None and (ignore_case or dry_run):
        raise UsageError("--ignore-case and --dry-run are for --match")
    if match == "-":
        match = sys.stdin.readline().rstrip("\r\n")
    what = f"scope {scope}" if match is None else "the text from every event"
    if not yes and not dry_run and not confirm_removal(what, options):
        print_line("nothing was erased")
        return
    with open_reading(options) if dry_run else open_writing(options) as store:
        if match is None:
            receipt = store.subjects.erase(scope=scope)
        else:
            receipt = store.subjects.erase(
                match=match, scope=scope, ignore_case=ignore_case, dry_run=dry_run
            )
    _print_receipts([receipt], options)


def hold_subject(
    name: str, /, *, reason: str | None = None, end: Flag = False, options: Options = DEFAULTS
) -> None:
    """Protect a subject from erasure, as the law may require; or end that.

    Parameters
    ----------
    name
        The name that the program gave the subject.
    reason
        Why, for those who look later.
    end
        End the hold: the subject may be erased again.
    """
    if end and reason is not None:
        raise UsageError("--reason says why a hold is set: it is not kept with --end")
    with open_writing(options) as store:
        if end:
            store.subjects.unhold(name)
        else:
            store.subjects.hold(name, reason)
    if options.json:
        print_json(hold_document(name, reason, is_held=not end))
    elif end:
        print_line(f"{clean(name)} is held no more")
    else:
        print_line(f"{clean(name)} is held: it cannot be erased")
        print_note(f"end it: {command('subject hold NAME --end', options.place)}")


def readmit_subject(name: str, /, *, options: Options = DEFAULTS) -> None:
    """Let somebody who was erased be written for again, with another key and id.

    Parameters
    ----------
    name
        The name that the program gave the subject.
    """
    with open_writing(options) as store:
        store.subjects.readmit(name)
    if options.json:
        print_json(readmitted_document(name))
    else:
        print_line(f"{clean(name)} may be written for again")
