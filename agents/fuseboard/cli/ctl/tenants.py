"""``tenant`` and ``quota``: tenants, and the quotas that apply to them."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fuseboard.cli.ctl.client import Client, pages, part, parts
from fuseboard.cli.ctl.documents import NewRevision, Page, Quota, Tenant, Tier
from fuseboard.cli.ctl.exit_codes import Exit, Failed
from fuseboard.cli.ctl.limit_options import given_values, option
from fuseboard.cli.ctl.output import clean, moment, say, say_json, say_revision, span, table
from fuseboard.contract.limit_fields import BY_NAME, NUMBERS, QUOTAS


def listing(client: Client, given: argparse.Namespace) -> None:
    found = pages(
        client,
        "tenants",
        Page[Tenant],
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
    tenant = client.get(f"tenants/{parts(given.tenant)}", Tenant)
    if given.json:
        say_json(tenant)
        return
    say(f"{clean(tenant.key)}{f'  {clean(tenant.title)}' if tenant.title else ''}")
    standing = "suspended: every request is refused" if tenant.suspended else "its requests are counted"
    say(f"tier {tenant.tier}, version {tenant.version}, {standing}")
    if tenant.parent:
        say(f"belongs to {clean(tenant.parent)}; its requests also spend the quotas there")
    rows = [(quota.name, _numbers(quota), "its own") for quota in tenant.quotas]
    own = {quota.name for quota in tenant.quotas}
    tier = client.get(f"tiers/{part(tenant.tier)}", Tier)
    rows += [
        (quota.name, _numbers(quota), f"tier {tier.name}") for quota in tier.quotas if quota.name not in own
    ]
    table(sorted(rows), heads=("quota", "", "from"))


def set_quota(client: Client, given: argparse.Namespace) -> None:
    """Set the given values of a quota. All other values stay."""
    target = _tier_target(client, given) if given.tier else _tenant_target(client, given)
    body = _request_body(given, target)
    expected = given.if_version if given.if_version is not None else target.version
    path = f"{target.path}/quotas/{part(given.quota)}"
    made = client.write("PUT", path, NewRevision, body, version=expected)
    change = f"{_change(target.before, body)}{_until(given.lasts)}"
    say_revision(given, made, f"{given.quota} of {clean(target.owner)}: {change}")


@dataclass(frozen=True)
class _Target:
    """The owner of the quota, and the quota that applies now."""

    path: str
    owner: str
    version: int
    before: Quota | None
    #: ``before`` is the tier's quota, which the tenant's own will replace.
    inherited: bool = False


def _tier_target(client: Client, given: argparse.Namespace) -> _Target:
    path = f"tiers/{part(given.tier)}"
    tier = client.get(path, Tier)
    return _Target(path, f"tier {given.tier}", tier.version, _named(given.quota, tier.quotas))


def _tenant_target(client: Client, given: argparse.Namespace) -> _Target:
    path = f"tenants/{parts(given.tenant)}"
    tenant = client.get(path, Tenant)
    if own := _named(given.quota, tenant.quotas):
        return _Target(path, given.tenant, tenant.version, own)
    tier = client.get(f"tiers/{part(tenant.tier)}", Tier)
    before = _named(given.quota, tier.quotas)
    return _Target(path, given.tenant, tenant.version, before, inherited=True)


def _named(name: str, quotas: Sequence[Quota]) -> Quota | None:
    return next((quota for quota in quotas if quota.name == name), None)


def _request_body(given: argparse.Namespace, target: _Target) -> dict[str, Any]:
    """Return the document to send. Raises ``Failed`` when an option is missing or does not fit."""
    body = given_values(given, of=QUOTAS)
    before = target.before
    follows = given.template or (before is not None and before.template and not target.inherited)
    if not follows:
        # With a template, a number that is sent would override the template's.
        if before is not None:
            body = {name: getattr(before, name) for name in NUMBERS} | body
        if missing := [option(name) for name in NUMBERS if name not in body]:
            raise Failed(
                Exit.USAGE,
                f"{target.owner} has no quota {given.quota!r} yet: a new one needs {', '.join(missing)}",
            )
    if given.template is not None:
        body["template"] = given.template
    if given.lasts:
        if given.tier:
            raise Failed(Exit.USAGE, "only a tenant's quota can expire: leave out --for or --tier")
        body["expires_in_s"] = given.lasts
    return body | {"reason": given.reason}


def _change(before: Quota | None, body: dict[str, Any]) -> str:
    others = [f"{name} {_text(body[name])}" for name in BY_NAME if name in body and name not in NUMBERS]
    if all(name in body for name in NUMBERS):
        numbers = f"{body['limit']} per {body['window_s']} s, {body['burst']} at once"
        now = ", ".join([numbers, *others])
    else:
        own = ", ".join([*(f"{name} {body[name]}" for name in NUMBERS if name in body), *others])
        template = body.get("template") or (before.template if before is not None else "")
        now = f"with the values of template {template}, own values: {own or 'none'}"
    return f"{now} (was {_numbers(before)})" if before is not None else now


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    """The values that apply, and where each comes from."""
    answer = client.raw("GET", f"tenants/{parts(given.tenant)}/effective")
    if given.json:
        say(answer.decode())
        return
    say(msgspec.json.format(answer, indent=2).decode())
