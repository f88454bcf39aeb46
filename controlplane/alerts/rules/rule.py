"""What a rule finds, and the shape of a rule."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Generic, Literal, TypeVar

from controlplane.status.status import Status

Severity = Literal["critical", "warning"]
SubjectKind = Literal[
    "alerts",
    "audit",
    "breaker",
    "budgets",
    "configuration",
    "hot_keys",
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

#: The severities of a rule that has both, in the order of its rows.
BOTH: tuple[Severity, ...] = ("critical", "warning")

S = TypeVar("S")

#: As long as the column of ``Alert.key``. A name of a tenant alone may be this long.
LONGEST_KEY = 200
_DIGEST = 16


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What an alert is about, for a page or a message to link to."""

    kind: SubjectKind
    #: Of a breaker or a pod; of a quota, its tenant.
    name: str = ""
    quota: str = ""


@dataclass(frozen=True, kw_only=True)
class Said:
    """A sentence of the headline: "web-3", "is", "silent"."""

    subject: str
    #: Between subject and verb; empty for none.
    join: str
    verb: str

    @property
    def text(self) -> str:
        return " ".join(part for part in (self.subject, self.join, self.verb) if part)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One alert that fires now."""

    #: The same for as long as the alert fires, at whatever severity: ``local``, ``open:payments-api``.
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
    said: Said | None = None
    #: The pods that it is about; empty for an alert about something else.
    pods: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Scope(Generic[S]):
    """What rules are tested on: the fleet as a whole, or each of several things in it."""

    each: Callable[[Status], Iterable[S]]
    #: Distinguishes the findings of one rule; empty where there is only one.
    key: Callable[[S], str]
    subject: Callable[[S], Subject]


#: Tested once: the fleet as a whole.
FLEET = Scope[Status](
    each=lambda status: [status], key=lambda _: "", subject=lambda _: Subject(kind="servers")
)


@dataclass(frozen=True, kw_only=True)
class Rule(Generic[S]):
    key: str
    severity: Severity
    #: A page of docs/runbooks. ``own_runbook`` may name a better one.
    runbook: str
    scope: Scope[S]
    #: The alert in one line, and what to know before acting.
    text: Callable[[S], str]
    detail: Callable[[S], str]
    test: Callable[[S], bool] = lambda _: True
    #: A figure: the rule is also true only beyond its threshold, see ``controlplane.alerts.rules.settings``.
    value: Callable[[S], float] | None = None
    #: Whether the detail ends with the thresholds.
    names_thresholds: bool = False
    since: Callable[[S], float | None] = lambda _: None
    #: In place of the scope's, where one rule is about something else.
    subject: Callable[[S], Subject] | None = None
    own_runbook: Callable[[S], str] = lambda _: ""
    #: ``None`` for the future, and for breakers, whose state the headline names by itself.
    said: Callable[[S], Said] | None = None
    #: For a figure that often exceeds its threshold for a moment.
    lasting_s: float = 0.0
    #: The pods that the alert is about, for mutes of pods; ``None`` for an alert about something else.
    pods: Callable[[S], tuple[str, ...]] | None = None
    #: Whether there is too little traffic to say anything; ``None`` for a rule that needs no traffic.
    idle: Callable[[S], bool] | None = None

    def key_of(self, of: S) -> str:
        """The key of the alert about one thing."""
        part = self.scope.key(of)
        return bounded_key(f"{self.key}:{part}" if part else self.key)

    def finding(self, of: S, thresholds: str = "") -> Finding:
        """``thresholds``: those in force, in words."""
        detail = self.detail(of)
        return Finding(
            key=self.key_of(of),
            severity=self.severity,
            text=self.text(of),
            detail=f"{detail} {thresholds}" if self.names_thresholds and thresholds else detail,
            runbook=self.own_runbook(of) or self.runbook,
            subject=(self.subject or self.scope.subject)(of),
            since=self.since(of),
            lasting_s=self.lasting_s,
            said=self.said(of) if self.said is not None else None,
            pods=self.pods(of) if self.pods is not None else (),
        )


def bounded_key(key: str) -> str:
    """The key as it can be stored: the end of one that is too long is replaced by a digest of the whole."""
    if len(key) <= LONGEST_KEY:
        return key
    digest = sha256(key.encode()).hexdigest()[:_DIGEST]
    return f"{key[: LONGEST_KEY - _DIGEST - 1]}~{digest}"
