"""Pods that call models, gateways that may lose what they have, and what the ledger says."""

from datetime import UTC, datetime, timedelta
from typing import Any

from asgiref.sync import sync_to_async
from django.db.models import Sum
from msgspec.structs import asdict

from controlplane.gateway.postgres.usage_rows import UsageWriter
from controlplane.ledger.models import UsageDay, UsageHour, UsageTotal, Whose
from controlplane.ledger.rows import AMOUNTS
from fuseboard.contract.sync import SyncResponse, decode_response
from fuseboard.reporting.usage_tallies import EVERY_S, UsageTallies, Used
from tests.controlplane.gateway.manual_gateway import NOON, TurnedClock, beat, post, ready_gateway

#: The wall clock of a gateway at its start.
START = datetime.fromtimestamp(NOON + 1_000, UTC)


class Pod:
    """The tallies of one process, and its heartbeats."""

    def __init__(
        self, clock: TurnedClock, name: str = "pod-1", boot: str = "boot-0001", **fields: Any
    ) -> None:
        self.clock, self.name, self.boot, self.fields = clock, name, boot, fields
        self.tallies = UsageTallies(now=lambda: clock.now, wall=clock.wall)

    def call(self, tenant: str = "acme", model: str = "m", dependency: str = "llm", **numbers: int) -> Used:
        used = Used(**numbers)
        self.tallies.add(model, dependency, tenant, used)
        return used

    async def beat(self, gateway: Any, *, leaving: bool = False, answered: bool = True) -> SyncResponse:
        """Send what is due. Without ``answered``, the answer is lost on its way."""
        usage = self.tallies.next(leaving=leaving)
        body = beat(self.name, boot=self.boot, usage=usage, leaving=leaving, **self.fields)
        answer = await post(gateway, body)
        assert answer.status_code == 200, answer.text
        response = decode_response(answer.content)
        if usage and answered:
            self.tallies.taken(response.usage_taken)
        return response


class Gateway:
    """A gateway without its loops: a test writes when it wants."""

    def __init__(self, clock: TurnedClock, name: str = "g1") -> None:
        self.gateway = ready_gateway(clock, gateway=name, flush_timeout_s=30.0)
        gateway = self.gateway
        self.writer = UsageWriter(gateway.fleets, gateway.settings, gateway.counts, clock)

    async def write(self) -> bool:
        try:
            return await self.writer.write()
        finally:
            await self.writer.disconnect()


async def delivered(pod: Pod, gateway: Gateway) -> None:
    """Everything that the pod has counted is in the ledger, and the pod knows it."""
    while pod.tallies.left:
        pod.clock.turn(EVERY_S)
        await pod.beat(gateway.gateway)
        assert await gateway.write()


@sync_to_async
def totals() -> list[dict[str, int]]:
    """The sums of the four books, which must be equal."""
    books = (
        UsageHour.objects.filter(whose=Whose.SERVICE),
        UsageHour.objects.filter(whose=Whose.TENANT),
        UsageDay.objects.all(),
        UsageTotal.objects.all(),
    )
    return [{name: int(book.aggregate(n=Sum(name))["n"] or 0) for name in AMOUNTS} for book in books]


def bill_of(calls: list[Used]) -> dict[str, int]:
    return {name: sum(asdict(one)[name] for one in calls) for name in AMOUNTS}


@sync_to_async
def hours(whose: Whose = Whose.TENANT) -> dict[tuple[datetime, str, str], int]:
    """Hour, name and model -> calls."""
    rows = UsageHour.objects.filter(whose=whose)
    return {(row.at, row.name, row.model): row.calls for row in rows}


def hour_of(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def ago(**units: int) -> datetime:
    return hour_of(START - timedelta(**units))
