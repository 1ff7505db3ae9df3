"""Verbs for people whose data is sealed: subject list, show, export, erase, hold."""

from __future__ import annotations

from holdfast.cli.options import (
    DEFAULTS,
    Flag,
    Options,
    command,
    confirm_removal,
    open_reading,
    open_writing,
)
from holdfast.cli.printing import print_json, print_line, print_note, print_table
from holdfast.errors import UsageError
from holdfast.render.subjects import (
    erasure_document,
    export_document,
    hold_document,
    subject_document,
    subjects_document,
)
from holdfast.render.text import clean


def list_subjects(*, options: Options = DEFAULTS) -> None:
    """List the subjects that have data in the store, and how many scopes each has.

    Keys are looked for in the folder that HOLDFAST_KEYS names, or in your own.
    """
    with open_reading(options) as store:
        subjects, keys = store.subjects(), repr(store._log.sealing.keys)
    if options.json:
        print_json(subjects_document(subjects, keys))
        return
    rows = [(one.name, one.id, str(len(one.scopes)), one.hold or "") for one in subjects]
    print_table(("subject", "id", "scopes", "held"), rows)
    print_note(f"keys: {keys}")


def show_subject(name: str, /, *, options: Options = DEFAULTS) -> None:
    """Show the scopes of a subject, and whether a hold keeps it.

    Parameters
    ----------
    name
        The name that the program gave the subject.
    """
    with open_reading(options) as store:
        subject = store.subject(name)
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

    Parameters
    ----------
    name
        The name that the program gave the subject.
    """
    with open_reading(options) as store:
        subject = store.subject(name)
        events = [
            event for scope in subject.scopes for event in store.scope(scope).history(removed=True)
        ]
        print_json(export_document(subject, events))


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
        Finish the erasures that were begun and are not done, because a process was killed.
    """
    if (name is None) != finish:
        raise UsageError("expected the name of a subject, or --finish")
    if name is not None and not yes and not confirm_removal(f"all data of {name}", options):
        print_line("nothing was erased")
        return
    with open_writing(options) as store:
        receipts = store.finish_erasures() if name is None else [store.erase(name)]
    if options.json:
        print_json(erasure_document(receipts))
        return
    for receipt in receipts:
        rows = [(one.scope, one.outcome, str(one.events), str(one.bytes)) for one in receipt.scopes]
        print_table(("scope", "outcome", "events", "bytes"), rows)
        print_line(
            f"subject {receipt.subject} is erased: {receipt.events} events, {receipt.blobs} blobs"
        )
        for left in receipt.left:
            print_line(f"still there\t{clean(left.where)}\t{clean(left.remedy)}")
        for text in receipt.beyond:
            print_note(text)


def hold_subject(
    name: str, /, *, reason: str | None = None, end: Flag = False, options: Options = DEFAULTS
) -> None:
    """Keep a subject from being erased, as the law may ask for; or end that.

    Parameters
    ----------
    name
        The name that the program gave the subject.
    reason
        Why, for those who look later.
    end
        End the hold: the subject may be erased again.
    """
    with open_writing(options) as store:
        if end:
            store.unhold_subject(name)
        else:
            store.hold_subject(name, reason)
    if options.json:
        print_json(hold_document(name, reason, is_held=not end))
    elif end:
        print_line(f"{clean(name)} is held no more")
    else:
        print_line(f"{clean(name)} is held: it cannot be erased")
        print_note(f"end it: {command('subject hold NAME --end', options.place)}")
