"""The whole fleet as one picture, from which every page's frame and the overview are drawn."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from controlplane.alerts.rules import texts
from controlplane.alerts.state.evaluate import FirstSeen, evaluate, firing_severities
from controlplane.alerts.state.stored_alerts import StoredAlert
from controlplane.phrases import count
from controlplane.status.breaker_lines import BreakerLine, breaker_lines
from controlplane.status.facts import Change, Facts, Transition
from controlplane.status.locks import LocksStatus
from controlplane.status.status import status_of
from dashboard.live.alert_cards import AlertCards, alert_cards
from dashboard.live.alerts import Alert, alert_of
from dashboard.live.backlogs import BacklogRow
from dashboard.live.breaker_looks import FACES, BreakerLook
from dashboard.live.breakers import Breaker, breaker_of
from dashboard.live.capacity import BulkheadRow, RetryRow, bulkhead_rows, retry_rows
from dashboard.live.change_lines import ChangeLine, line_of
from dashboard.live.first_steps import FirstSteps
from dashboard.live.frame import Frame, fields_of
from dashboard.live.history import History
from dashboard.live.known import no_data_words
from dashboard.live.pod_lines import PodLine, pod_lines
from dashboard.live.servers import Fleet, fleet_of
from dashboard.live.tiles import Tile, calls_in_words, samples, server_tiles, tiles, why_not_exact
from dashboard.live.verdict import Verdict, verdict_of
from fuseboard.contract.words import DEFAULT_ENVIRONMENT

MAX_CARDS = 6
#: Rows of a table of the overview; a page of its own has the others.
MAX_ROWS = 5
#: A line of "Recent changes".
Event = ChangeLine | Transition | BreakerLine | PodLine


@dataclass(frozen=True, kw_only=True)
class RefusedRow:
    """Requests of one tenant, or for one quota of all tenants, and how many were refused."""

    name: str
    refused: float
    requests: float
    #: The share of all refusals, 0 to 100. Those of suspended tenants are not among them.
    share: float
    suspended: bool = False

    @property
    def refused_percent(self) -> float:
        return self.refused / self.requests * 100 if self.requests else 0.0

    @property
    def hot(self) -> bool:
        return self.requests > 1 and self.refused_percent > 10 and not self.suspended


@dataclass(frozen=True, kw_only=True)
class Live:
    """Everything a page may display, built once per tick."""

    facts: Facts
    breakers: tuple[Breaker, ...]
    fleet: Fleet
    alerts: tuple[Alert, ...]
    #: With those that are pending or recovering.
    alert_cards: AlertCards
    tiles: tuple[Tile, ...]
    #: The figures of the servers page.
    server_tiles: tuple[Tile, ...]
    verdict: Verdict
    tenants: tuple[RefusedRow, ...]
    others: RefusedRow | None
    #: The quotas that refuse most, of all tenants together.
    quotas: tuple[RefusedRow, ...]
    #: The dependencies that are nearest to the end of their slots, and of their budget for retries.
    bulkheads: tuple[BulkheadRow, ...]
    retries: tuple[RetryRow, ...]
    #: The fullest first.
    backlogs: tuple[BacklogRow, ...]
    locks: LocksStatus
    #: The results of the calls to all dependencies, in words.
    calls: str
    counts: tuple[tuple[BreakerLook, int], ...]
    events: tuple[Event, ...]
    #: The steps to the first pod; ``None`` once it has reported.
    first_steps: FirstSteps | None = None

    @property
    def cards(self) -> tuple[Breaker, ...]:
        return tuple(breaker for breaker in self.breakers if not breaker.quiet)[:MAX_CARDS]

    @property
    def quiet(self) -> tuple[Breaker, ...]:
        shown = {breaker.name for breaker in self.cards}
        return tuple(breaker for breaker in self.breakers if breaker.name not in shown)

    @property
    def held(self) -> tuple[Breaker, ...]:
        return tuple(breaker for breaker in self.breakers if breaker.override is not None)

    @property
    def ending(self) -> tuple[Breaker, ...]:
        """Breakers whose override ends within minutes, the first to end first."""
        soon = (breaker for breaker in self.held if breaker.ends_soon)
        return tuple(sorted(soon, key=lambda breaker: breaker.until or 0.0))

    @property
    def inexact(self) -> str:
        """The reason why limits are not exact now, in words."""
        return why_not_exact(self.fleet)

    @property
    def why_frozen(self) -> str:
        return texts.why_frozen(self.facts.figures)

    @property
    def allowed_alone(self) -> str:
        """The share that a pod allows without Redis, in words."""
        return texts.allowed_alone(self.fleet.divisor)

    @property
    def attention(self) -> int:
        """Breakers that are not closed."""
        return sum(not breaker.quiet for breaker in self.breakers)

    @property
    def worst_kind(self) -> str:
        """The kind of the favicon: ok, open, half or forced."""
        kind = self.breakers[0].face.kind if self.breakers else "closed"
        return {"open": "open", "half": "half", "forced": "forced", "pinned": "forced"}.get(kind, "ok")

    def _names_of(self, face: BreakerLook) -> str:
        """The only breaker with this face, or how many there are."""
        names = [breaker.name for breaker in self.breakers if breaker.face == face]
        return names[0] if len(names) == 1 else count(len(names), "breaker")

    @property
    def title(self) -> str:
        """The title of the tab: what is not normal, in few words, and an environment but production."""
        words = [
            f"{self._names_of(face)} {face.word.lower()}"
            for face, _ in self.counts
            if face.kind not in ("closed", "stale")
        ]
        if self.fleet.local:
            words.append(f"{count(len(self.fleet.local), 'pod')} local")
        there = [] if self.facts.environment == DEFAULT_ENVIRONMENT else [self.facts.environment]
        return ": ".join([*there, *filter(None, [", ".join(words)])])

    @cached_property
    def frame(self) -> Frame:
        """The part of it that every page displays. It is made once for all pages."""
        fleet = self.fleet
        return Frame(
            **fields_of(self.facts),
            drawn_at=self.facts.now,
            gateways_reporting=self.facts.gateways_reporting,
            heard=fleet.heard,
            no_data=no_data_words(self.facts),
            pods=fleet.total,
            pods_attention=fleet.attention,
            silent=len(fleet.silent),
            positions=Counter((server.epoch, server.revision) for server in self.facts.live_servers),
            versions=fleet.versions,
            alerts=self.alert_cards.firing,
            alerts_css=self.alert_cards.firing_css,
            incidents=self.alert_cards.incidents,
            incidents_css=self.alert_cards.incidents_css,
            breakers=self.attention,
            breakers_css=self.breakers[0].face.css if self.breakers else "",
            ending=self.ending,
            title=self.title,
            kind=self.worst_kind,
        )

    def backlog(self, name: str) -> BacklogRow | None:
        """``None`` if the backlog of this dependency was never used."""
        return next((row for row in self.backlogs if row.name == name), None)

    def breaker(self, name: str) -> Breaker | None:
        return next((breaker for breaker in self.breakers if breaker.name == name), None)


def build(
    facts: Facts,
    history: History,
    first_seen: FirstSeen,
    *,
    stored: Mapping[str, StoredAlert] | None = None,
    observe: bool = True,
    first_steps: FirstSteps | None = None,
) -> Live:
    """The picture of this moment. With ``observe``, ``history`` and ``first_seen`` remember it.

    ``stored`` is what Postgres knows of the alerts.
    """
    stored = stored or {}
    status = status_of(facts)
    every = tuple(breaker_of(one, facts, history) for one in status.breakers)
    fleet = fleet_of(status)
    before = history.last_episode(facts.now)
    if observe:
        history.add(facts, samples(facts, fleet))
    found = evaluate(status, firing=firing_severities(stored.values()))
    dated = (first_seen.dated if observe else first_seen.peek)(found, facts.now, stored)
    alerts = tuple(alert_of(finding, stored.get(finding.key)) for finding in dated)
    rows, others = _tenants(facts)
    by_cause = alert_cards(facts, alerts, stored)
    begins = {one.key: one.true_since for one in stored.values() if one.fired}
    verdict = verdict_of(facts, every, fleet, alerts, begins, by_cause.following, before)
    if observe:
        history.add_episode(verdict.episode)
    return Live(
        facts=facts,
        breakers=every,
        fleet=fleet,
        alerts=alerts,
        alert_cards=by_cause,
        tiles=tuple(tiles(facts, fleet, history)),
        server_tiles=tuple(server_tiles(facts, fleet, history)),
        verdict=verdict,
        tenants=rows,
        others=others,
        quotas=_quotas(facts),
        bulkheads=tuple(bulkhead_rows(facts)[:MAX_ROWS]),
        retries=tuple(retry_rows(facts)[:MAX_ROWS]),
        backlogs=tuple(BacklogRow(status=one) for one in status.backlogs),
        locks=status.locks,
        calls=calls_in_words(facts),
        counts=_counts(every),
        events=_events(facts),
        first_steps=first_steps,
    )


def _counts(every: Iterable[Breaker]) -> tuple[tuple[BreakerLook, int], ...]:
    """How many breakers have each face, worst first; closed is always listed."""
    tally = dict.fromkeys(FACES.values(), 0)
    for breaker in every:
        tally[breaker.face] += 1
    return tuple((face, count) for face, count in tally.items() if count or face.kind == "closed")


def _quotas(facts: Facts) -> tuple[RefusedRow, ...]:
    total = facts.figures.active_refused_per_s or 1.0
    # The sum over all tenants is the figure without a tenant.
    found = sorted(
        (rule for rule in facts.figures.rules if not rule.tenant),
        key=lambda rule: (-rule.refused_per_s, -rule.asked_per_s, rule.rule),
    )
    return tuple(
        RefusedRow(
            name=rule.rule,
            refused=rule.refused_per_s,
            requests=rule.asked_per_s,
            share=min(100.0, rule.refused_per_s / total * 100),
        )
        for rule in found[:MAX_ROWS]
    )


def _tenants(facts: Facts) -> tuple[tuple[RefusedRow, ...], RefusedRow | None]:
    """The tenants with most refusals, and one row for the rest so that the totals add up."""
    total = facts.figures.active_refused_per_s or 1.0
    rows = [
        RefusedRow(
            name=t.tenant,
            refused=t.refused_per_s,
            requests=t.requests_per_s,
            share=0.0 if t.tenant in facts.suspended else min(100.0, t.refused_per_s / total * 100),
            suspended=t.tenant in facts.suspended,
        )
        for t in facts.figures.tenants
    ]
    top, rest = rows[:MAX_ROWS], rows[MAX_ROWS:]
    if not rest:
        return tuple(top), None
    return tuple(top), RefusedRow(
        name=count(len(rest), "other"),
        refused=sum(row.refused for row in rest),
        requests=sum(row.requests for row in rest),
        share=min(100.0, sum(row.share for row in rest)),
    )


def _events(facts: Facts) -> tuple[Event, ...]:
    """People's changes, the breakers' own transitions, and what happened to pods; newest first."""
    machines = breaker_lines(t for t in facts.transitions if not t.actor)[:7]
    pods = pod_lines(facts.pod_events)[:7]
    merged: list[Event] = [*_gathered(facts.changes), *machines, *pods]
    return tuple(sorted(merged, key=lambda event: -event.at)[:7])


def _gathered(changes: tuple[Change, ...]) -> list[ChangeLine]:
    """One line for a bulk edit, whose entries share a revision."""
    by_revision: dict[object, list[Change]] = {}
    for change in changes:
        same = change.id if change.revision is None else (change.revision, change.action)
        by_revision.setdefault(same, []).append(change)
    return [
        line_of(many[0])
        if len(many) == 1
        else replace(line_of(many[0]), target=f"{many[-1].target} and {len(many) - 1} more", after="")
        for many in by_revision.values()
    ]
