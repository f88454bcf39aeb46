"""An alert rule, and the finding that it makes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Generic, Literal, TypeVar

from controlplane.phrases import name_or_count, they
from controlplane.status.breakers import BreakerStatus
from controlplane.status.status import Status
from controlplane.status.watched import Source

Severity = Literal["critical", "warning"]
SubjectKind = Literal[
    "alerts",
    "audit",
    "breaker",
    "budgets",
    "configuration",
    "costs",
    "hot_keys",
    "invoices",
    "locks",
    "quota",
    "schedules",
    "server",
    "servers",
    "tenant",
    "tenants",
    "tokens",
]

#: Subjects with the name of a tenant: so have the keys and the texts of their alerts.
OF_TENANT: frozenset[SubjectKind] = frozenset(("budgets", "hot_keys", "quota", "tenant"))

Compare = Literal["more than", "at least", "less than"]

#: The worst first.
SEVERITIES: tuple[Severity, ...] = ("critical", "warning")

S = TypeVar("S")

#: The length of the column of ``Alert.key``. A name of a tenant alone may be this long.
LONGEST_KEY = 200
_DIGEST = 16


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The entity that an alert is about, for a page or a message to link to."""

    kind: SubjectKind
    #: The name of a breaker or a pod; the tenant of a quota.
    name: str = ""
    quota: str = ""


@dataclass(frozen=True)
class Headline:
    """A sentence of the headline: "web-3", "is", "silent"."""

    subject: str
    #: Between subject and verb; empty for none.
    join: str
    verb: str

    @property
    def text(self) -> str:
        return " ".join(part for part in (self.subject, self.join, self.verb) if part)

    @classmethod
    def of_pods(cls, names: Sequence[str], one: str, several: str, verb: str) -> "Headline":
        """A sentence about a single pod by its name, or about a number of pods."""
        return cls(name_or_count(names), they(names, one, several), verb)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One alert that fires now."""

    #: It stays while the alert fires, at whatever severity: ``local``, ``open:payments-api``.
    key: str
    severity: Severity
    text: str
    detail: str
    runbook: str
    subject: Subject
    #: When it began, if the status shows that; ``None`` when only an observer over time can know.
    since: float | None = None
    #: An observer over time displays it when it has lasted for this long. What must last has a beginning of
    #: its own, apart from the more severe level of the same key.
    lasting_s: float = 0.0
    #: ``None`` for what the headline leaves out.
    headline: Headline | None = None
    #: Its place in the headline: the lowest is the worst.
    weight: int = 0
    #: See ``Rule.dates_incident``.
    dates_incident: int = 0
    #: The pods that it is about; empty for an alert about something else.
    pods: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How urgent an alert is, and when it begins and ends. Times are seconds."""

    #: 1: handled automatically, and reported. 2: on call. 3: at once.
    level: int
    #: How long a condition must last before it fires. A figure that jumps must last longer than a state that
    #: the product decided.
    fires_after_s: float
    #: How long it must be gone before the alert is resolved.
    resolves_after_s: float


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """The figure beyond which a rule fires. ``None`` for a severity that the rule does not have."""

    warning: float | None = None
    critical: float | None = None
    #: People read the figure multiplied by ``scale``, in this unit.
    unit: str = "%"
    scale: float = 100.0
    compare: Compare = "more than"
    #: The lowest and the highest value that a person can choose, before it is multiplied.
    least: float = 0.0
    most: float = 1.0
    whole: bool = False
    #: An alert that fires ends at this percentage of its threshold. 100 for a figure that does not jump.
    clear_percent: int = 100
    #: A sentence after them.
    note: str = ""

    def of(self, severity: Severity) -> float | None:
        return self.critical if severity == "critical" else self.warning

    @property
    def clears(self) -> bool:
        """Whether ``clear_percent`` can be chosen: a number of pods or of days has nothing in between."""
        return bool(self.words) and not self.whole and self.compare != "less than"

    def passed(self, severity: Severity, figure: float, *, firing: bool = False) -> bool:
        """Whether the figure is beyond the threshold; of an alert that fires, beyond what ends it."""
        limit = self.of(severity)
        if limit is None:
            return False
        if firing:
            limit *= self.clear_percent / 100
            if severity == "critical" and self.warning is not None and self.compare != "less than":
                # With near thresholds: below the warning, nothing is critical.
                limit = max(limit, self.warning)
        if self.compare == "less than":
            return figure < limit
        return figure >= limit if self.compare == "at least" else figure > limit

    def shown(self, severity: Severity) -> str:
        """``0.5 %``; empty for none."""
        limit = self.of(severity)
        return "" if limit is None else f"{limit * self.scale:,.10g} {self.unit}".strip()

    @property
    def words(self) -> str:
        """``More than 0.5 % is a warning, more than 2 % is critical.``"""
        levels: tuple[tuple[Severity, str], ...] = (("warning", "a warning"), ("critical", "critical"))
        parts = [f"{self.compare} {self.shown(of)} is {word}" for of, word in levels if self.shown(of)]
        text = ", ".join(parts)
        return f"{text[:1].upper()}{text[1:]}. {self.note}".strip() if text else ""

    @property
    def clear_words(self) -> str:
        """``Clears below 90 % of the threshold.`` Empty if it clears at its threshold."""
        return f"Clears below {self.clear_percent} % of the threshold." if self.clear_percent != 100 else ""


