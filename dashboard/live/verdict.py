"""The headline: everything that is wrong now, the worst first, and since when."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from django.urls import reverse

from controlplane.alerts.rules.texts import SHOWN_PER_S
from controlplane.phrases import count, listed, name_or_count, number, they
from controlplane.status.facts import Facts
from dashboard.live.alerts import Alert
from dashboard.live.breaker_looks import FACES
from dashboard.live.breakers import Breaker
from dashboard.live.episode import Dated, Episode
from dashboard.live.known import no_data_words
from dashboard.live.servers import Fleet
from dashboard.live.tiles import why_not_exact

_NONE: Mapping[str, float] = MappingProxyType({})
_NOT_DEGRADED = Episode()
#: Sentences in full; the others are counted.
_SHOWN = 3
#: Up to this many breakers in one state are named one by one.
_NAMED = 2

#: The places of what is no alert among the weights of rules (``controlplane.alerts.rules.rule.Rule.weight``).
#: Breakers have the name of their state.
WEIGHTS = {
    "postgres": 10,
    "gateways": 20,
    "open": 50,
    "half_open": 110,
    "forced_open": 120,
    "locally": 200,
    "forced_closed": 360,
    "metrics_only": 370,
    "disabled": 380,
    "ramping": 410,
}
#: ``Rule.dates_incident`` of what is no alert. Overrides are made on purpose, so they date nothing.
_DATES_INCIDENT = {"postgres": 1, "gateways": 1, "open": 1, "half_open": 1, "locally": 1}
#: ``Rule.dates_incident`` of what dates the incident only if nothing else does.
_ONLY_ITSELF = 2


@dataclass(frozen=True, kw_only=True)
class Sentence:
    subject: str
    join: str = "is"
    verb: str = ""
    css: str = "st-warn"
    link: str = ""


@dataclass(frozen=True, kw_only=True)
class Condition:
    weight: int
    sentence: Sentence
    #: Names of what is wrong, which stay while it is wrong.
    keys: frozenset[str]
    since: float | None = None
    dates_incident: int = 0
    follows: bool = False

    @property
    def dated(self) -> Dated | None:
        """``None`` for what dates no incident."""
        if not self.dates_incident or self.since is None:
            return None
        return Dated(keys=self.keys, since=self.since, only_itself=self.dates_incident >= _ONLY_ITSELF)


def _condition(
    key: str, sentence: Sentence, since: float | None = None, keys: Collection[str] = ()
) -> Condition:
    """A condition that is no alert."""
    return Condition(
        weight=WEIGHTS[key],
        sentence=sentence,
        keys=frozenset(keys or (key,)),
        since=since,
        dates_incident=_DATES_INCIDENT.get(key, 0),
    )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    sentences: tuple[Sentence, ...]
    #: How many sentences are left out.
    more: int
    #: The headline when there is no sentence.
    calm: str
    #: The present conditions, and since when the fleet is degraded.
    episode: Episode
    #: The rest of the breakers and the pods, in words.
    breakers: str
    pods: str
    #: The requests that are refused on purpose, in words; empty for none.
    suspended: str = ""
    #: Without a gateway or Postgres, nothing is known of now: what the page of the pods displays as well.
    unheard: Sentence | None = None

    @property
    def since(self) -> float | None:
        """The start of the present incident; ``None`` without one."""
        return self.episode.since


def verdict_of(
    facts: Facts,
    breakers: tuple[Breaker, ...],
    fleet: Fleet,
    alerts: tuple[Alert, ...],
    begins: Mapping[str, float] = _NONE,
    following: Collection[str] = (),
    before: Episode = _NOT_DEGRADED,
) -> Verdict:
    """``begins``: key of an alert that has fired -> when its episode began. A breaker that flaps has one.

    ``following``: keys of alerts that follow from another one. Their sentences come last. ``before``: the
    episode of the last moment that this process has seen.
    """
    stores = [*_stores(facts, fleet)]
    active = [
        *stores,
        *_breakers(breakers, begins, heard=fleet.heard),
        *_alerts(alerts, begins, following),
        *_figures(alerts, fleet),
    ]
    active.sort(key=lambda condition: (condition.follows, condition.weight))
    # Two levels of an alert, or two rules about one figure, have the same words.
    found = dict[tuple[str, str], Sentence]()
    for one in active:
        found.setdefault((one.sentence.subject, one.sentence.verb), one.sentence)
    sentences = tuple(found.values())
    return Verdict(
        sentences=sentences[:_SHOWN],
        more=len(sentences[_SHOWN:]),
        calm=_calm(breakers, fleet),
        episode=before.then(one.dated for one in active if one.dated is not None),
        breakers=_closed(breakers) if fleet.total and fleet.heard else "",
        pods=_pods(facts, fleet) if fleet.total or sentences else "",
        suspended=_suspended(facts) if fleet.heard else "",
        unheard=stores[-1].sentence if stores and not fleet.heard else None,
    )


def _stores(facts: Facts, fleet: Fleet) -> Iterator[Condition]:
    if facts.stale:
        yield _condition(
            "postgres",
            sentence=Sentence(
                subject="Postgres",
                verb="unavailable",
                css="st-open",
                link=reverse("runbook", args=["postgres-away"]),
            ),
            since=facts.as_of,
        )
    elif fleet.total and not facts.current:
        # Their rows stay as they were: no process notices that a pod is silent.
        yield _condition(
            "gateways",
            sentence=Sentence(subject="No gateway", verb="reporting", css="st-open", link=reverse("servers")),
            since=facts.current_until,
        )


def _begin(since: float | None, key: str, begins: Mapping[str, float]) -> float | None:
    return min((at for at in (since, begins.get(key)) if at is not None), default=None)


def _breakers(
    breakers: tuple[Breaker, ...], begins: Mapping[str, float], *, heard: bool
) -> Iterator[Condition]:
    not_closed = [breaker for breaker in breakers if not breaker.quiet]
    counts = Counter(breaker.effective for breaker in not_closed)
    for state, number_of in counts.items():
        face, own = FACES[state], [breaker for breaker in not_closed if breaker.effective == state]
        if number_of > _NAMED:
            link = reverse("breakers", query={"state": face.kind})
            found = (_begin(breaker.since, f"open:{breaker.name}", begins) for breaker in own)
            since = min((at for at in found if at is not None), default=None)
            join = "are" if heard else "were"
            sentence = Sentence(
                subject=f"{number_of} breakers", join=join, verb=face.verb, css=face.css, link=link
            )
            yield _condition(state, sentence, since, keys=[_key(breaker) for breaker in own])
            continue
        for breaker in own:
            sentence = Sentence(
                subject=breaker.name,
                # Without a gateway, the state is as it was. An override is in force until it ends.
                join="is" if heard or breaker.override else "was",
                verb=face.verb,
                css=face.css,
                link=reverse("breaker", args=[breaker.name]),
            )
            since = _begin(breaker.since, f"open:{breaker.name}", begins)
            yield _condition(state, sentence, since, keys=[_key(breaker)])


def _key(breaker: Breaker) -> str:
    return f"breaker:{breaker.name}"


def _alerts(
    alerts: tuple[Alert, ...], begins: Mapping[str, float], following: Collection[str]
) -> Iterator[Condition]:
    for alert in alerts:
        said = alert.headline
        if said is None:
            continue
        sentence = Sentence(
            subject=said.subject, join=said.join, verb=said.verb, css=alert.css, link=alert.link
        )
        yield Condition(
            weight=alert.weight,
            sentence=sentence,
            keys=frozenset((alert.key,)),
            since=_begin(alert.since, alert.key, begins),
            dates_incident=alert.dates_incident,
            follows=alert.key in following,
        )


def _figures(alerts: tuple[Alert, ...], fleet: Fleet) -> Iterator[Condition]:
    if fleet.ramping:
        who, verb = name_or_count(fleet.ramping), "ramping up after an outage of Redis"
        sentence = Sentence(
            subject=who, join=they(fleet.ramping, "is", "are"), verb=verb, link=reverse("servers")
        )
        yield _condition("ramping", sentence)
    explained = fleet.local or fleet.drill or fleet.ramping or any(map(_over_deadline, alerts))
    if fleet.decided_locally_per_s and not explained:
        subject = f"{number(fleet.decided_locally_per_s)} decisions/s"
        sentence = Sentence(subject=subject, join="are", verb="made locally", link=reverse("servers"))
        yield _condition("locally", sentence)


def _over_deadline(alert: Alert) -> bool:
    return alert.key == "p99" and alert.severity == "critical"


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


def _suspended(facts: Facts) -> str:
    """Requests of suspended tenants are no condition: an operator wants them refused."""
    per_s, names = facts.figures.suspended_per_s, sorted(facts.suspended)
    if per_s < SHOWN_PER_S:
        return ""
    who = f"{listed(names, 2)} {they(names, 'is', 'are')} suspended" if names else "Tenants are suspended"
    whose = they(names, "its", "their")
    return f"{who}: {whose} {number(per_s)} requests/s are refused on purpose."


def _pods(facts: Facts, fleet: Fleet) -> str:
    if not fleet.total:
        return "No pod is reporting."
    if not fleet.heard:
        return f"Pods, breakers and rates are as last known: {no_data_words(facts)}."
    uses = "uses" if fleet.sharing == 1 else "use"
    text = f"{fleet.sharing} of {count(fleet.total, 'pod')} {uses} shared limits."
    exact = "Limits are exact." if fleet.exact else f"Limits are approximate: {why_not_exact(fleet)}."
    return f"{text} {exact}"
