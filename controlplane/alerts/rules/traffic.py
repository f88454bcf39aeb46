"""Alert rules about who sends how much, what vendors answer, and what is spent."""

from dataclasses import dataclass, replace
from typing import Any

from controlplane.alerts.rules import texts
from controlplane.alerts.rules.promql import IN_ENVIRONMENT, NAMES_DEPENDENCY, by_dependency
from controlplane.alerts.rules.rule import (
    EACH_BREAKER,
    Headline,
    PrometheusQuery,
    Rule,
    Scope,
    Subject,
    Threshold,
    Timing,
    jumping,
)
from controlplane.alerts.rules.thresholds import MIN_REFUSED_PER_S
from controlplane.fleet.live import DependencyFigures, RuleFigures
from controlplane.phrases import moment, number, percent, usd
from controlplane.refusals.callers import RefusedCaller
from controlplane.status.breakers import REFUSING, BreakerStatus
from controlplane.status.status import Status
from controlplane.status.watched import Spent, VendorAnswers
from controlplane.usage.budgets import WARN_PERCENT
from fuseboard.contract.budgets import MICRO_USD

#: A few answers with 429, or with 401, 402 or 403, are noise.
MIN_VENDOR_ANSWERS = 5
#: The rate below which no tenant runs away.
MIN_RUNAWAY_PER_S = 5.0
#: The samples below which a number of refusals is a guess.
MIN_CALLER_SAMPLES = 5
_CALLS = "sum by (environment, dependency) (fuseboard_fleet_calls_per_second"
_CALLS_REFUSED = f'{_CALLS}{{outcome="refused"}})'
_CALLS_ASKED = f'{_CALLS}{{outcome=~"done|refused"}})'
_NO_ANSWERS = VendorAnswers(minutes=0, calls=0)
#: Fewer are too few to fire in the ten minutes that are counted at most.
_MIN_CALLS_PER_S = MIN_VENDOR_ANSWERS / 600


@dataclass(frozen=True, kw_only=True)
class BusyTenant:
    tenant: str
    requests_per_s: float
    usual_per_s: float

    @property
    def times(self) -> float:
        return self.requests_per_s / self.usual_per_s


@dataclass(frozen=True, kw_only=True)
class Vendor:
    dependency: str
    answers: VendorAnswers
    #: Now, however they end.
    calls_per_s: float

    def share(self, answers: int) -> float:
        return answers / self.answers.calls if answers >= MIN_VENDOR_ANSWERS else 0.0

    @property
    def idle(self) -> bool:
        return self.calls_per_s < _MIN_CALLS_PER_S

    @property
    def too_many(self) -> float:
        return self.share(self.answers.too_many)

    @property
    def refused_account(self) -> float:
        return self.share(self.answers.refused_account)


@dataclass(frozen=True, kw_only=True)
class RefusedDependency:
    dependency: str
    figures: DependencyFigures
    #: `` (limit per-day, without Redis)``; empty while it is not known.
    why: str

    @property
    def share(self) -> float:
        return self.figures.refused_share if self.figures.refused_per_s >= MIN_REFUSED_PER_S else 0.0

    @property
    def part(self) -> str:
        """The part that is refused, where some calls are allowed; empty for all."""
        words = percent(self.figures.refused_share) if self.figures.calls_per_s else ""
        return words[:1].upper() + words[1:]

    @property
    def headline(self) -> Headline:
        if self.part:
            return Headline(f"{self.part} of calls to {self.dependency}", "are", f"refused{self.why}")
        return Headline(f"No call to {self.dependency}", "is", f"allowed{self.why}")


def _refused_dependencies(status: Status) -> list[RefusedDependency]:
    """The headline names a breaker that refuses, and a limit of 0 was set for that."""
    found = []
    for one in status.breakers:
        if one.effective in REFUSING or one.dependency.paused:
            continue
        by = status.facts.refused_by.get(one.name)
        why = f" ({by.words})" if by is not None else ""
        found.append(RefusedDependency(dependency=one.name, figures=one.traffic, why=why))
    return found


