"""Finds the tenant, pod and rule behind the digests of a token by trying the names that are known."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from controlplane.fleet.models import Event, Server
from controlplane.policies.descriptors import limits_of
from controlplane.policies.fields import limits_in
from controlplane.policies.models import Tenant
from controlplane.policies.state import EntityKey, State, names_of
from controlplane.refusals.states import States, parent_of, tier_of
from controlplane.refusals.tokens import GenuineToken
from controlplane.spending.budget_rows import OWNERS
from fuseboard.contract.budget_limits import rule_name
from fuseboard.contract.limits import service_rule

#: Rules that agents report if no limit and no dependency refused.
CAUSES = ("suspended", "queue", "latency", "pressure", "")
#: The name that agents count all invalid tenant ids under.
INVALID_TENANT = "(invalid)"
#: Names that stand for a tenant where there is none.
NO_TENANT = ("", INVALID_TENANT)
#: Pods of the last 30 days that are tried.
_MAX_PODS = 100_000


@dataclass(frozen=True)
class Named:
    """The tenant of a refusal."""

    name: str
    #: registered, removed, invalid, none or unknown
    state: str


@dataclass(frozen=True)
class Rule:
    """A rule, and where it was set."""

    dependency: str
    name: str
    #: quota, subject_limit, descriptors, vendor_limit, budget, account, dependency, pod or suspended;
    #: empty if unknown.
    kind: str = ""
    #: ``quotas`` and ``requests``: the limit in the fields of its place. Of a budget, its name.
    prefix: str = ""
    limit: str = ""
    #: The tenant that owns an inherited quota.
    owner: str = ""

    def place(self, state: State, environment: str, tenant: str) -> EntityKey | None:
        """The thing that has the rule in this state of the configuration."""
        if self.kind == "subject_limit":
            return ("environment", environment)
        if self.kind in ("vendor_limit", "dependency"):
            return ("dependency", self.dependency)
        if self.kind == "suspended":
            return ("tenant", tenant)
        if self.kind == "budget":
            return ("budget", self.limit)
        if self.kind == "account":
            return ("account", self.name)
        if self.kind != "quota":
            return None
        whose = self.owner or tenant
        own = state.get(("tenant", whose)) or {}
        if self.limit in limits_in("quotas", own):
            return ("tenant", whose)
        return ("tier", tier_of(state, environment, whose))


def find_tenant(found: GenuineToken, asked: str) -> Named:
    """The tenant of a token. ``asked`` is a name that the reader expects, such as an unregistered one."""

    def fits(name: str) -> bool:
        return found.token.is_tenant(found.key, name)

    if fits(""):
        return Named("", "none")
    if fits(INVALID_TENANT):
        return Named("", "invalid")
    rows = Tenant.objects.filter(environment=found.environment)
    for key, deleted in rows.values_list("key", "deleted").iterator(chunk_size=10_000):
        if fits(key):
            return Named(key, "removed" if deleted else "registered")
    if asked and fits(asked):
        return Named(asked, "unregistered")
    return Named("", "unknown")


def find_pod(found: GenuineToken) -> str:
    """The pod of a token; empty for a pod that left more than 30 days ago."""
    current = Server.objects.filter(environment=found.environment).values_list("name", flat=True)
    earlier = Event.objects.filter(environment=found.environment).values_list("server", flat=True).distinct()
    names = chain(current.iterator(chunk_size=10_000), earlier[:_MAX_PODS].iterator(chunk_size=10_000))
    return next((name for name in names if found.token.is_server(found.key, name)), "")


def find_rule(found: GenuineToken, states: States, who: Named) -> Rule | None:
    of_callers = chain(*(_of_callers(state, found.environment) for state in (states.then, states.now)))
    others = _candidates(found.environment, states, who.name)
    # No quota has refused a caller without a tenant. Rules for Envoy also refuse beside a tenant.
    rules = chain(of_callers, others) if who.state == "none" else chain(others, of_callers)
    return next((rule for rule in rules if found.token.is_rule(found.key, rule.dependency, rule.name)), None)


def _of_callers(state: State, environment: str) -> Iterator[Rule]:
    """The limits of callers, and those of rules for Envoy. A rule without a name shares that of others."""
    of_callers = limits_in("subject_limits", state.get(("environment", environment)) or {})
    for name, fields in of_callers.items():
        said = service_rule(name) if fields.get("service") else name
        yield Rule("", said, "subject_limit", "subject_limits", name)
    for domain in names_of(state, "descriptors"):
        for name in sorted(limits_of(state["descriptors", domain]["file"])):
            yield Rule("", name, "descriptors", limit=name)


def _candidates(environment: str, states: States, tenant: str) -> Iterator[Rule]:
    for state in (states.then, states.now):
        own = _quotas(state, environment, tenant)
        for name in own:
            yield Rule("", name, "quota", "quotas", name)
        for dependency in names_of(state, "dependency"):
            yield Rule(dependency, dependency, "dependency")
            limits = limits_in("vendor_limits", state["dependency", dependency])
            for name in limits:
                yield Rule(dependency, name, "vendor_limit", "vendor_limits", name)
            for name in own:
                yield Rule(dependency, name, "quota", "quotas", name)
        for owner, name in _inherited(state, environment, tenant):
            yield Rule("", f"{owner}/{name}", "quota", "quotas", name, owner)
        yield from _budgets(state, environment, tenant)
        # The tenant may be unknown: then the quota is one of any tier.
        for tier in names_of(state, "tier"):
            for name in limits_in("quotas", state["tier", tier]):
                yield Rule("", name, "quota", "quotas", name)
    for cause in CAUSES:
        yield Rule("", cause, "suspended" if cause == "suspended" else "pod" if cause else "")


def _budgets(state: State, environment: str, tenant: str) -> Iterator[Rule]:
    """Budgets, and accounts that their vendor does not serve: as decisions name them."""
    dependencies = ("", *sorted(names_of(state, "dependency")))
    for account in sorted(names_of(state, "account")):
        for pool in state["account", account]["pools"]:
            yield Rule(pool, account, "account")
    by_owner: dict[tuple[str, str], dict[str, str]] = {}
    for title in sorted(names_of(state, "budget")):
        fields = state["budget", title]
        kind = next(owner for owner in OWNERS if fields[owner])
        by_owner.setdefault((kind, fields[kind]), {})[rule_name(fields["instead_of"] or title)] = title
    for (kind, owner), named in by_owner.items():
        pools = (state.get(("account", owner)) or {}).get("pools", ()) if kind == "account" else ()
        for said, title in named.items():
            for pool in pools:
                yield Rule(pool, f"{owner}/{said}", "budget", limit=title)
            if kind == "dependency":
                yield Rule(owner, said, "budget", limit=title)
    for whose in (tenant, *_parents(state, tenant)):
        of_tier = by_owner.get(("tier", tier_of(state, environment, whose)), {})
        for said, title in {**of_tier, **by_owner.get(("tenant", whose), {})}.items():
            # In a chain of fallbacks, the dependency refuses what a budget of the tenant degrades.
            for dependency in dependencies:
                above = "" if whose == tenant else whose
                yield Rule(dependency, f"{above}/{said}" if above else said, "budget", "", title, above)
    # The tenant may be unknown: then the budget is one of any tier.
    for (kind, _), named in by_owner.items():
        for said, title in named.items() if kind == "tier" else ():
            yield Rule("", said, "budget", limit=title)


def _parents(state: State, tenant: str) -> list[str]:
    found: list[str] = []
    owner = parent_of(state, tenant)
    while owner and owner not in (tenant, *found):
        found.append(owner)
        owner = parent_of(state, owner)
    return found


def _quotas(state: State, environment: str, tenant: str) -> list[str]:
    tier = state.get(("tier", tier_of(state, environment, tenant))) or {}
    own = state.get(("tenant", tenant)) or {}
    return sorted({**limits_in("quotas", tier), **limits_in("quotas", own)})


def _inherited(state: State, environment: str, tenant: str) -> Iterator[tuple[str, str]]:
    for owner in _parents(state, tenant):
        for name in _quotas(state, environment, owner):
            yield owner, name
