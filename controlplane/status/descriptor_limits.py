"""The limits that decide a descriptor, and what is left of them in their counters. Reading spends nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from controlplane.phrases import window_words
from controlplane.policies.document import environment_of, tuning_of
from controlplane.policies.limits import LimitColumns, columns_of
from controlplane.policies.models import Environment, SubjectLimit, Tenant
from controlplane.refusals.words import limit_words
from controlplane.suggestions.reading import LearnedLimit, read_learned
from controlplane.suggestions.spent_limits import read_spent
from controlplane.usage.counter_keys import counter_key
from fuseboard.contract import keys
from fuseboard.contract.addresses import counted_address
from fuseboard.contract.descriptor_words import limit_text
from fuseboard.contract.descriptors import Charge, Match, Means, Verdict, counted_key
from fuseboard.contract.endpoints import matches
from fuseboard.contract.limits import EVERY_SERVICE
from fuseboard.contract.words import Algorithm, is_subject

_CALLS = "calls"
#: Parts of a caller whose values may be invalid.
_CALLER = (Means.USER, Means.IP, Means.API_KEY)
#: Parents above a tenant that have quotas.
_MAX_PARENTS = 8


@dataclass(frozen=True, kw_only=True)
class LimitLeft:
    """One limit that decides."""

    #: The kind and the name of the thing that has it; the name is empty for the rule and for all callers.
    kind: str
    owner: str
    name: str
    #: ``600 calls per min, burst 100``.
    rate: str
    measure: str
    #: The most that can be left.
    whole: int
    #: ``None`` if Redis does not answer.
    left: int | None = None


@dataclass(frozen=True, kw_only=True)
class DescriptorLimits:
    """The limits that decide one hit of a descriptor."""

    limits: tuple[LimitLeft, ...] = ()
    #: Other facts that decide.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Counter:
    key: str
    algorithm: str
    limit: LimitLeft


def descriptor_limits(environment: str, domain: str, match: Match) -> DescriptorLimits:
    """The limits of a rule, of a tenant, of a caller or of a dependency, with what is left of each.

    Raises ``NotFound`` for an unknown environment.
    """
    counters, notes = _counters(environment_of(environment), domain, match)
    spent = read_spent({counter.key: counter.algorithm for counter in counters})
    limits = [
        replace(counter.limit, left=max(0, counter.limit.whole - spent[counter.key]))
        if counter.key in spent
        else counter.limit
        for counter in counters
    ]
    return DescriptorLimits(limits=tuple(limits), notes=tuple(notes))


def _counters(row: Environment, domain: str, match: Match) -> tuple[list[_Counter], list[str]]:
    rule = match.rule
    if rule is None:
        return [], []
    named = match.named.get(Means.TENANT)
    if named is not None and not is_subject(named):
        return [], ["No tenant can have this id: pods count it with all such ids, by the default tier."]
    tenant = named or ""
    if match.verdict is Verdict.LIMIT and rule.limit is not None:
        limit = rule.limit
        key = keys.own_limit(row.slug, counted_key(domain, match), limit.name)
        own = LimitLeft(
            kind="rule",
            owner="",
            name=rule.name,
            rate=limit_text(limit),
            measure=limit.measure,
            whole=_whole(limit.algorithm, limit.limit, limit.burst),
        )
        return [_Counter(key, limit.algorithm, own)], []
    if match.verdict is Verdict.CALL:
        # A call that begins is counted as one, whatever it costs besides.
        measures = {rule.measure} if rule.charge is Charge.AFTER else {_CALLS, rule.measure}
        found = list(_of_dependency(row, rule.dependency, measures))
        if tenant:
            found += _of_tenant(row, tenant, {}, measures, rule.dependency)
        return found, []
    if match.verdict is not Verdict.REQUEST:
        return [], []
    subject, measures = _subject(row, match.named), {rule.measure}
    notes = [
        f"The {means.value} cannot have a separate counter: pods count all such values together."
        for means, value in match.named.items()
        if means in _CALLER and not is_subject(value)
    ]
    if not tenant:
        return list(_of_callers(row, subject, measures)), notes
    known = Tenant.objects.filter(environment=row, key=tenant, deleted=False).first()
    if known is None:
        notes.append(f"The tenant is not registered: it has the default tier, {row.default_tier.name}.")
    elif known.suspended:
        notes.append("The tenant is suspended: pods refuse all its requests.")
    found = [*_of_tenant(row, tenant, subject, measures, ""), *_of_all(row, subject, measures)]
    return found, notes


def _subject(row: Environment, named: Mapping[Means, str]) -> dict[str, str]:
    """Dimension -> value, as pods count it. A value without a separate counter is left out."""
    found = {}
    for means, value in named.items():
        if means is Means.IP:
            value = counted_address(value, tuning_of(row).ipv6_prefix)
        if means is not Means.TENANT and value and (means is Means.ENDPOINT or is_subject(value)):
            found[means.value] = value
    return found


def _of_tenant(
    row: Environment, tenant: str, subject: Mapping[str, str], measures: set[str], dependency: str
) -> Iterator[_Counter]:
    """The quotas of a tenant and of its parents: their own, or else those of their tier."""
    key, seen = tenant, 0
    while key and seen <= _MAX_PARENTS:
        found = Tenant.objects.filter(environment=row, key=key, deleted=False).select_related("tier").first()
        if found is None and key != tenant:
            return
        tier = row.default_tier if found is None else found.tier
        quotas: dict[tuple[str, str], tuple[str, str, LimitColumns]] = {
            (quota.name, quota.dependency): ("tier", tier.name, quota) for quota in tier.quotas.all()
        }
        if found is not None:
            quotas |= {(quota.name, quota.dependency): ("tenant", key, quota) for quota in found.quotas.all()}
        for (name, of), (kind, owner, quota) in sorted(quotas.items()):
            if of == dependency and _binds(quota, subject, measures):
                counted = {dimension: subject[dimension] for dimension in quota.per}
                place = counter_key(row.slug, name, tenant=key, dependency=dependency, counted=counted)
                yield _counter(place, quota, kind, owner)
        key, seen = found.parent if found is not None else "", seen + 1


def _of_callers(row: Environment, subject: Mapping[str, str], measures: set[str]) -> Iterator[_Counter]:
    for limit in row.subject_limits.filter(service="").order_by("name"):
        if _binds(limit, subject, measures):
            counted = {dimension: subject[dimension] for dimension in limit.per}
            yield _counter(counter_key(row.slug, limit.name, counted=counted), limit, "callers", "")
    yield from _of_all(row, subject, measures)


def _of_all(row: Environment, subject: Mapping[str, str], measures: set[str]) -> Iterator[_Counter]:
    """The limits on all requests to every service."""
    limits: list[SubjectLimit] = list(row.subject_limits.filter(service=EVERY_SERVICE).order_by("name"))
    for limit in limits:
        if _binds(limit, subject, measures):
            yield _counter(counter_key(row.slug, limit.name, counted={}), limit, "all callers", "")


def _of_dependency(row: Environment, dependency: str, measures: set[str]) -> Iterator[_Counter]:
    """The vendor limits, as they follow their vendor."""
    for limit in read_learned(row.slug, dependency).limits:
        if limit.measure in measures:
            left = LimitLeft(
                kind="dependency",
                owner=dependency,
                name=limit.name,
                rate=_rate(limit),
                measure=limit.measure,
                whole=_whole(limit.algorithm, limit.applied, limit.burst),
            )
            yield _Counter(keys.vendor_limit(row.slug, dependency, limit.name), limit.algorithm, left)


def _rate(limit: LearnedLimit) -> str:
    count = f"{limit.applied:,} {limit.measure}"
    return f"{count} at once" if limit.is_slots else f"{count} per {window_words(limit.window_s)}"


def _binds(limit: LimitColumns, subject: Mapping[str, str], measures: set[str]) -> bool:
    """Whether a limit counts such a request: it knows the caller, the endpoint and the measure."""
    return (
        limit.measure in measures
        and all(dimension in subject for dimension in limit.per)
        and (not limit.endpoints or matches(subject.get(Means.ENDPOINT, ""), tuple(limit.endpoints)))
    )


def _counter(key: str, limit: LimitColumns, kind: str, owner: str) -> _Counter:
    left = LimitLeft(
        kind=kind,
        owner=owner,
        name=limit.name,
        rate=limit_words(columns_of(limit)),
        measure=limit.measure,
        whole=_whole(limit.algorithm, limit.limit, limit.burst),
    )
    return _Counter(key, limit.algorithm, left)


def _whole(algorithm: str, limit: int, burst: int) -> int:
    return burst if limit and algorithm == Algorithm.TOKEN_BUCKET else limit
