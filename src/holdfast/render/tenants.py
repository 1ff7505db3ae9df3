"""Documents of tenants: who there is, a new login, what was removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.render.text import time_text
from holdfast.tenants import NewTenant, Tenant, TenantReceipt


def tenant_document(tenant: Tenant) -> dict[str, Any]:
    """Returns a tenant with its quotas."""
    return {
        "tenant": tenant.name,
        "id": tenant.id,
        "made_at": time_text(tenant.made_at),
        "state": tenant.state,
        "quotas": [
            {"scopes": one.scopes, "events": one.events, "bytes": one.bytes}
            for one in tenant.quotas
        ],
    }


def tenants_document(tenants: Sequence[Tenant]) -> dict[str, Any]:
    """Returns the tenants of a place, by name."""
    return {"tenants": [tenant_document(one) for one in tenants]}


def shown_tenant_document(tenant: Tenant, problems: Sequence[str]) -> dict[str, Any]:
    """Returns a tenant, and the problems that keep it less apart than it should be."""
    return {**tenant_document(tenant), "problems": list(problems)}


def login_document(made: NewTenant) -> dict[str, Any]:
    """Returns a tenant with the URL that its application opens, password included."""
    return {**tenant_document(made.tenant), "url": made.url}


def removed_tenant_document(name: str, receipt: TenantReceipt) -> dict[str, Any]:
    """Returns the receipt of a tenant that was removed."""
    return {
        "tenant": name,
        "id": receipt.tenant,
        "removed_at": time_text(receipt.removed_at),
        "counts": receipt.counts,
        "keys": receipt.keys,
        "left": [{"where": one.where, "remedy": one.remedy} for one in receipt.left],
        "beyond": list(receipt.beyond),
    }
