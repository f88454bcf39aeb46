"""The meaning of a refusal token: then, now, and who changed the rule in between."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

from controlplane.breakers.models import Transition
from controlplane.phrases import amount_words, window_words
from controlplane.policies.fields import Fields, different, limits_in
from controlplane.policies.history import Changed
from controlplane.policies.limits import full_columns
from controlplane.policies.models import Change, Revision
from controlplane.policies.state import EntityKey, State
from controlplane.refusals.names import Named, Rule, find_pod, find_rule, find_tenant
from controlplane.refusals.states import States, fields_of, read_states, tier_of
from controlplane.refusals.tokens import GenuineToken, find_token
from controlplane.refusals.words import (
    budget_words,
    cause_words,
    limit_words,
    mode_words,
    rate_of,
    reason_words,
    wait_words,
)
from fuseboard.contract.limits import is_service_rule
from fuseboard.contract.words import FailurePolicy, Mode, Reason

#: Changes since then that are listed, newest first, and those that are looked at for each thing.
_SHOWN = 5
_READ = 200

#: Reasons that a limit was spent. Without Redis, the part of a pod was.
_SPENT = (Reason.QUOTA, Reason.VENDOR_LIMIT, Reason.CONCURRENCY)
#: Settings of a dependency that a reason depends on.
_SETTINGS = {
    Reason.BULKHEAD_FULL: ("protection.bulkhead",),
    Reason.QUEUE_TIMEOUT: ("protection.bulkhead",),
    Reason.LOCAL_RATE: ("protection.local_rate",),
}


@dataclass(frozen=True, kw_only=True)
class ThenOrNow:
    """The rule at one revision."""

    revision: int
    #: In words; empty if it does not exist, or is not a limit.
    limit: str = ""
    #: The thing that has it: tier, tenant, dependency or environment; empty if there is no rule.
    kind: str = ""
    name: str = ""
    tier: str = ""
    suspended: bool = False
    #: Requests per second that a limit of requests allows in the long run; ``None`` for other rules.
    per_s: float | None = None
    #: The number of the limit, and what pods do with it without Redis; 0 for what is not a limit.
    most: int = 0
    #: A limit of calendar days or months, of which pods divide what is left.
    calendar: bool = False
    policy: str = ""

    @property
    def divided(self) -> bool:
        """Whether each pod gets the same part of it without Redis."""
        return bool(self.most) and self.policy != FailurePolicy.RESERVED and not self.calendar


@dataclass(frozen=True, kw_only=True)
class ChangeSince:
    """One later revision that changed the rule, or whose rule applies."""

    revision: int
    at: datetime
    by: str
    reason: str
    kind: str
    name: str
    fields: dict[str, tuple[object, object]]
    #: The whole thing, which words about one field need.
    before: Fields | None
    after: Fields | None

    def as_changed(self) -> Changed:
        """Only the fields that matter, with the rest of their limit."""
        limits = {field.rpartition(".")[0] for field in self.fields}

        def part(state: Fields | None) -> Fields | None:
            if state is None:
                return None
            return {
                field: value
                for field, value in state.items()
                if field in self.fields or field.rpartition(".")[0] in limits - {""}
            }

        return Changed(self.kind, self.name, part(self.before), part(self.after))


@dataclass(frozen=True, kw_only=True)
class BudgetLeft:
    """A budget now: in the unit of its measure."""

    measure: str
    amount: int
    #: ``None`` while Redis does not answer.
    spent: int | None
    #: The end of its present period.
    ends: datetime

    @property
    def words(self) -> str:
        """``12.50 USD of 50.00 USD left until 2026-12-01 00:00 UTC``."""
        end = f"until {self.ends:%Y-%m-%d %H:%M} UTC"
        if self.spent is None:
            return f"not known, because Redis does not answer; it ends {end.removeprefix('until ')}"
        left, whole = max(0, self.amount - self.spent), self.amount
        return f"{amount_words(left, self.measure)} of {amount_words(whole, self.measure)} left {end}"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    environment: str
    service: str
    at: datetime
    reason: Reason | None
    mode: Mode | None
    retry_after_ms: int
    rule: Rule | None
    tenant: Named
    #: Empty if the name of the pod is not known any more.
    pod: str
    then: ThenOrNow
    now: ThenOrNow
    #: Postgres has the revision: it does not after it was restored from an earlier backup.
    known_revision: bool
    changes: list[ChangeSince]
    #: The transition of the breaker before the refusal.
    transition: Transition | None = None
    #: The most pods that were heard in the minutes before; ``None`` if nothing is stored of that time.
    pods: int | None = None
    #: The budget that refused, as it is now; ``None`` if none did, or it is gone.
    left: "BudgetLeft | None" = None

    @property
    def headline(self) -> str:
        """One sentence, without the time."""
        if self.alone:
            return f"Refused by {self._rule_words()}: {self._share_words()}, was spent."
        if self.rule is not None and self.rule.kind == "account":
            return f"Refused by {self._rule_words()}: its vendor did not serve it."
        return f"Refused by {self._rule_words()}: {reason_words(self.reason)}{self._cause()}."

    @property
    def sentences(self) -> list[str]:
        """Everything that is known, for a ticket."""
        return list(self._sentences())

    @property
    def alone(self) -> bool:
        """Whether the pod decided locally: its own part of the limit was spent, not the limit."""
        return self.mode in (Mode.LOCAL, Mode.DRILL) and self.reason in _SPENT and self.then.most > 0

    @property
    def share(self) -> float | None:
        """About the part of the limit that the pod could spend, where that is known."""
        if not self.alone or not self.pods or not self.then.divided:
            return None
        return self.then.most / self.pods

    @property
    def line_per_s(self) -> float | None:
        """The rate that refused: of the pod's local share, or of the limit."""
        if self.then.per_s is None or self.share is None:
            return self.then.per_s
        return self.then.per_s / (self.pods or 1)

    def _share_words(self) -> str:
        kind = "reserved" if self.then.policy == FailurePolicy.RESERVED else "local"
        limit = self.then.limit.split(", burst ")[0].removesuffix(", only counted")
        if self.share is None:
            return f"this pod's {kind} share of {limit}"
        part = f"about {int(self.share):,}" if self.share >= 1 else "less than 1"
        return f"this pod's {kind} share, {part} of {limit}"

    def _rule_words(self) -> str:
        rule = self.rule
        if rule is None:
            return "a rule that is not known any more"
        place = f" of {self.then.kind} {self.then.name}" if self.then.name else ""
        if rule.kind == "quota":
            on = f" on calls to {rule.dependency}" if rule.dependency else ""
            return f'quota "{rule.limit}"{place}{on}'
        if rule.kind == "subject_limit":
            if is_service_rule(rule.name):
                return f'limit "{rule.limit}" of all callers'
            return f'limit "{rule.limit}" for callers without a tenant'
        if rule.kind == "descriptors":
            return f'limit "{rule.limit}" of a rule for Envoy'
        if rule.kind == "vendor_limit":
            return f'vendor limit "{rule.limit}" of {rule.dependency}'
        if rule.kind == "dependency":
            return f"dependency {rule.dependency}"
        if rule.kind == "budget":
            return f'budget "{rule.limit}"'
        if rule.kind == "account":
            return f"account {rule.name}"
        return "the suspension of the tenant" if rule.kind == "suspended" else "the pod"

    def _cause(self) -> str:
        cause = cause_words(self.rule.name) if self.rule else ""
        return f" ({cause})" if cause and self.reason is Reason.SHED else ""

    def _sentences(self) -> Iterator[str]:
        yield f"{self.at:%Y-%m-%d %H:%M:%S}.{self.at.microsecond // 1000:03d} UTC. {self.headline}"
        yield self._tenant_words()
        if self.then.limit:
            yield f"Then: {self.then.limit} (revision {self.then.revision})."
        yield from self._now_words()
        if self.left is not None:
            yield f"Now: {self.left.words}."
        pod = f"pod {self.pod}" if self.pod else "a pod whose name is not known any more"
        how = mode_words(self.mode)
        yield f"On {pod} of service {self.service}{', ' + how if how else ''}."
        if self.retry_after_ms:
            yield f"Asking again was possible after {wait_words(self.retry_after_ms)}."
        if not self.known_revision:
            yield f"Revision {self.then.revision} is not in the history: values of then may be wrong."

    def _tenant_words(self) -> str:
        tier = f", in tier {self.then.tier} then" if self.then.tier else ""
        if self.tenant.state == "none":
            return "The caller had no tenant."
        if self.tenant.state == "invalid":
            return "The tenant id that the service passed was invalid."
        if self.tenant.state == "unknown":
            return "The tenant is not registered; send the id that the customer uses to check it."
        state = "" if self.tenant.state == "registered" else f" ({self.tenant.state})"
        return f"Tenant {self.tenant.name}{state}{tier}."

    def _now_words(self) -> Iterator[str]:
        if not self.then.limit:
            return
        last = self.changes[0] if self.changes else None
        since = ""
        if last is not None:
            why = f', "{last.reason}"' if last.reason else ""
            since = f", since {last.at:%Y-%m-%d %H:%M} UTC by {last.by}{why} (revision {last.revision})"
        if not self.now.limit:
            yield f"Now: the rule does not exist{since}."
        elif (self.now.limit, self.now.kind, self.now.name) == (
            self.then.limit,
            self.then.kind,
            self.then.name,
        ):
            yield "Now: the same."
        else:
            yield f"Now: {self.now.limit}, from {self.now.kind} {self.now.name}{since}."


