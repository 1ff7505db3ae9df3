"""The verb for those who audit: audit export."""

from __future__ import annotations

from holdfast.audit_export import export_audit
from holdfast.cli.options import DEFAULTS, Options, command, open_reading
from holdfast.cli.printing import print_json, print_line, print_note
from holdfast.render.audit import export_document
from holdfast.render.text import clean


def export(
    file: str,
    /,
    *,
    sign: str,
    after: str | None = None,
    anchor: str | None = None,
    options: Options = DEFAULTS,
) -> None:
    """Write a signed file that says what the store holds, for check --expect.

    Parameters
    ----------
    file
        The file to write; it must not exist.
    sign
        The file of an Ed25519 private key, PEM: openssl genpkey -algorithm ed25519.
    after
        The export before this one: it becomes a part of the chain, and is verified first.
    anchor
        A command that gets the digest and prints a token, such as a time stamp of a third party.
    """
    with open_reading(options) as store:
        made = export_audit(store, file, sign=sign, after=after, anchor=anchor)
    if options.json:
        print_json(export_document(made))
        return
    print_line(f"export\t{clean(made.path)}\tnumber {made.number}")
    print_line(f"digest\t{made.digest}")
    print_line(f"signed by\t{made.key}")
    print_line(f"holds\t{made.streams} streams, {made.events} events")
    if not made.is_anchored:
        print_note("its time is that of this host and the store: --anchor has others vouch for it")
    print_note(f"verify it: {command('check --expect FILE --signed-by PUBLIC', options.place)}")