_EACH_HOT_KEY = Scope[RuleFigures](
    each=lambda status: (
        rule for rule in status.figures.rules if rule.tenant and rule.leased_since is not None
    ),
    key=lambda rule: f"{rule.tenant}/{rule.rule}",
    subject=lambda rule: Subject(kind="hot_keys", name=rule.tenant),
)


def _busy_tenants(status: Status) -> list[BusyTenant]:
    usual = status.facts.watched.usual_per_s
    return [
        BusyTenant(tenant=one.tenant, requests_per_s=one.requests_per_s, usual_per_s=usual[one.tenant])
        for one in status.figures.tenants
        if usual.get(one.tenant, 0.0) > 0 and one.requests_per_s >= MIN_RUNAWAY_PER_S
    ]


_EACH_BUSY_TENANT = Scope[BusyTenant](
    each=_busy_tenants,
    key=lambda one: one.tenant,
    subject=lambda one: Subject(kind="tenant", name=one.tenant),
    about="tenant",
)
_EACH_CALLER = Scope[RefusedCaller](
    each=lambda status: [one for one in status.facts.watched.callers if one.samples >= MIN_CALLER_SAMPLES],
    key=lambda one: f"{one.column}/{one.digest}",
    # The page lists callers by digest. No text names the tenant, so an erasure has nothing to find.
    subject=lambda one: Subject(kind="hot_keys"),
)
EACH_VENDOR = Scope[Vendor](
    each=lambda status: [
        Vendor(
            dependency=one.name,
            answers=status.facts.watched.vendors.get(one.name, _NO_ANSWERS),
            calls_per_s=status.figures.dependencies.get(one.name, DependencyFigures()).calls_per_s,
        )
        for one in status.facts.dependencies
    ],
    key=lambda vendor: vendor.dependency,
    subject=lambda vendor: Subject(kind="breaker", name=vendor.dependency),
    about="dependency",
)
EACH_REFUSED = Scope[RefusedDependency](
    each=_refused_dependencies,
    key=lambda one: one.dependency,
    subject=lambda one: Subject(kind="breaker", name=one.dependency),
    about="dependency",
)
_EACH_BUDGET = Scope[Spent](
    # A shadow refuses nothing: it is on the page of budgets only. A budget that only warns has to warn.
    each=lambda status: [
        one
        for one in status.facts.watched.spent
        if (one.title or not one.shadow) and one.ends > status.facts.now
    ],
    key=lambda spent: spent.key,
    subject=lambda spent: Subject(kind="budgets", name=spent.tenant),
)


def _answered(vendor: Vendor, number: int, code: str) -> str:
    of = f"{vendor.answers.calls:,} {'call' if vendor.answers.calls == 1 else 'calls'}"
    return f"{number:,} of {of} in {vendor.answers.minutes} min ended with {code}."


def _budget(spent: Spent) -> str:
    whose = " of ".join(part for part in (spent.name, spent.dependency, spent.tenant) if part)
    if spent.title:
        whose = f"budget {spent.title} of {spent.owner}"
    return f"{int(spent.share * 100)} % of {whose} is spent"


def _spent_of(spent: Spent) -> str:
    """``41,000.00 USD of 50,000.00 USD``, ``800 of 1,000 tokens``."""
    if spent.measure == MICRO_USD:
        return f"{usd(spent.spent)} of {usd(spent.limit, exact=True)}"
    return f"{spent.spent:,} of {spent.limit:,} {spent.measure}"


def _own_warning(spent: Spent, threshold: Threshold) -> Threshold:
    """A budget warns when people have said, or never."""
    if not spent.title:
        return threshold
    return replace(threshold, warning=spent.warn_percent / 100 if spent.warn_percent else None)