def explain(text: str, environments: Collection[str], now: datetime, *, tenant: str = "") -> Explanation:
    """Explain a token of one of these environments. ``tenant`` is an id that the reader expects.

    Raises ``NotOurToken`` or ``ExpiredToken``.
    """
    found = find_token(text, environments, now)
    who = find_tenant(found, tenant)
    states = read_states(found.environment, found.token.revision, who.name)
    rule = find_rule(found, states, who)
    head = Revision.objects.filter(environment=found.environment).order_by("-number").first()
    return Explanation(
        environment=found.environment,
        service=found.service,
        at=found.at,
        reason=found.token.reason,
        mode=found.token.mode,
        retry_after_ms=found.token.retry_after_ms,
        rule=rule,
        tenant=who,
        pod=find_pod(found),
        then=_at(states.then, found.token.revision, rule, found, who),
        now=_at(states.now, head.number if head else 0, rule, found, who),
        known_revision=Revision.objects.filter(
            environment=found.environment, number=found.token.revision
        ).exists(),
        changes=_changes(found, states, rule, who)[:_SHOWN],
        transition=_transition(found, rule),
    )


def _at(state: State, revision: int, rule: Rule | None, found: GenuineToken, who: Named) -> ThenOrNow:
    tier = tier_of(state, found.environment, who.name) if who.state not in ("none", "invalid") else ""
    suspended = bool(fields_of(state, ("tenant", who.name)).get("suspended", False)) if who.name else False
    place = rule.place(state, found.environment, who.name) if rule else None
    if rule is None or place is None or place not in state:
        return ThenOrNow(revision=revision, tier=tier, suspended=suspended)
    columns = _columns(state, rule, place)
    full = full_columns(columns) if columns else {}
    return ThenOrNow(
        revision=revision,
        most=full.get("limit", 0),
        calendar=bool(full.get("period")),
        policy=full.get("failure_policy", ""),
        limit=_rule_setting(state, rule, place, found.token.reason)
        if columns is None
        else limit_words(columns),
        kind=place[0],
        name=place[1],
        tier=tier,
        suspended=suspended,
        per_s=rate_of(columns),
    )


