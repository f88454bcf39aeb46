"""The headline: everything that is wrong now, the worst first, and since when."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from django.urls import reverse

from controlplane.alerts.texts import count, name_or_count, they
from controlplane.status.facts import Facts
from dashboard.live.alerts import Alert
from dashboard.live.breaker_looks import FACES
from dashboard.live.breakers import Breaker
from dashboard.live.servers import Fleet
from dashboard.live.tiles import number, why_not_exact

#: Sentences in full; the others are counted.
_SHOWN = 3
#: Up to this many breakers in one state are named one by one.
_NAMED = 2

#: Every condition, the worst first. Breakers have the name of their state.
WEIGHTS = (
    "postgres",
    "gateways",
    "ahead",
    "open",
    "local_all",
    "rejected",
    "unknown-revision",
    "half_open",
    "forced_open",
    "frozen",
    "silent",
    "local",
    "p99",
    "locally",
    "lag",
    "429",
    "forced_closed",
    "metrics_only",
    "disabled",
    "drill",
    "ramping",
    "schedules",
    "overdue",
    "new-pods",
    "duplicated",
    "p99_high",
    "near",
    "uncounted",
)
#: What dates an incident: the oldest condition of the first group that has one. Drills, planned changes
#: and overrides are made on purpose, so they date nothing; a Redis within its deadline delays no decision.
_INCIDENTS = (
    ("postgres", "gateways", "ahead", "open", "half_open", "local_all", "rejected"),
    ("frozen", "silent", "local", "p99", "locally", "lag"),
    ("429",),
)
#: Alerts that are no condition of the fleet, and those that its breakers express already.
_NOT_IN_HEADLINE = ("soon", "open", "override")


@dataclass(frozen=True, kw_only=True)
class Sentence:
    subject: str
    join: str = "is"
    verb: str = ""
    css: str = "st-warn"
    link: str = ""


@dataclass(frozen=True, kw_only=True)
class Condition:
    key: str
    sentence: Sentence
    since: float | None = None

    @property
    def weight(self) -> int:
        return WEIGHTS.index(self.key) if self.key in WEIGHTS else len(WEIGHTS)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    sentences: tuple[Sentence, ...]
    #: How many sentences are left out.
    more: int
    #: The headline when there is no sentence.
    calm: str
    #: Of the present incident; ``None`` when what is active is no incident.
    since: float | None
    #: The rest of the breakers and the pods, in words.
    breakers: str
    pods: str


def verdict_of(
    facts: Facts, breakers: tuple[Breaker, ...], fleet: Fleet, alerts: tuple[Alert, ...]
) -> Verdict:
    active = [
        *_stores(facts, fleet),
        *_breakers(breakers),
        *_alerts(alerts, fleet, facts),
        *_figures(alerts, fleet),
    ]
    active.sort(key=lambda condition: condition.weight)
    sentences = tuple(condition.sentence for condition in active)
    return Verdict(
        sentences=sentences[:_SHOWN],
        more=len(sentences[_SHOWN:]),
        calm=_calm(breakers, fleet),
        since=_since(active),
        breakers=_closed(breakers) if fleet.total else "",
        pods=_pods(fleet) if fleet.total or sentences else "",
    )


def _stores(facts: Facts, fleet: Fleet) -> Iterator[Condition]:
    if facts.stale:
        yield Condition(
            key="postgres",
            sentence=Sentence(
                subject="Postgres",
                verb="unavailable",
                css="st-open",
                link=reverse("runbook", args=["postgres-away"]),
            ),
            since=facts.as_of,
        )
    elif fleet.total and not facts.figures.gateways:
        # Their rows stay as they were: no process notices that a pod is silent.
        yield Condition(
            key="gateways",
            sentence=Sentence(subject="No gateway", verb="reporting", css="st-open", link="/servers"),
            since=max(row.server.last_seen for row in fleet.rows),
        )


def _breakers(breakers: tuple[Breaker, ...]) -> Iterator[Condition]:
    not_closed = [breaker for breaker in breakers if not breaker.quiet]
    counts = Counter(breaker.effective for breaker in not_closed)
    for state, number_of in counts.items():
        face, own = FACES[state], [breaker for breaker in not_closed if breaker.effective == state]
        if number_of > _NAMED:
            link = f"/breakers?state={face.kind}"
            since = min((breaker.since for breaker in own if breaker.since is not None), default=None)
            sentence = Sentence(
                subject=f"{number_of} breakers", join="are", verb=face.verb, css=face.css, link=link
            )
            yield Condition(key=state, sentence=sentence, since=since)
            continue
        for breaker in own:
            sentence = Sentence(
                subject=breaker.name, verb=face.verb, css=face.css, link=f"/breakers/{breaker.name}"
            )
            yield Condition(key=state, sentence=sentence, since=breaker.since)


def _alerts(alerts: tuple[Alert, ...], fleet: Fleet, facts: Facts) -> Iterator[Condition]:
    for alert in alerts:
        key = alert.key.partition(":")[0]
        if key in _NOT_IN_HEADLINE:
            continue
        build = _SENTENCES.get(key)
        # A rule without a sentence here is still a condition: its alert says it in other words.
        sentence = (
            build(alert, fleet, facts) if build else Sentence(subject="Alert:", join="", verb=alert.text)
        )
        if key == "local" and len(fleet.local) == fleet.live:
            key = "local_all"
        if key == "p99" and not _over_deadline(alert):
            key = "p99_high"
        yield Condition(key=key, sentence=_linked(sentence, alert), since=alert.since)


def _linked(sentence: Sentence, alert: Alert) -> Sentence:
    return Sentence(**{**vars(sentence), "css": alert.css, "link": sentence.link or alert.link})


def _figures(alerts: tuple[Alert, ...], fleet: Fleet) -> Iterator[Condition]:
    if fleet.ramping:
        who, verb = name_or_count(fleet.ramping), "ramping up after an outage of Redis"
        sentence = Sentence(subject=who, join=_is(fleet.ramping), verb=verb, link="/servers")
        yield Condition(key="ramping", sentence=sentence)
    explained = fleet.local or fleet.drill or fleet.ramping or any(map(_over_deadline, alerts))
    if fleet.decided_locally_per_s and not explained:
        subject, verb = f"{number(fleet.decided_locally_per_s)} decisions/s", "made without Redis"
        sentence = Sentence(subject=subject, join="are", verb=verb, link="/servers")
        yield Condition(key="locally", sentence=sentence)


def _over_deadline(alert: Alert) -> bool:
    return alert.key == "p99" and alert.severity == "critical"


def _lag(_: Alert, fleet: Fleet, __: Facts) -> Sentence:
    return Sentence(
        subject=name_or_count(fleet.lagging),
        join=they(fleet.lagging, "has", "have"),
        verb="old configuration",
    )


def _slow(alert: Alert, *_: object) -> Sentence:
    figure = alert.text.removeprefix("Redis p99 is ")
    how = "over its deadline" if _over_deadline(alert) else "higher than usual"
    return Sentence(subject="Redis p99", verb=f"{figure}, {how}", link="/servers")


def _unknown_revision(_: Alert, __: Fleet, facts: Facts) -> Sentence:
    pods = tuple(one.server for one in facts.unknown_revisions)
    return Sentence(
        subject=name_or_count(pods), join=they(pods, "reports", "report"), verb="an unknown revision"
    )


def _overdue(alert: Alert, *_: object) -> Sentence:
    change = alert.text.removeprefix("Overdue: ")
    return Sentence(subject=f"{change[:1].upper()}{change[1:]}", verb="overdue")


def _local(_: Alert, fleet: Fleet, __: Facts) -> Sentence:
    # One that is silent may do anything.
    if len(fleet.local) == fleet.total:
        return Sentence(subject="Every pod", join="uses", verb="local limits")
    uses = they(fleet.local, "uses", "use")
    return Sentence(subject=count(len(fleet.local), "pod"), join=uses, verb="local limits")


def _split(before: str) -> Callable[[Alert, Fleet, Facts], Sentence]:
    """The alert's own text, with what follows ``before`` in its colour."""

    def build(alert: Alert, *_: object) -> Sentence:
        subject, found, verb = alert.text.partition(f" {before} ")
        return Sentence(subject=subject, join=before if found else "", verb=verb)

    return build