#: An alert about a figure that jumps ends only at this percentage of its threshold: a figure that moves
#: around the threshold makes one alert, not many.
CLEAR_PERCENT = 90


def jumping(**fields: Any) -> Threshold:
    return Threshold(**{"clear_percent": CLEAR_PERCENT, **fields})


def seconds(**fields: Any) -> Threshold:
    return Threshold(unit="s", scale=1.0, **{"most": 3_600.0, **fields})


def days(**fields: Any) -> Threshold:
    return Threshold(unit="days", scale=1.0, compare="less than", **{"least": 1.0, "most": 365.0, **fields})


@dataclass(frozen=True, kw_only=True)
class Scope(Generic[S]):
    """The objects that rules test: the fleet as a whole, or each of several entities in it."""

    each: Callable[[Status], Iterable[S]]
    #: Distinguishes the findings of one rule; empty where there is only one.
    key: Callable[[S], str]
    subject: Callable[[S], Subject]
    #: An alert about one of them explains only alerts about the same one. A dependency has an owner.
    about: Literal["anything", "dependency", "tenant"] = "anything"
    #: Keys of things whose figures are missing now: alerts about them keep their state.
    unseen: Callable[[Status], Iterable[str]] = lambda _: ()


#: Tested once: the fleet as a whole.
FLEET = Scope[Status](
    each=lambda status: [status], key=lambda _: "", subject=lambda _: Subject(kind="servers")
)
EACH_BREAKER = Scope[BreakerStatus](
    each=lambda status: status.breakers,
    key=lambda breaker: breaker.name,
    subject=lambda breaker: Subject(kind="breaker", name=breaker.name),
    about="dependency",
)


@dataclass(frozen=True, kw_only=True)
class WarningOnly(Generic[S]):
    """The differences while the alert is only a warning."""

    headline: Callable[[S], Headline]
    weight: int
    #: The figure must exceed its threshold for this time: it often does so for a moment.
    lasting_s: float = 0.0
    #: ``Rule.dates_incident`` of a warning.
    dates_incident: int = 0


@dataclass(frozen=True, kw_only=True)
class HistoryFigure:
    """The figure of a rule in the stored history of the fleet."""

    fields: tuple[str, ...]
    #: Its value, from the fields, the seconds that they count, and the deadline of Redis in microseconds.
    value: Callable[[Sequence[int], int, int], float]


@dataclass(frozen=True, kw_only=True)
class PrometheusQuery:
    """How a Prometheus of the user finds it. ``controlplane.monitoring.prometheus_rules`` reads this."""

    #: Its place in ``docs/monitoring/rules.yml``.
    place: int
    #: The query of a rule with a threshold ends before the threshold.
    promql: str
    #: Labels are written as ``{{ $labels.environment }}``.
    summary: str
    #: The threshold is multiplied by this, for a metric in another unit.
    scale: float = 1
    severities: tuple[Severity, ...] = SEVERITIES
    #: This is critical too.
    or_critical: str = ""
    #: The whole query of a warning, if its threshold is not the same for all.
    warning: str = ""