def _columns(state: State, rule: Rule, place: EntityKey) -> Fields | None:
    """The columns of the limit, empty if it does not exist; ``None`` if the rule is not a limit."""
    return limits_in(rule.prefix, state[place]).get(rule.limit, {}) if rule.prefix else None


def _rule_setting(state: State, rule: Rule, place: EntityKey, reason: Reason | None) -> str:
    """The budget, or the bound of a pod's calls, if a part of its protection refused."""
    fields = state[place]
    if rule.kind == "budget":
        return budget_words(fields)
    if reason in (Reason.BULKHEAD_FULL, Reason.QUEUE_TIMEOUT):
        most = fields.get("protection.bulkhead.max_concurrent")
        return f"{most:,} calls at once in each pod" if isinstance(most, int) else ""
    if reason is Reason.LOCAL_RATE:
        limit, window = (fields.get(f"protection.local_rate.{each}") for each in ("limit", "window_ms"))
        if isinstance(limit, int) and isinstance(window, int):
            every = window_words(window // 1000) if window % 1000 == 0 else f"{window} ms"
            return f"{limit:,} calls per {every} in each pod"
    return ""


def _changes(found: GenuineToken, states: States, rule: Rule | None, who: Named) -> list[ChangeSince]:
    if rule is None:
        return []
    things = {
        place
        for state in (states.then, states.now)
        if (place := rule.place(state, found.environment, who.name)) is not None
    }
    if who.name:
        things.add(("tenant", who.name))
    changes: list[ChangeSince] = []
    for kind, name in things:
        rows = Change.objects.filter(
            revision__environment=found.environment,
            revision__number__gt=found.token.revision,
            kind=kind,
            name=name,
        ).select_related("revision")
        for row in rows.order_by("-revision__number")[:_READ]:
            fields = {
                field: values
                for field, values in different(row.before, row.after).items()
                if _matters(field, rule, kind, found.token.reason)
            }
            if fields:
                changes.append(
                    ChangeSince(
                        revision=row.revision.number,
                        at=row.revision.at,
                        by=row.revision.actor,
                        reason=row.revision.reason,
                        kind=kind,
                        name=name,
                        fields=fields,
                        before=row.before,
                        after=row.after,
                    )
                )
    return sorted(changes, key=lambda change: (-change.revision, change.kind))


def _matters(field: str, rule: Rule, kind: str, reason: Reason | None) -> bool:
    if rule.limit and field.startswith(f"{rule.prefix}.{rule.limit}."):
        return True
    if rule.kind in ("budget", "account"):
        return kind == rule.kind
    if rule.kind == "dependency":
        parts = _SETTINGS.get(reason, ("breaker.",)) if reason else ("breaker.",)
        return field.startswith(parts)
    if kind == "tenant":
        return field == ("suspended" if rule.kind == "suspended" else "tier")
    return False


def _transition(found: GenuineToken, rule: Rule | None) -> Transition | None:
    if rule is None or rule.kind != "dependency":
        return None
    if found.token.reason not in (Reason.BREAKER_OPEN, Reason.PROBE_BUSY, Reason.FORCED_OPEN):
        return None
    rows = Transition.objects.filter(
        dependency__environment_id=found.environment, dependency__name=rule.dependency, at__lte=found.at
    )
    return rows.order_by("-at").first()
