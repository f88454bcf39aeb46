"""The headline: everything that is wrong now, the worst first, and since when."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from controlplane.status.facts import Facts
from dashboard.live.alerts import Alert
from dashboard.live.breaker_looks import FACES
from dashboard.live.breakers import Breaker
from dashboard.live.servers import Fleet
from dashboard.live.tiles import number, why_not_exact

#: Sentences in full; the others are counted.
_SPOKEN = 3
#: So many breakers in one state are named one by one.
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
    "near",
    "uncounted",
)
#: What an incident is dated by: the first line of which a condition is active. Drills, planned changes and
#: overrides are made on purpose, so they date nothing.
_INCIDENTS = (
    ("postgres", "gateways", "ahead", "open", "half_open", "local_all", "rejected"),
    ("frozen", "silent", "local", "p99", "locally", "lag"),
    ("429",),
)
#: Alerts that are no condition of the fleet, and those that its breakers express already.
_NOT_SPOKEN = ("soon", "open", "override")


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
    active = [*_stores(facts, fleet), *_breakers(breakers), *_alerts(alerts, fleet), *_figures(alerts, fleet)]
    active.sort(key=lambda condition: condition.weight)
    sentences = tuple(condition.sentence for condition in active)
    return Verdict(
        sentences=sentences[:_SPOKEN],
        more=len(sentences[_SPOKEN:]),
        calm=_calm(breakers, fleet),
        since=_since(active),
        breakers=_closed(breakers),
        pods=_pods(fleet),
    )


def _stores(facts: Facts, fleet: Fleet) -> Iterator[Condition]:
    if facts.stale:
        yield Condition(
            key="postgres",
            sentence=Sentence(subject="Postgres", verb="unavailable", css="st-open", link="/runbooks"),
            since=facts.as_of,
        )
    elif fleet.total and not facts.figures.gateways:
        # Their rows stay as they were: nobody notices that a pod is silent.
        yield Condition(
            key="gateways",
            sentence=Sentence(subject="No gateway", verb="reporting", css="st-open", link="/servers"),
            since=max(row.server.last_seen for row in fleet.rows),
        )


def _breakers(breakers: tuple[Breaker, ...]) -> Iterator[Condition]:
    loud = [breaker for breaker in breakers if not breaker.quiet]
    counts = Counter(breaker.effective for breaker in loud)
    for state, count in counts.items():
        face, own = FACES[state], [breaker for breaker in loud if breaker.effective == state]
        if count > _NAMED:
            link = f"/breakers?state={face.kind}"
            since = min((breaker.since for breaker in own if breaker.since is not None), default=None)
            sentence = Sentence(
                subject=f"{count} breakers", join="are", verb=face.verb, css=face.css, link=link
            )
            yield Condition(key=state, sentence=sentence, since=since)
            continue
        for breaker in own:
            sentence = Sentence(
                subject=breaker.name, verb=face.verb, css=face.css, link=f"/breakers/{breaker.name}"
            )
            yield Condition(key=state, sentence=sentence, since=breaker.since)


def _alerts(alerts: tuple[Alert, ...], fleet: Fleet) -> Iterator[Condition]:
    for alert in alerts:
        key = alert.key.partition(":")[0]
        if key in _NOT_SPOKEN:
            continue
        build = _SENTENCES.get(key)
        # A rule without a sentence here is still a condition: its alert says it in other words.
        sentence = build(alert, fleet) if build else Sentence(subject="Alert:", join="", verb=alert.text)
        if key == "local" and len(fleet.local) == fleet.live:
            key = "local_all"
        yield Condition(key=key, sentence=_linked(sentence, alert), since=alert.since)


def _linked(sentence: Sentence, alert: Alert) -> Sentence:
    return Sentence(**{**vars(sentence), "css": alert.css, "link": sentence.link or alert.link})


def _figures(alerts: tuple[Alert, ...], fleet: Fleet) -> Iterator[Condition]:
    if fleet.ramping:
        who, verb = _who(fleet.ramping), "ramping up after an outage of Redis"
        sentence = Sentence(subject=who, join=_is(fleet.ramping), verb=verb, link="/servers")
        yield Condition(key="ramping", sentence=sentence)
    explained = fleet.local or fleet.drill or fleet.ramping or any(alert.key == "p99" for alert in alerts)
    if fleet.decided_locally_per_s and not explained:
        subject, verb = f"{number(fleet.decided_locally_per_s)} decisions/s", "made without Redis"
        sentence = Sentence(subject=subject, join="are", verb=verb, link="/servers")
        yield Condition(key="locally", sentence=sentence)


def _lag(_: Alert, fleet: Fleet) -> Sentence:
    return Sentence(
        subject=_who(fleet.lagging),
        join="has" if len(fleet.lagging) == 1 else "have",
        verb="old configuration",
    )


def _local(_: Alert, fleet: Fleet) -> Sentence:
    # One that is silent may do anything.
    if len(fleet.local) == fleet.total:
        return Sentence(subject="Every pod", join="uses", verb="local limits")
    uses = "uses" if len(fleet.local) == 1 else "use"
    return Sentence(subject=_count(len(fleet.local), "pod"), join=uses, verb="local limits")


def _split(before: str) -> Callable[[Alert, Fleet], Sentence]:
    """The alert's own text, with what follows ``before`` in its colour."""

    def build(alert: Alert, _: Fleet) -> Sentence:
        subject, found, verb = alert.text.partition(f" {before} ")
        return Sentence(subject=subject, join=before if found else "", verb=verb)

    return build


_SENTENCES: dict[str, Callable[[Alert, Fleet], Sentence]] = {
    "429": _split("are"),
    "ahead": lambda *_: Sentence(subject="Edits", join="are", verb="not published", link="/revisions"),
    "drill": lambda _, fleet: Sentence(subject=_who(fleet.drill), join=_is(fleet.drill), verb="in a drill"),
    "frozen": _split("went"),
    "lag": _lag,
    "local": _local,
    "near": _split("is"),
    "p99": lambda alert, _: Sentence(
        subject="Redis p99",
        verb=f"{alert.text.removeprefix('Redis p99 is ')}, over its deadline",
        link="/servers",
    ),
    "rejected": _split("rejected"),
    "schedules": lambda alert, _: Sentence(
        subject=alert.text.removesuffix(" failed"), join="", verb="failed"
    ),
    "silent": lambda _, fleet: Sentence(subject=_who(fleet.silent), join=_is(fleet.silent), verb="silent"),
    "unknown-revision": lambda *_: Sentence(
        subject="Revisions", verb="reported that Postgres never made", join="are"
    ),
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
        text = f"{_count(closed, 'breaker')} {'is' if closed == 1 else 'are'} closed." if closed else ""
    if unknown:
        text += f" No pod reports {'the state of ' if closed else ''}{_count(unknown, 'breaker')}."
    return text.strip()


def _pods(fleet: Fleet) -> str:
    if not fleet.total:
        return "No pod is reporting."
    uses = "uses" if fleet.sharing == 1 else "use"
    text = f"{fleet.sharing} of {_count(fleet.total, 'pod')} {uses} shared limits."
    exact = "Limits are exact." if fleet.exact else f"Limits are approximate: {why_not_exact(fleet)}."
    return f"{text} {exact}"


def _who(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else _count(len(names), "pod")


def _is(names: tuple[str, ...]) -> str:
    return "is" if len(names) == 1 else "are"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