@dataclass(frozen=True, kw_only=True)
class Rule(Generic[S]):
    """Everything about an alert rule. Pages, messages, Prometheus rules and documents are made from it."""

    key: str
    #: Words without numbers that say when the rule fires.
    describes: str
    timing: Timing
    #: A page of docs/runbooks. ``own_runbook`` may name a better one.
    runbook: str
    own_runbook: Callable[[S], str] = lambda _: ""

    # When it is true.
    scope: Scope[S]
    test: Callable[[S], bool] = lambda _: True
    #: A figure, and the threshold beyond which the rule is true. An environment can have another threshold.
    value: Callable[[S], float] | None = None
    threshold: Threshold = field(default_factory=Threshold)
    #: The threshold of one thing, where people have set it there, instead of the one in force.
    own_threshold: Callable[[S, Threshold], Threshold] = lambda _, threshold: threshold
    #: The figure that charts draw, if ``value`` may be endless.
    drawn: Callable[[S], float] | None = None
    #: A rule with a threshold has the severities of that.
    severity: Severity = "warning"
    #: A rule without a threshold has both severities with this.
    is_critical: Callable[[S], bool] | None = None
    #: When it began, if the status shows that.
    since: Callable[[S], float | None] = lambda _: None
    #: Whether there is too little traffic to say anything; ``None`` for a rule that needs no traffic.
    idle: Callable[[S], bool] | None = None
    #: The rule concludes nothing while no gateway reports, unless it sees Postgres only.
    needs_gateway: bool = True
    #: The rule concludes nothing while these figures cannot be read.
    needs: Source | None = None

    # Texts that people read.
    #: The alert in one line, and what to know before acting.
    text: Callable[[S], str]
    detail: Callable[[S], str]
    #: Append the thresholds to the detail.
    names_thresholds: bool = False
    #: In place of the scope's, where one rule is about something else.
    subject: Callable[[S], Subject] | None = None
    #: The pods that the alert is about, for mutes of pods; ``None`` for an alert about something else.
    pods: Callable[[S], tuple[str, ...]] | None = None
    #: The product does this about it without a person, for messages; empty for nothing.
    handled: str = ""
    #: ``None`` for the future, and for breakers, whose state the headline names by itself. While
    #: another sentence says the same, it returns ``None``.
    headline: Callable[[S], Headline | None] | None = None
    #: Its place among the sentences of the headline: the lowest is the worst.
    weight: int = 0
    #: The headline counts from the oldest condition of group 1, else of group 2. 0: neither. Drills and
    #: planned changes are made on purpose, so they date nothing.
    dates_incident: int = 0
    #: ``None``: a warning differs in nothing but its severity.
    warning: WarningOnly[S] | None = None

    #: Its texts name a dependency at most, so that a shared report of an incident shows them. Those of other
    #: rules name pods, tenants or servers.
    shareable: bool = False

    #: ``None`` for a figure that is not stored.
    history: HistoryFigure | None = None
    #: ``None`` for what no metric shows.
    prometheus: PrometheusQuery | None = None

    # Properties of its alerts.
    #: ``False``: pages show it, but it is no news to a person on call, because it was planned.
    alerts: bool = True
    #: ``False``: people should know, but no person has to take the alert.
    escalates: bool = True
    #: The worker sends the configuration to pods again while it fires, and appends that to the detail.
    refreshes_pods: bool = False
    #: It fires because workers and gateways are replaced: an upgrade mutes it.
    during_upgrades: bool = False
    #: Rules, or keys of alerts, that this rule explains.
    explains: tuple[str, ...] = ()
    #: Key of one thing -> what only the alert about that explains.
    one_explains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def severities(self) -> tuple[Severity, ...]:
        """The worst first."""
        if self.is_critical is not None:
            return SEVERITIES
        if self.value is None:
            return (self.severity,)
        return tuple(one for one in SEVERITIES if self.threshold.of(one) is not None)

    @property
    def of_dependency(self) -> bool:
        """Whether its alerts are about one dependency, which has an owner."""
        return self.scope.about == "dependency"

    def key_of(self, of: S) -> str:
        """The key of the alert about one thing."""
        part = self.scope.key(of)
        return bounded_key(f"{self.key}:{part}" if part else self.key)

    def finding(self, of: S, severity: Severity, thresholds: str = "") -> Finding:
        """``thresholds``: those in force, in words."""
        detail = self.detail(of)
        mild = self.warning if severity == "warning" else None
        headline = mild.headline if mild is not None else self.headline
        return Finding(
            key=self.key_of(of),
            severity=severity,
            text=self.text(of),
            detail=f"{detail} {thresholds}" if thresholds else detail,
            runbook=self.own_runbook(of) or self.runbook,
            subject=(self.subject or self.scope.subject)(of),
            since=self.since(of),
            lasting_s=mild.lasting_s if mild is not None else 0.0,
            headline=headline(of) if headline is not None else None,
            weight=mild.weight if mild is not None else self.weight,
            dates_incident=mild.dates_incident if mild is not None else self.dates_incident,
            pods=self.pods(of) if self.pods is not None else (),
        )


def rule_of(key: str) -> str:
    """The key of the rule of an alert: ``open`` for ``open:payments-api``."""
    return key.partition(":")[0]


def bounded_key(key: str) -> str:
    """The key as it can be stored: the end of one that is too long is replaced by a digest of the whole."""
    if len(key) <= LONGEST_KEY:
        return key
    digest = sha256(key.encode()).hexdigest()[:_DIGEST]
    return f"{key[: LONGEST_KEY - _DIGEST - 1]}~{digest}"