_SENTENCES: dict[str, Callable[[Alert, Fleet, Facts], Sentence]] = {
    "429": _split("are"),
    "ahead": lambda *_: Sentence(subject="Edits", join="are", verb="not published", link="/revisions"),
    "drill": lambda _, fleet, __: Sentence(
        subject=name_or_count(fleet.drill), join=_is(fleet.drill), verb="in a drill"
    ),
    "duplicated": _split("report"),
    "frozen": _split("went"),
    "lag": _lag,
    "local": _local,
    "near": _split("is"),
    "overdue": _overdue,
    "p99": _slow,
    "rejected": _split("rejected"),
    "schedules": lambda alert, *_: Sentence(
        subject=alert.text.removesuffix(" failed"), join="", verb="failed"
    ),
    "silent": lambda _, fleet, __: Sentence(
        subject=name_or_count(fleet.silent), join=_is(fleet.silent), verb="silent"
    ),
    "unknown-revision": _unknown_revision,
    "new-pods": lambda *_: Sentence(subject="New pods", join="are", verb="refused"),
    "uncounted": lambda *_: Sentence(subject="The figures", join="are", verb="incomplete", link="/servers"),
}


def _since(active: list[Condition]) -> float | None:
    for keys in _INCIDENTS:
        begun = [one.since for one in active if one.key in keys and one.since is not None]
        if begun:
            return min(begun)
    return None


def _calm(breakers: tuple[Breaker, ...], fleet: Fleet) -> str:
    if not breakers:
        return "No dependency is registered yet."
    return "All healthy." if fleet.total else "No pod is reporting."


def _closed(breakers: tuple[Breaker, ...]) -> str:
    closed = sum(breaker.effective == "closed" for breaker in breakers)
    unknown = sum(breaker.effective == "no_data" for breaker in breakers)
    if breakers and closed == len(breakers):
        text = f"All {closed} breakers are closed." if closed > 1 else f"{breakers[0].name} is closed."
    else:
        text = f"{count(closed, 'breaker')} {'is' if closed == 1 else 'are'} closed." if closed else ""
    if unknown:
        text += f" No pod reports {'the state of ' if closed else ''}{count(unknown, 'breaker')}."
    return text.strip()


def _pods(fleet: Fleet) -> str:
    if not fleet.total:
        return "No pod is reporting."
    uses = "uses" if fleet.sharing == 1 else "use"
    text = f"{fleet.sharing} of {count(fleet.total, 'pod')} {uses} shared limits."
    exact = "Limits are exact." if fleet.exact else f"Limits are approximate: {why_not_exact(fleet)}."
    return f"{text} {exact}"


def _is(names: tuple[str, ...]) -> str:
    return they(names, "is", "are")
