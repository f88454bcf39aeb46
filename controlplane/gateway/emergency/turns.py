"""The choice of the gateway that sends an alert, when several see it and no row in Postgres can decide.

With Redis: the holder of a key. It also leaves a mark, so that its successor does not repeat it. Without
Redis: gateways send one after the other, 20 s apart, and ask the others first. One that does not answer
counts as one that sent nothing: an alert that is sent twice is better than one that is not sent.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import redis
import structlog
from msgspec import MsgspecError, Struct, field, json

from controlplane.alerts.emergency.journal import Journal
from controlplane.alerts.emergency.plan import EmergencyPlan
from controlplane.fleet import signing
from controlplane.fleet.gateway_urls import gateway_urls
from controlplane.fleet.status_client import StatusQuestion
from controlplane.gateway.clock import Clock
from controlplane.redis.scripts import limits

PATH = "/control/v1/oncall"
#: Timeout of Redis, and of each other gateway.
TIMEOUT_S = 1.0
LEASE_MS = 15_000
MARK_MS = 60_000
#: Between two gateways that cannot agree.
RANK_S = 20.0
_SALT = "controlplane.gateway.emergency"

log = structlog.get_logger(__name__)


class OncallAnswer(Struct, frozen=True, kw_only=True):
    #: Since the alerts were evaluated, as the gateway knows.
    evaluated_s: float
    #: Alerts that were sent, and when they began. Gateways of every release have the name ``told``.
    reported: list[tuple[str, float]] = field(name="told")


@dataclass(frozen=True, kw_only=True)
class Turn:
    mine: bool = False
    #: Another gateway has sent it.
    reported: bool = False
    #: The beginning of the alert, if another gateway knows an earlier one.
    since: float | None = None
    #: The youngest evaluation that another gateway knows of.
    evaluated_s: float | None = None


def is_signed(body: bytes, authorization: bytes) -> bool:
    return signing.is_signed(body, authorization, salt=_SALT)


class Turns:
    def __init__(self, gateway: str, journal: Journal, clock: Clock) -> None:
        self._gateway, self._journal, self._clock = gateway, journal, clock
        self._thread = ThreadPoolExecutor(1, "gateway-turns")
        #: Environment and key -> when this gateway first and last wanted to send it.
        self._wanted: dict[tuple[str, str], tuple[float, float]] = {}

    async def take(self, plan: EmergencyPlan, key: str) -> Turn:
        """Whether this gateway sends an alert that fires; asked again every second until one gateway does."""
        environment, now = plan.environment, self._clock.monotonic()
        first, last = self._wanted.get((environment, key), (now, now))
        first = first if now - last < RANK_S else now
        self._wanted[environment, key] = first, now
        answers = await self._in(self._ask_in_thread, environment)
        evaluated_s = min((answer.evaluated_s for answer in answers), default=None)
        begun = [since for answer in answers for sent, since in answer.reported if sent == key]
        if begun:
            return Turn(reported=True, since=min(begun), evaluated_s=evaluated_s)
        try:
            mark, mine = await self._in(self._lease_in_thread, environment, key)
        except redis.RedisError:
            names = plan.gateways
            rank = names.index(self._gateway) if self._gateway in names else len(names)
            return Turn(mine=now - first >= rank * RANK_S, evaluated_s=evaluated_s)
        return Turn(
            mine=mine and mark is None, reported=mark is not None, since=mark, evaluated_s=evaluated_s
        )

    async def hold(self, environment: str, key: str, since: float) -> None:
        """Leave the mark that an alert was sent, while it lasts."""
        try:
            await self._in(self._mark_in_thread, environment, key, since)
        except redis.RedisError:
            # Without Redis, the others ask this gateway.
            return

    def _lease_in_thread(self, environment: str, key: str) -> tuple[float | None, bool]:
        store = limits(deadline_s=TIMEOUT_S)
        mark = store.get(_mark_key(environment, key))
        if mark is not None:
            return float(str(mark)), False
        lease = f"fb1:{environment}:oncall"
        mine = store.set(lease, self._gateway, nx=True, px=LEASE_MS) or store.get(lease) == self._gateway
        return None, bool(mine)

    def _mark_in_thread(self, environment: str, key: str, since: float) -> None:
        limits(deadline_s=TIMEOUT_S).set(_mark_key(environment, key), str(since), px=MARK_MS)

    def _ask_in_thread(self, environment: str) -> list[OncallAnswer]:
        body = json.encode(StatusQuestion(environment=environment, at_us=int(self._clock.wall() * 1_000_000)))
        found = []
        for url in gateway_urls():
            try:
                reply = signing.post(url, PATH, body, salt=_SALT, timeout_s=TIMEOUT_S, most_bytes=64 * 1024)
                found.append(json.decode(reply, type=OncallAnswer))
            except (signing.GatewayCallFailed, MsgspecError) as error:
                log.warning("oncall.gateway_unanswered", gateway=url, error=str(error)[:300])
        return found

    async def _in(self, work: Callable[..., Any], *given: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *given)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _mark_key(environment: str, key: str) -> str:
    return f"fb1:{environment}:oncall:{key}"
