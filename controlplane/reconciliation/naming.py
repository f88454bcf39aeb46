"""Finds the limit of a counter in Redis, and what it allowed. Tenants are digests there."""

import math
import re
from functools import cached_property
from typing import NamedTuple

from controlplane.policies.document import environment_of, limit_of, policy_of
from controlplane.policies.models import Tenant, TenantQuota
from fuseboard.contract import keys
from fuseboard.contract.descriptor_words import rules_of
from fuseboard.contract.limits import service_rule
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm

_QUOTA = re.compile(
    r"(?:of:(?P<of>[0-9a-f]{20}):)?quota:(?P<name>[^:]+)(?::(?P<digest>[0-9a-f]{20}))?", re.ASCII
)
_LIMIT = re.compile(r"limit:(?P<name>[^:]+)", re.ASCII)
_OWN = re.compile(r"own:(?P<name>[^:]+)", re.ASCII)


class Named(NamedTuple):
    tenant: str = ""
    dependency: str = ""
    rule: str = ""
    #: One of several counters of the limit.
    divided: bool = False
    limit: Limit | None = None


class Names:
    """The tenants and limits of one environment, as of now. Read once for many counters."""

    def __init__(self, environment: str) -> None:
        self._slug = environment
        self._own: dict[str, dict[str, Limit]] = {}

    def of(self, domain: str, counter: str) -> Named | None:
        """``None`` for a counter that no version of the agent writes."""
        kind, _, whose = domain.partition(":")
        if match := _LIMIT.fullmatch(counter):
            return self._plain(kind, whose, match["name"])
        if match := _OWN.fullmatch(counter):
            return Named(rule=match["name"], divided=True, limit=self._of_a_rule(match["name"]))
        match = _QUOTA.fullmatch(counter)
        if match is None:
            return None
        name, digest = match["name"], match["digest"]
        if kind == "d":
            tenant = self._tenants.get(digest or "", "")
            limit = self._quota(tenant, name, whose) if digest else None
            return Named(tenant=tenant, dependency=whose, rule=name, limit=limit)
        if kind != "t":
            return None
        tenant = self._tenants.get(match["of"] or whose, "")
        return Named(
            tenant=tenant, rule=name, divided=digest is not None, limit=self._quota(tenant, name, "")
        )

    def _plain(self, kind: str, whose: str, name: str) -> Named | None:
        if kind == "d":
            owner = next((one for one in self._policy.dependencies if one.name == whose), None)
            limits = owner.vendor_limits if owner is not None else ()
            return Named(dependency=whose, rule=name, limit=_find(limits, name))
        if kind == "i" and whose == keys.ALL_CALLERS:
            return Named(rule=service_rule(name), limit=_find(self._policy.service_limits, name))
        if kind == "i":
            return Named(rule=name, divided=True, limit=_find(self._policy.subject_limits, name))
        return None

    def _of_a_rule(self, name: str) -> Limit | None:
        """The limit of a rule for Envoy, if only one limit has this name: the counter says no more."""
        paths = [path for domain in self._policy.descriptors for _, path in rules_of(domain)]
        found = {path[-1].limit for path in paths if path[-1].limit is not None}
        named = [limit for limit in found if limit.name == name]
        return named[0] if len(named) == 1 else None

    def _quota(self, tenant: str, name: str, dependency: str) -> Limit | None:
        """Its own quota, or that of its tier. A tenant that is not registered has the default tier."""
        if tenant not in self._own:
            rows = TenantQuota.objects.filter(
                tenant__environment=self._slug, tenant__key=tenant, tenant__deleted=False
            )
            self._own[tenant] = {row.name: limit_of(row) for row in rows} if tenant else {}
        own = self._own[tenant].get(name)
        if own is not None and own.dependency == dependency:
            return own
        tier = self._tiers.get(tenant, self._policy.default_tier)
        quotas = next((one.quotas for one in self._policy.tiers if one.name == tier), ())
        return next((one for one in quotas if one.name == name and one.dependency == dependency), None)

    @cached_property
    def _policy(self):  # type: ignore[no-untyped-def]  # a struct of the contract
        return policy_of(environment_of(self._slug))

    @cached_property
    def _tiers(self) -> dict[str, str]:
        rows = Tenant.objects.filter(environment=self._slug, deleted=False)
        return dict(rows.values_list("key", "tier__name"))

    @cached_property
    def _tenants(self) -> dict[str, str]:
        """Digest -> tenant, removed ones too."""
        rows = Tenant.objects.filter(environment=self._slug).values_list("key", flat=True)
        return {keys.subject_digest.__wrapped__(key): key for key in rows.iterator(10_000)}


def capacity_of(limit: Limit | None, length_s: int) -> tuple[int | None, bool]:
    """The most that a limit allows in a span, and whether its window is shorter than the span."""
    if limit is None or not length_s:
        return None, False
    if limit.period is not None:
        return limit.limit, False
    windows = max(1.0, length_s * 1000 / limit.window_ms)
    burst = limit.burst if limit.algorithm is Algorithm.TOKEN_BUCKET and limit.limit else 0
    return math.floor(limit.limit * windows) + burst, windows > 1


def _find(limits: tuple[Limit, ...], name: str) -> Limit | None:
    return next((limit for limit in limits if limit.name == name), None)