TRAFFIC_RULES: tuple[Rule[Any], ...] = (
    Rule[RefusedDependency](
        key="all-refused",
        describes="nearly every call to a dependency is refused, and not by its breaker",
        # Share of the calls to a dependency that pods refuse: above it, nearly none is allowed.
        # Below the rate, one refusal would count.
        threshold=jumping(critical=0.99),
        value=lambda one: one.share,
        timing=Timing(level=2, fires_after_s=30, resolves_after_s=60),
        scope=EACH_REFUSED,
        text=lambda one: one.headline.text,
        detail=lambda one: (
            f"Pods refuse {number(one.figures.refused_per_s)} calls/s, {percent(one.share)} of all."
            " Its breaker is not the cause."
        ),
        headline=lambda one: one.headline,
        weight=80,
        handled="Calls are refused, or get the fallback if there is one. Each call asks the limits again.",
        prometheus=PrometheusQuery(
            place=30,
            promql=(
                f"({_CALLS_REFUSED} / {_CALLS_ASKED} and {_CALLS_REFUSED} >= {MIN_REFUSED_PER_S:g}"
                f" unless {by_dependency('fuseboard_breaker_state')} > 0) >"
            ),
            summary="Nearly every call to a dependency is refused, and its breaker is not the cause: "
            + NAMES_DEPENDENCY,
        ),
        runbook="calls-all-refused",
    ),
    Rule[RuleFigures](
        key="hot-key",
        describes="a quota is so busy that pods lease parts of it",
        severity="warning",
        timing=Timing(level=2, fires_after_s=60, resolves_after_s=60),
        escalates=False,
        scope=_EACH_HOT_KEY,
        since=lambda rule: rule.leased_since,
        text=lambda rule: f"{rule.rule} of {rule.tenant} is a hot key",
        detail=lambda rule: (
            f"{rule.asked_per_s:.0f} calls/s, {rule.leased_per_s:.0f}/s of them from leases of pods, which"
            " spares its server of Redis. Nothing is refused because of it."
        ),
        headline=lambda rule: Headline(f"{rule.rule} of {rule.tenant}", "is", "a hot key"),
        weight=480,
        handled="Pods lease parts of the quota, so that they ask Redis less often.",
        prometheus=PrometheusQuery(
            place=110,
            promql="sum by (environment) (fuseboard_fleet_hot_keys) > 0",
            summary="{{ $value }} quotas are hot keys " + IN_ENVIRONMENT,
        ),
        runbook="hot-key",
    ),
    Rule[BusyTenant](
        key="runaway-tenant",
        describes="a tenant sends many times its usual requests",
        # Times its usual hour that a tenant sends, and the rate below which no tenant runs away.
        threshold=jumping(warning=10.0, unit="times its usual hour", scale=1.0, least=2.0, most=10_000.0),
        value=lambda one: one.times,
        timing=Timing(level=2, fires_after_s=60, resolves_after_s=60),
        needs="series",
        escalates=False,
        scope=_EACH_BUSY_TENANT,
        text=lambda one: f"{one.tenant} sends {one.times:.0f} times its usual requests",
        detail=lambda one: (
            f"{one.requests_per_s:.0f}/s now, {one.usual_per_s:.1f}/s in the median hour of the last 7 days."
        ),
        headline=lambda one: Headline(one.tenant, "sends", "many times its usual requests"),
        weight=440,
        handled="Requests over the quotas of the tenant are refused.",
        explains=("429", "hot-key", "quota"),
        runbook="runaway-tenant",
    ),
    Rule[RefusedCaller](
        key="refused-caller",
        describes="one address, login or API key is refused again and again",
        # Refusals of one caller in 10 minutes, estimated from samples, and the samples below which
        # that is a guess.
        threshold=jumping(
            warning=600.0,
            unit="refusals in 10 minutes",
            scale=1.0,
            least=10.0,
            most=1_000_000.0,
        ),
        value=lambda one: one.refused,
        timing=Timing(level=1, fires_after_s=60, resolves_after_s=300),
        needs="series",
        scope=_EACH_CALLER,
        text=lambda one: f"One {one.kind} is refused again and again",
        detail=lambda one: (
            f"About {one.refused:,.0f} refusals with this {one.kind} in 10 minutes,"
            f" estimated from {one.samples:,} samples; pods may have counted more."
            f" Hot keys lists its tenant and limit beside the digest {one.digest}."
        ),
        headline=lambda one: Headline(f"One {one.kind}", "is", "refused again and again"),
        weight=230,
        handled="Requests over the limit are refused, and cost no call to a vendor.",
        runbook="refused-caller",
    ),
    Rule[BreakerStatus](
        key="open-share",
        describes="a breaker was open for a large part of the last hour",
        # Share of the last hour in which a breaker was open: it opens again and again, or for long.
        threshold=jumping(warning=0.1, critical=0.5),
        value=lambda breaker: breaker.open_share,
        names_thresholds=True,
        timing=Timing(level=2, fires_after_s=0, resolves_after_s=60),
        needs_gateway=False,
        scope=EACH_BREAKER,
        text=lambda breaker: f"{breaker.name} was open for {breaker.open_share * 100:.0f} % of the last hour",
        detail=texts.how_open,
        prometheus=PrometheusQuery(
            place=100,
            promql=by_dependency("fuseboard_breaker_open_1h_ratio") + " >",
            summary="The breaker was open for {{ $value | humanizePercentage }} of the last hour: "
            + NAMES_DEPENDENCY,
        ),
        runbook="breaker-open",
        own_runbook=lambda breaker: breaker.dependency.runbook,
    ),
    Rule[Vendor](
        key="vendor-429",
        describes="a dependency answers calls with 429",
        # Share of the calls that a vendor answers with 429, or with 401, 402 or 403. A few are
        # noise.
        threshold=jumping(warning=0.01, critical=0.1),
        value=lambda vendor: vendor.too_many,
        names_thresholds=True,
        timing=Timing(level=1, fires_after_s=60, resolves_after_s=120),
        needs="series",
        scope=EACH_VENDOR,
        idle=lambda vendor: vendor.idle,
        text=lambda vendor: f"{vendor.dependency} answers 429",
        detail=lambda vendor: _answered(vendor, vendor.answers.too_many, "429"),
        headline=lambda vendor: Headline(vendor.dependency, "answers", "429"),
        weight=270,
        explains=("backlog-full", "bulkhead", "bulkhead-queue", "near", "retry-budget"),
        runbook="vendor-429",
    ),
    Rule[Vendor](
        key="vendor-auth",
        describes="a dependency answers calls with 401, 402, or 403",
        # Share of the calls that a vendor answers with 429, or with 401, 402 or 403. A few are
        # noise.
        threshold=jumping(warning=0.01, critical=0.1),
        value=lambda vendor: vendor.refused_account,
        names_thresholds=True,
        timing=Timing(level=2, fires_after_s=60, resolves_after_s=120),
        needs="series",
        scope=EACH_VENDOR,
        idle=lambda vendor: vendor.idle,
        text=lambda vendor: f"{vendor.dependency} refuses our credentials",
        detail=lambda vendor: (
            f"{_answered(vendor, vendor.answers.refused_account, '401, 402, or 403')}"
            " Retries do not help: a person must act."
        ),
        headline=lambda vendor: Headline(vendor.dependency, "refuses", "our credentials"),
        weight=260,
        explains=("near", "retry-budget"),
        runbook="vendor-401-403",
    ),
    Rule[Spent](
        key="quota",
        describes="a quota or a budget with a calendar period is nearly spent, or spent",
        # Share of a quota, or of a budget, that is spent.
        threshold=Threshold(
            warning=WARN_PERCENT / 100,
            critical=1.0,
            compare="at least",
            least=0.01,
            most=10.0,
        ),
        value=lambda spent: spent.share,
        names_thresholds=True,
        timing=Timing(level=1, fires_after_s=60, resolves_after_s=120),
        needs="budgets",
        scope=_EACH_BUDGET,
        text=_budget,
        own_threshold=_own_warning,
        detail=lambda spent: f"{_spent_of(spent)} until {moment(spent.ends)}.",
        headline=lambda spent: Headline(
            f"{int(spent.share * 100)} % of {spent.title or spent.name} of {spent.owner}", "is", "spent"
        ),
        weight=450,
        handled="What is spent refuses further calls until its period ends, unless it only counts or warns.",
        prometheus=PrometheusQuery(
            place=330,
            promql="max by (environment, tenant, dependency, quota) (fuseboard_quota_used_ratio) >=",
            warning=(
                "max by (environment, tenant, dependency, quota)"
                ' (fuseboard_quota_used_ratio{state=~"warn|over"})'
            ),
            summary=(
                "{{ $value | humanizePercentage }} is spent of {{ $labels.quota }}"
                " of {{ $labels.tenant }}{{ $labels.dependency }} " + IN_ENVIRONMENT
            ),
        ),
        runbook="too-many-429s",
    ),
)
