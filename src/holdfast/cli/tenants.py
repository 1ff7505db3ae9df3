"""Verbs for tenants, with the rights of an administrator: tenant create, list, show, remove."""

from __future__ import annotations

from holdfast.cli.options import (
    DEFAULTS,
    Flag,
    Options,
    Words,
    command,
    confirm_removal,
    refuse_memory,
)
from holdfast.cli.printing import print_json, print_line, print_note, print_table
from holdfast.core.limits import Quota
from holdfast.errors import UsageError
from holdfast.names import without_secrets
from holdfast.render.tenants import (
    login_document,
    removed_tenant_document,
    shown_tenant_document,
    tenant_document,
    tenants_document,
)
from holdfast.render.text import clean, show_time
from holdfast.tenants import NewTenant, Tenant, Tenants


def create(name: str, /, *, quota: Words = None, options: Options = DEFAULTS) -> None:
    """Make a tenant with a login of its own; print the URL, which makes its store when opened.

    Parameters
    ----------
    name
        The tenant's name: any text. On a server others see a random id in its place.
    quota
        How much each scope may hold: "conversation/*:events=1000,bytes=5MB"; may be given again.
    """
    with _tenants(options) as tenants:
        made = tenants.create(name, quotas=_quotas(quota))
    _print_login(made, options)


def list_tenants(*, options: Options = DEFAULTS) -> None:
    """List the tenants; with a tenant's own login, that one alone."""
    with _tenants(options) as tenants:
        found = tenants.list()
    if options.json:
        print_json(tenants_document(found))
        return
    rows = [(one.name, one.id, one.state, show_time(one.made_at)) for one in found]
    if rows:
        print_table(("tenant", "id", "", "made"), rows)
    else:
        print_note("no tenants")


def show(name: str, /, *, options: Options = DEFAULTS) -> None:
    """Show a tenant: its quotas, and any problem that keeps it less apart than it should be.

    Parameters
    ----------
    name
        The tenant's name.
    """
    with _tenants(options) as tenants:
        tenant, problems = tenants.get(name), tenants.problems(name)
    if options.json:
        print_json(shown_tenant_document(tenant, problems))
        return
    _print_tenant(tenant)
    for problem in problems:
        print_line(f"problem\t{clean(problem)}")


def change(name: str, /, *, quota: Words = None, options: Options = DEFAULTS) -> None:
    """Replace the quotas of a tenant; without --quota, remove them.

    Parameters
    ----------
    name
        The tenant's name.
    quota
        How much each scope may hold: "conversation/*:events=1000,bytes=5MB"; may be given again.
    """
    with _tenants(options) as tenants:
        tenant = tenants.set_quotas(name, _quotas(quota))
    if options.json:
        print_json(tenant_document(tenant))
        return
    _print_tenant(tenant)


def renew(name: str, /, *, options: Options = DEFAULTS) -> None:
    """Give a tenant a new password; the old one stops working.

    Parameters
    ----------
    name
        The tenant's name.
    """
    with _tenants(options) as tenants:
        renewed = tenants.renew(name)
    _print_login(renewed, options)


def remove(
    name: str, /, *, yes: Flag = False, whole: Flag = False, options: Options = DEFAULTS
) -> None:
    """Erase a tenant: its login, its keys and all that it stored. There is no way back.

    Parameters
    ----------
    name
        The tenant's name.
    yes
        Do not ask on the terminal.
    whole
        Rewrite the tables of a server, so that no old version of a row stays; this locks them.
    """
    with _tenants(options) as tenants:
        tenant = tenants.get(name)
        if not yes and not confirm_removal(f"tenant {name} and everything of it", options):
            print_line("nothing was removed")
            return
        receipt = tenants.remove(tenant.name, whole=whole, store_key=options.store_key)
    if options.json:
        print_json(removed_tenant_document(name, receipt))
        return
    counted = ", ".join(f"{count} {what}" for what, count in receipt.counts.items())
    print_line(f"tenant {clean(name)} is removed: {counted}, {receipt.keys} keys")
    for left in receipt.left:
        print_line(f"still there\t{clean(left.where)}\t{clean(left.remedy)}")
    for text in receipt.beyond:
        print_note(text)


def _tenants(options: Options) -> Tenants:
    if options.tenant is not None:
        raise UsageError(
            "--tenant names the tenant of a store, and these verbs are about all of them",
            hint="leave it out, and HOLDFAST_TENANT too",
        )
    refuse_memory(options.place)
    return Tenants(options.place)


def _quotas(words: list[str] | None) -> list[Quota]:
    return [_quota(word) for word in words or ()]


def _quota(word: str) -> Quota:
    """Returns a quota from what was typed: a pattern, then limits."""
    scopes, _, limits = word.rpartition(":")
    found: dict[str, str] = {}
    for one in limits.split(","):
        name, _, value = one.partition("=")
        found[name] = value
    if not scopes or not found.keys() <= {"events", "bytes"}:
        raise UsageError(f'--quota is "SCOPES:events=N,bytes=SIZE", found "{word}"')
    events = found.get("events")
    if events is not None and not events.isdecimal():
        raise UsageError(f'--quota: events is a whole number, found "{events}"')
    return Quota(scopes, None if events is None else int(events), found.get("bytes"))


def _print_tenant(tenant: Tenant) -> None:
    print_line(f"tenant\t{clean(tenant.name)}\t{tenant.id}\t{tenant.state}")
    for one in tenant.quotas:
        limits = (f"{one.events} events" * (one.events is not None), str(one.bytes or ""))
        print_line(f"quota\t{clean(one.scopes)}\t{' '.join(filter(None, limits))}")


def _print_login(made: NewTenant, options: Options) -> None:
    if options.json:
        print_json(login_document(made))
        return
    _print_tenant(made.tenant)
    print_line(f"url\t{clean(made.url)}")
    if without_secrets(made.url) != made.url:
        print_note("it has the password, which is kept nowhere: note it now")
    else:
        print_note(f"see its store: {command('--tenant NAME status', options.place)}")
