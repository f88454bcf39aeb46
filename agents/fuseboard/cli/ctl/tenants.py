"""``tenant`` and ``quota``: who may ask how much."""

import argparse

import msgspec

from fuseboard.cli.ctl.client import Client, pages, part, tenant_part
from fuseboard.cli.ctl.documents import Made, Quota, Tenant, TenantPage, Tier
from fuseboard.cli.ctl.exits import Exit, Failed
from fuseboard.cli.ctl.output import clean, moment, say, say_json, span, table

_NUMBERS = ("limit", "window_s", "burst")


def listing(client: Client, given: argparse.Namespace) -> None:
    found = pages(
        client,
        "tenants",
        TenantPage,
        "after",
        tier=given.tier,
        prefix=given.prefix,
        search=given.search,
        limit=500,
    )
    if given.json:
        for tenant in found:
            say_json(tenant)
        return
    rows = [(row.key, row.tier, _own(row), "suspended" if row.suspended else "") for row in found]
    table(rows, heads=("tenant", "tier", "own quotas", ""))


def show(client: Client, given: argparse.Namespace) -> None:
    tenant = client.get(f"tenants/{tenant_part(given.tenant)}", Tenant)
    if given.json:
        say_json(tenant)
        return
    say(f"{clean(tenant.key)}{f'  {clean(tenant.title)}' if tenant.title else ''}")
    standing = "suspended: every request is refused" if tenant.suspended else "its requests are counted"
    say(f"tier {tenant.tier}, version {tenant.version}, {standing}")
    if tenant.parent:
        say(f"belongs to {clean(tenant.parent)}, whose quotas its requests spend too")
    rows = [(quota.name, _numbers(quota), "its own") for quota in tenant.quotas]
    own = {quota.name for quota in tenant.quotas}
    tier = client.get(f"tiers/{part(tenant.tier)}", Tier)
    rows += [
        (quota.name, _numbers(quota), f"tier {tier.name}") for quota in tier.quotas if quota.name not in own
    ]
    table(sorted(rows), heads=("quota", "", "from"))


def set_quota(client: Client, given: argparse.Namespace) -> None:
    """What is not given stays as it is; so do the numbers of the quota there is.

    One that follows a template, or shall, has only what is given of its own.
    """
    if given.tier:
        path = f"tiers/{part(given.tier)}"
        tier = client.get(path, Tier)
        version, quotas, owner, of_tier = tier.version, tier.quotas, f"tier {given.tier}", False
    else:
        path = f"tenants/{tenant_part(given.tenant)}"
        tenant = client.get(path, Tenant)
        version, quotas, owner = tenant.version, tenant.quotas, given.tenant
        of_tier = all(quota.name != given.quota for quota in quotas)
        if of_tier:
            quotas = client.get(f"tiers/{part(tenant.tier)}", Tier).quotas
    before = next((quota for quota in quotas if quota.name == given.quota), None)
    body = {name: getattr(given, name) for name in _NUMBERS if getattr(given, name) is not None}
    follows = given.template or (before is not None and before.template and not of_tier)
    if before is not None and not follows:
        body = {name: getattr(before, name) for name in _NUMBERS} | body
    missing = [] if follows else [name for name in _NUMBERS if name not in body]
    if missing:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise Failed(Exit.USAGE, f"{owner} has no quota {given.quota!r} yet: a new one needs {options}")
    if given.algorithm:
        body["algorithm"] = given.algorithm
    if given.template is not None:
        body["template"] = given.template
    if given.lasts:
        if given.tier:
            raise Failed(Exit.USAGE, "only a tenant's quota can end by itself: leave --for or --tier out")
        body["expires_in_s"] = given.lasts
    body["reason"] = given.reason
    expected = given.if_version if given.if_version is not None else version
    made = client.write("PUT", f"{path}/quotas/{part(given.quota)}", Made, body, version=expected)
    if given.json:
        say_json(made)
        return
    change = f"{_change(before, body)}{_until(given.lasts)}"
    say(f"{given.quota} of {clean(owner)}: {change}, as revision {made.revision}.")


def _change(before: Quota | None, body: dict[str, object]) -> str:
    if all(name in body for name in _NUMBERS):
        now = f"{body['limit']} per {body['window_s']} s, {body['burst']} at once"
    else:
        own = ", ".join(f"{name} {body[name]}" for name in _NUMBERS if name in body) or "nothing"
        template = body.get("template") or (before.template if before is not None else "")
        now = f"as template {template} has it, of its own {own}"
    return f"{now} (was {_numbers(before)})" if before is not None else now


def _until(lasts: int) -> str:
    return f", for {span(lasts)}" if lasts else ""


def _numbers(quota: Quota) -> str:
    until = f", until {moment(quota.expires_at)}" if quota.expires_at else ""
    at_once = f", {quota.burst} at once" if quota.algorithm == "token_bucket" else f", {quota.algorithm}"
    follows = f", template {quota.template}" if quota.template else ""
    shadow = ", shadow" if quota.shadow else ""
    return f"{quota.limit} per {quota.window_s} s{at_once}{shadow}{follows}{until}"


def _own(tenant: Tenant) -> str:
    return ", ".join(f"{quota.name} {quota.limit}/{quota.window_s} s" for quota in tenant.quotas)


def effective(client: Client, given: argparse.Namespace) -> None:
    """What applies in the end, and where every value comes from."""
    answer = client.raw("GET", f"tenants/{tenant_part(given.tenant)}/effective")
    if given.json:
        say(answer.decode())
        return
    say(msgspec.json.format(answer, indent=2).decode())
