"""Evaluates and sends alerts of level 3 while no worker evaluates alerts.

The worker evaluates all rules every 5 s, and Postgres knows when. A gateway looks there. When the last
evaluation is too old, or Postgres does not answer for that long, it applies the rules of level 3 to the pods
that it hears, and sends what fires to the receivers that it has kept. When Postgres returns, it hands in what
it sent, and the worker goes on from there.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from django.db import Error as DatabaseError
from django.db import close_old_connections, connections
from msgspec import structs

from controlplane.alerts.emergency.hand_in import hand_in
from controlplane.alerts.emergency.journal import Episode, Journal, alert_of, episode_of
from controlplane.alerts.emergency.plan import (
    LEVEL,
    EmergencyPlan,
    Reading,
    is_muted,
    read_plans,
    receivers_of,
)
from controlplane.alerts.emergency.plan_files import forget_plan, read_plan_files, write_plan
from controlplane.alerts.lifecycle import AlertState, advance
from controlplane.alerts.models import Alert
from controlplane.alerts.rules.every import RULES, timing_of
from controlplane.alerts.state.causes import cause_of
from controlplane.alerts.state.evaluate import evaluate
from controlplane.alerts.state.progress import fields_after, progress_of
from controlplane.gateway.clock import Clock
from controlplane.gateway.counts import Counts
from controlplane.gateway.emergency.folder import JOURNAL, GatewayFolder
from controlplane.gateway.emergency.seen import facts_of
from controlplane.gateway.emergency.send import Sender, messages_for
from controlplane.gateway.emergency.turns import OncallAnswer, Turns
from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.settings import GatewaySettings
from controlplane.status.status import status_of

RULES_OF_LEVEL = tuple(rule for rule in RULES if rule.timing.level >= LEVEL)
READ_S = 5.0
LOOK_S = 1.0
#: A worker that starts together with this gateway may need four times as long as one that runs.
STARTS = 4
WORKER_AWAY = "worker-away"
#: Plans on disk are at most this old while Postgres answers.
KEPT_S = 60.0

log = structlog.get_logger(__name__)


class Emergency:
    """One per gateway process. Everything but what is named ``_in_thread`` runs on its event loop."""

    def __init__(
        self, fleets: Mapping[str, Fleet], settings: GatewaySettings, clock: Clock, counts: Counts
    ) -> None:
        self._fleets, self._clock, self._counts = fleets, clock, counts
        self._after_s = settings.oncall_after_s
        self._own = GatewayFolder(Path(settings.oncall_dir), settings.gateway)
        self._folder = self._own.path
        self.journal = Journal(self._folder / JOURNAL)
        self._plans = read_plan_files(self._folder)
        self._written: dict[str, tuple[EmergencyPlan, float]] = {}
        self._thread = ThreadPoolExecutor(1, "gateway-plans")
        self._begun = self._watched = clock.monotonic()
        #: Environment -> how long ago its alerts were evaluated, and when that was read.
        self._quiet: dict[str, tuple[float, float]] = {}
        #: Since when Postgres does not answer, in unix seconds; and since when it does.
        self._failing_since: float | None = None
        self._answers_since = clock.wall()
        #: Environment -> its alerts by key, as the worker would have them in Postgres.
        self._rows: dict[str, dict[str, Alert]] = {}
        self._turns = Turns(settings.gateway, self.journal, clock)
        self._sender = Sender(self.journal, clock, counts)

    # Reading of Postgres.

    async def read(self) -> None:
        """Read the plans every few seconds, forever, and hand in what was sent meanwhile."""
        while True:
            await self.read_once()
            await asyncio.sleep(READ_S)

    async def read_once(self) -> None:
        handed = [episode for episode in self.journal.episodes if self._may_be_handed_in(episode)]
        try:
            reading = await self._in(self._read_in_thread, handed)
        except DatabaseError as error:
            if self._failing_since is None:
                self._failing_since = self._clock.wall()
                log.warning("oncall.postgres_away", error=str(error).partition("\n")[0])
            return
        if self._failing_since is not None:
            log.info("oncall.postgres_answers")
            self._answers_since = self._clock.wall()
        self._failing_since = None
        if handed:
            log.warning("oncall.handed_in", keys=[episode.key for episode in handed])
        self._take(reading)
        sent_by_others = [
            one for one in self.journal.episodes if one.by_other and not self.must_report(one.environment)
        ]
        self.journal.drop([*handed, *sent_by_others])
        self._count_unhanded()

    def _may_be_handed_in(self, episode: Episode) -> bool:
        if episode.by_other or self._sender.sends(episode):
            return False
        return episode.settled or not self.must_report(episode.environment)

    def _read_in_thread(self, handed: list[Episode]) -> Reading:
        close_old_connections()
        try:
            hand_in(handed)
            reading = read_plans(self._clock.wall())
        except DatabaseError:
            connections["default"].close()
            raise
        self._keep_in_thread(reading.plans)
        return reading

    def _keep_in_thread(self, plans: Mapping[str, EmergencyPlan]) -> None:
        now = self._clock.monotonic()
        for environment, plan in plans.items():
            last, at = self._written.get(environment, (None, 0.0))
            if last is not None and now - at < KEPT_S and structs.replace(last, at=plan.at) == plan:
                continue
            try:
                write_plan(self._folder, plan)
            except OSError as error:
                log.error("oncall.plan_not_written", environment=environment, error=str(error))
            self._written[environment] = plan, now
        for environment in self._plans.keys() - plans.keys():
            try:
                forget_plan(self._folder, environment)
            except OSError as error:
                log.error("oncall.plan_not_forgotten", environment=environment, error=str(error))

    def _take(self, reading: Reading) -> None:
        now = self._clock.monotonic()
        self._plans = reading.plans
        self._quiet = {environment: (age_s, now) for environment, age_s in reading.quiet_s.items()}

    def _count_unhanded(self) -> None:
        for environment, fleet in self._fleets.items():
            fleet.unhanded = self.journal.unhanded(environment)

    # Evaluation of the rules.

    def quiet_s(self, environment: str) -> float:
        """Seconds since the alerts of an environment were evaluated, as far as this gateway knows."""
        age_s, at = self._quiet.get(environment, (0.0, self._begun))
        return age_s + self._clock.monotonic() - at

    def note_evaluated(self, environment: str, age_s: float) -> None:
        """Another gateway knows of an evaluation."""
        self._quiet[environment] = age_s, self._clock.monotonic()

    def must_report(self, environment: str) -> bool:
        """Whether no worker has evaluated the alerts for too long."""
        return self.quiet_s(environment) > self._after_s

    def _starts(self) -> bool:
        return self._clock.monotonic() - self._begun < STARTS * self._after_s

    @property
    def idle_s(self) -> float:
        """Since when this gateway did not look."""
        return self._clock.monotonic() - self._watched

    async def watch(self) -> None:
        """Look every second, forever."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        passed_s = self.idle_s
        self._watched = self._clock.monotonic()
        for environment in list(self._plans):
            if self.must_report(environment):
                await self._evaluate(environment, passed_s)
                await self._report(environment)
            else:
                self._rows.pop(environment, None)
        self._count_unhanded()

    async def _evaluate(self, environment: str, passed_s: float) -> None:
        now = self._clock.wall()
        facts = facts_of(
            environment,
            self._fleets.get(environment),
            now=now,
            as_of=now if self._failing_since is None else self._failing_since,
            # Without Postgres, no worker can evaluate.
            evaluated_at=max(now - self.quiet_s(environment), self._answers_since),
        )
        found = {one.key: one for one in await self._in(lambda: evaluate(status_of(facts), RULES_OF_LEVEL))}
        if self._starts() and self.journal.open(environment, WORKER_AWAY) is None:
            found.pop(WORKER_AWAY, None)
        rows = self._rows.setdefault(environment, {})
        lasting = {key for key, _ in self.reported(environment)}
        for key in sorted(found.keys() | rows.keys() | lasting):
            row, finding = rows.get(key), found.get(key)
            if row is None and finding is None and (episode := self.journal.open(environment, key)):
                # It fired before this gateway was started again.
                row = alert_of(episode)
            known = progress_of(row) if row is not None else None
            after, _ = advance(known, finding, timing_of(key), now, passed_s=passed_s)
            if after is None or after.state is AlertState.RESOLVED:
                rows.pop(key, None)
                self._end(environment, key, now)
                continue
            row = rows[key] = row or Alert(environment=environment, key=key)
            for name, value in fields_after(row, after, finding, timing_of(key).level, now).items():
                setattr(row, name, value)

    def _end(self, environment: str, key: str, now: float) -> None:
        episode = self.journal.open(environment, key)
        if episode is not None:
            episode.over_at = now
            self.journal.save()
            log.warning("oncall.over", environment=environment, key=key)

    # Episodes and their messages.

    async def _report(self, environment: str) -> None:
        plan, now = self._plans[environment], self._clock.wall()
        rows = self._rows[environment]
        for key, row in list(rows.items()):
            if row.state != AlertState.FIRING or key in plan.known:
                continue
            episode = self.journal.open(environment, key)
            if episode is None:
                episode = await self._begin(plan, row, rows.values(), now)
            if episode is not None and not episode.by_other:
                self._sender.send_due(episode, plan)
                await self._turns.hold(environment, key, episode.true_since)

    async def _begin(
        self, plan: EmergencyPlan, row: Alert, rows: Iterable[Alert], now: float
    ) -> Episode | None:
        """The episode of an alert that fires, unless another gateway sends it, or none should."""
        environment, at = plan.environment, datetime.fromtimestamp(now, UTC)
        if self.journal.sent_lately(environment, row.key, row.true_since.timestamp()):
            return None
        if cause_of(row, rows) is not None or is_muted(plan, row, at):
            return None
        turn = await self._turns.take(plan, row.key)
        if turn.evaluated_s is not None and turn.evaluated_s <= self._after_s:
            self.note_evaluated(environment, turn.evaluated_s)
            return None
        if not turn.mine and not turn.reported:
            return None
        episode = episode_of(row, since=turn.since, now=now, by_other=turn.reported)
        if turn.mine:
            wanted, episode.escalations = receivers_of(plan, alert_of(episode), at)
            episode.messages = messages_for(episode, wanted, plan)
            log.critical("oncall.fired", environment=environment, key=row.key, receivers=len(wanted))
        self.journal.add(episode)
        return episode

    def answer(self, environment: str) -> OncallAnswer:
        """The answer to another gateway, which asks before it sends an alert."""
        return OncallAnswer(evaluated_s=self.quiet_s(environment), reported=self.reported(environment))

    def reported(self, environment: str) -> list[tuple[str, float]]:
        """Alerts that this gateway or another one sent, with their beginnings."""
        return [
            (one.key, one.true_since)
            for one in self.journal.episodes
            if one.environment == environment and one.over_at is None
        ]

    async def _in(self, work: Callable[..., Any], *given: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *given)

    async def close(self) -> None:
        await self._in(connections.close_all)
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._sender.close()
        self._turns.close()
        self._own.release()
