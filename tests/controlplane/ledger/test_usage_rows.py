"""The ledger has what pods counted: once, whatever is repeated, lost or restarted."""

from datetime import timedelta
from random import Random

import pytest
from asgiref.sync import sync_to_async
from msgspec.structs import replace
from psycopg import OperationalError

from controlplane.fleet.models import GatewayOrder, OrderKind
from controlplane.gateway.postgres import usage_rows
from controlplane.gateway.postgres.orders import Orders
from controlplane.gateway.servers import usage_parts
from controlplane.ledger import edits, rows
from controlplane.ledger.models import UsageDay, UsageHour, UsageReceipt, UsageTotal, Whose
from controlplane.ledger.rows import AMOUNTS, MAX_SUM
from controlplane.series.kinds import tenant_number
from fuseboard.contract.usage import UsagePart, UsageRow
from fuseboard.reporting.usage_tallies import EVERY_S, SPAN_S
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat, post
from tests.controlplane.ledger.ledger_pods import (
    START,
    Gateway,
    Pod,
    ago,
    bill_of,
    delivered,
    hour_of,
    hours,
    totals,
)

pytestmark = pytest.mark.usefixtures("token", "thread_connections")


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


async def test_calls_are_in_the_hours_of_services_and_tenants_and_in_the_day(clock):
    pod, other, gateway = Pod(clock), Pod(clock, "pod-2", service="search"), Gateway(clock)
    calls = [
        pod.call(fresh=10, cached=4, written=2, output=3, micro_usd=70, saved_micro_usd=-5),
        pod.call(
            "globex", "n", wasted=1, wasted_micro_usd=9, micro_usd=9, estimated=1, estimated_micro_usd=9
        ),
        other.call(unpriced=1, output=1),
    ]
    await delivered(pod, gateway)
    await delivered(other, gateway)
    assert await totals() == [bill_of(calls)] * 4
    hour = hour_of(START)
    assert await hours() == {(hour, "acme", "m"): 2, (hour, "globex", "n"): 1}
    assert await hours(Whose.SERVICE) == {
        (hour, "checkout", "m"): 1,
        (hour, "checkout", "n"): 1,
        (hour, "search", "m"): 1,
    }
    days = await sync_to_async(
        lambda: list(UsageDay.objects.values_list("day", "tenant", "dependency", "calls"))
    )()
    assert sorted(days) == [(START.date(), "acme", "llm", 2), (START.date(), "globex", "llm", 1)]


async def test_a_part_is_answered_when_postgres_has_it(clock, monkeypatch):
    pod, gateway = Pod(clock), Gateway(clock)
    pod.call()
    assert (await pod.beat(gateway.gateway)).usage_taken is None, "nothing was sent"
    clock.turn(EVERY_S)
    assert (await pod.beat(gateway.gateway)).usage_taken == 0
    broken = monkeypatch.context()
    with broken as patch:

        async def down(*_: object) -> None:
            raise OperationalError("Postgres is down")

        patch.setattr(usage_rows, "write_parts", down)
        assert not await gateway.write()
    assert (await pod.beat(gateway.gateway)).usage_taken == 0
    assert gateway.gateway.counts.flush_failures == 1
    assert await gateway.write()
    assert (await pod.beat(gateway.gateway)).usage_taken == 1
    assert pod.tallies.left == 0
    assert (await totals())[2]["calls"] == 1


async def test_a_gateway_that_is_killed_loses_nothing(clock):
    pod, gateway = Pod(clock), Gateway(clock)
    pod.call()
    clock.turn(EVERY_S)
    await pod.beat(gateway.gateway)
    successor = Gateway(clock)
    await delivered(pod, successor)
    assert (await totals())[2]["calls"] == 1
    assert len(gateway.gateway.fleets["production"].sums.usage) == 1
    # It was only silent, and writes what it has.
    assert await gateway.write()
    assert (await totals())[2]["calls"] == 1


async def test_an_hour_without_a_control_plane_is_counted_in_its_hours(clock):
    pod = Pod(clock)
    for _ in range(24):  # two hours
        pod.call()
        clock.turn(SPAN_S)
    await delivered(pod, Gateway(clock))
    found = await hours()
    assert len(found) == 3
    assert sum(found.values()) == 24
    assert found[hour_of(START) + timedelta(hours=1), "acme", "m"] == 12


async def test_two_processes_of_one_name_have_separate_numbers(clock):
    first, second, gateway = Pod(clock), Pod(clock, boot="boot-0002"), Gateway(clock)
    for pod in (first, second):
        pod.call()
        await delivered(pod, gateway)
    # The older process is not counted in the figures of its name; what it used is on the bill.
    first.call()
    await delivered(first, gateway)
    assert (await totals())[2]["calls"] == 3


async def test_a_part_that_postgres_refuses_is_dropped_alone(clock, database, monkeypatch):
    # This bound is above all sums, so that the column alone bounds them.
    monkeypatch.setattr(rows, "MAX_SUM", 2**70)
    pod, gateway = Pod(clock), Gateway(clock)
    pod.call("full")
    await delivered(pod, gateway)
    await database.execute("UPDATE ledger_usageday SET fresh = %s", [2**63 - 2])
    pod.call("full", fresh=5)
    clock.turn(EVERY_S)
    await pod.beat(gateway.gateway)
    pod.call("other", fresh=5)
    await delivered(pod, gateway)
    assert gateway.gateway.counts.refused_writes.total["production", "usage of models"] == 1
    assert (await hours())[hour_of(START), "other", "m"] == 1
    assert (await hours())[hour_of(START), "full", "m"] == 1


async def test_memory_is_bounded_while_postgres_is_down(clock, monkeypatch):
    monkeypatch.setattr(usage_parts, "MAX_WAITING", 3)
    pod, gateway = Pod(clock), Gateway(clock)
    sent = 0
    for _ in range(6):
        pod.call(f"t{sent}")
        sent += 1
        clock.turn(EVERY_S)
        await pod.beat(gateway.gateway)
    waiting = gateway.gateway.fleets["production"].sums.usage
    assert len(waiting) == 3
    assert waiting.left_out
    await delivered(pod, gateway)
    assert (await totals())[2]["calls"] == sent


async def test_the_totals_of_days_include_what_a_gateway_of_an_older_release_wrote(clock, database):
    pod, gateway = Pod(clock), Gateway(clock)
    pod.call(fresh=3)
    await delivered(pod, gateway)
    await database.execute("UPDATE ledger_usagetotal SET fresh = 1")
    await database.execute(
        "INSERT INTO ledger_usageday SELECT id + 1, calls, 4, cached, written, output, micro_usd, wasted,"
        " wasted_micro_usd, estimated, estimated_micro_usd, unpriced, saved_micro_usd, environment, day - 1,"
        " tenant, model, dependency FROM ledger_usageday"
    )
    await sync_to_async(edits.tidy)(START)
    found = sync_to_async(lambda: list(UsageTotal.objects.order_by("day").values_list("day", "fresh")))
    assert await found() == [(START.date() - timedelta(days=1), 4), (START.date(), 3)]


async def test_a_pod_that_invents_models_and_ages_is_bounded(clock, monkeypatch):
    monkeypatch.setattr(usage_parts, "MAX_MODELS", 2)
    gateway = Gateway(clock)
    rows = tuple(UsageRow(f"m{number}", "llm", "acme", 1) for number in range(5))
    part = UsagePart(number=1, ago_s=10**9, rows=rows)
    assert (await post(gateway.gateway, beat(usage=(part,)))).status_code == 200
    assert await gateway.write()
    at = ago(days=7)
    assert await hours() == {(at, "acme", "m0"): 1, (at, "acme", "m1"): 1, (at, "acme", ""): 3}


async def test_a_pod_that_invents_models_leaves_those_of_other_services_their_names(clock, monkeypatch):
    monkeypatch.setattr(usage_parts, "MAX_MODELS", 2)
    monkeypatch.setattr(usage_parts, "MAX_SERVICES", 2)
    bad, good, third, gateway = (
        Pod(clock),
        Pod(clock, "pod-2", service="search"),
        Pod(clock, "pod-3", service="s3"),
        Gateway(clock),
    )
    for number in range(50):
        bad.call(model=f"invented-{number}")
    await delivered(bad, gateway)
    good.call(model="gpt-5.2", micro_usd=7)
    third.call(model="own", micro_usd=5)
    await delivered(good, gateway)
    await delivered(third, gateway)
    hour = hour_of(START)
    found = await hours(Whose.SERVICE)
    assert found[hour, "search", "gpt-5.2"] == 1
    assert found[hour, "s3", "own"] == 1
    assert found[hour, "checkout", ""] == 48


async def test_what_a_pod_counted_before_a_tenant_was_erased_has_no_name_whenever_it_comes(clock):
    pod, gateway = Pod(clock), Gateway(clock)
    await pod.beat(gateway.gateway)
    pod.call(fresh=3)
    pod.call("globex", fresh=4)
    fleet = gateway.gateway.fleets["production"]
    fleet.sums.usage.erase(tenant_number("acme"), at=clock.wall())
    clock.turn(5 * 3600)  # the gateway was away, or the pod was frozen
    pod.call(fresh=5)
    await delivered(pod, gateway)
    hour = hour_of(START)
    assert await hours() == {
        (hour, "", "m"): 1,
        (hour, "globex", "m"): 1,
        (hour + timedelta(hours=5), "acme", "m"): 1,
    }


async def test_a_gateway_that_was_away_while_a_tenant_was_erased_erases_what_it_wrote(clock, database):
    pod, gateway = Pod(clock), Gateway(clock)
    pod.call(fresh=3)
    await delivered(pod, gateway)
    order = {"environment": "production", "kind": OrderKind.ERASE, "server": str(tenant_number("acme"))}
    await sync_to_async(GatewayOrder.objects.create)(**order)
    await database.execute("UPDATE fleet_gatewayorder SET at = now() - interval '7 days'")
    await Orders(gateway.gateway.fleets, clock).look(database)
    assert await hours() == {(hour_of(START), "", "m"): 1}


async def test_an_erased_tenant_stays_in_the_sums_without_its_name(clock, database):
    pod, gateway = Pod(clock), Gateway(clock)
    pod.call(fresh=3)
    pod.call("globex", fresh=4)
    await delivered(pod, gateway)
    pod.call("", fresh=1)
    await delivered(pod, gateway)
    # One part is in the memory of the gateway.
    pod.call(fresh=5)
    clock.turn(EVERY_S)
    await pod.beat(gateway.gateway)
    assert await sync_to_async(edits.erase_tenant)("production", "acme") == 2
    number = tenant_number("acme")
    at = clock.wall()
    assert gateway.gateway.fleets["production"].sums.usage.erase(number, at=at)
    await delivered(pod, gateway)
    hour = hour_of(START)
    assert await hours() == {(hour, "", "m"): 3, (hour, "globex", "m"): 1}
    assert [book["fresh"] for book in await totals()] == [13] * 4
    # A write that was on its way brings it back, until gateways look again. So does a gateway that is late.
    pod.call(fresh=2)
    await delivered(pod, Gateway(clock))
    await usage_rows.erase_again(database, "production", [7, number])
    assert {name for _, name, _ in await hours()} == {"", "globex"}
    assert [book["fresh"] for book in await totals()] == [15] * 4


async def test_old_hours_keep_the_most_expensive_tenants_and_their_sum(clock, monkeypatch):
    monkeypatch.setattr(edits, "_TOO_MANY", edits._TOO_MANY.replace(f"> {edits.MAX_TENANTS}", "> 2"))
    pod, gateway = Pod(clock), Gateway(clock)
    calls = [
        pod.call(name, micro_usd=cost, fresh=fresh)
        for name, cost, fresh in (("a", 5, 0), ("b", 0, 7), ("c", 9, 0), ("d", 0, 8), ("", 1, 1))
    ]
    await delivered(pod, gateway)
    tidy = sync_to_async(edits.tidy)
    await tidy(START + timedelta(minutes=30))
    assert len(await hours()) == 5, "the hour is not over"
    await tidy(START + timedelta(hours=3))
    hour = hour_of(START)
    assert await hours() == {(hour, "a", "m"): 1, (hour, "c", "m"): 1, (hour, "", "m"): 3}
    assert await totals() == [bill_of(calls)] * 4
    assert await sync_to_async(UsageDay.objects.count)() == 5, "days have all tenants"


async def test_what_is_too_old_is_deleted(clock, settings):
    pod, gateway = Pod(clock), Gateway(clock)
    pod.call()
    await delivered(pod, gateway)

    @sync_to_async
    def left(**later: int) -> tuple[int, int]:
        edits.tidy(START + timedelta(**later))
        return UsageHour.objects.count(), UsageDay.objects.count()

    assert await left(days=settings.LEDGER_KEPT_HOURS_D - 1) == (2, 1)
    assert await left(days=settings.LEDGER_KEPT_HOURS_D + 1) == (0, 1)
    assert await left(days=settings.LEDGER_KEPT_DAYS_D + 2) == (0, 0)
    assert await sync_to_async(UsageReceipt.objects.count)() in (0, 1)


@pytest.mark.parametrize("seed", range(3))
async def test_the_sum_of_the_ledger_is_the_bill_whatever_happens(clock, seed, monkeypatch):
    """A model: answers and heartbeats are lost, Postgres fails, gateways and pods restart, pods move."""
    random = Random(seed)
    gateways = [Gateway(clock, "g1"), Gateway(clock, "g2")]
    pods = [Pod(clock, f"pod-{number}", f"boot-{number:04}") for number in range(3)]
    bill = []
    real = usage_rows.write_parts

    async def flaky(connection, environment, parts):
        if random.random() < 0.3:
            raise OperationalError("before")
        await real(connection, environment, parts)
        if random.random() < 0.2:
            raise OperationalError("after: the commit is not known")

    async def at_once(self) -> None:
        """No pause."""

    monkeypatch.setattr(usage_rows, "write_parts", flaky)
    monkeypatch.setattr("controlplane.gateway.postgres.connections.Backoff.pause", at_once)
    for number in range(150):
        at = random.randrange(len(pods))
        pod, gateway = pods[at], random.choice(gateways)
        match random.choice(
            ["call", "call", "call", "beat", "beat", "lost", "write", "turn", "kill", "restart"]
        ):
            case "call":
                numbers = {name: random.randrange(500) for name in AMOUNTS if name != "calls"}
                bill.append(pod.call(f"t{random.randrange(9)}", f"m{random.randrange(3)}", **numbers))
            case "beat":
                await pod.beat(gateway.gateway)
            case "lost":
                await pod.beat(gateway.gateway, answered=False)
            case "write":
                await gateway.writer.write()
            case "turn":
                clock.turn(random.choice([1, EVERY_S, SPAN_S]))
            case "kill":
                await gateway.writer.disconnect()
                gateways[gateways.index(gateway)] = Gateway(clock, gateway.gateway.settings.gateway)
            case "restart":
                # It sends the rest until it is taken. A process that is killed loses some seconds.
                while pod.tallies.left:
                    await pod.beat(gateway.gateway, leaving=True)
                    await gateway.writer.write()
                pods[at] = Pod(clock, pod.name, f"boot-{at}-{number:04}")
    for gateway in gateways:
        while not await gateway.writer.write():
            """Postgres is back at some time."""
    for pod in pods:
        while pod.tallies.left:
            clock.turn(EVERY_S)
            await pod.beat(gateways[0].gateway)
            await gateways[0].writer.write()
    for gateway in gateways:
        await gateway.writer.disconnect()
    assert await totals() == [bill_of(bill)] * 4


def test_parts_of_one_process_wait_in_the_order_of_their_numbers():
    parts = usage_parts.UsageParts()
    row = UsageRow("m", "llm", "acme", 1)
    usage = tuple(UsagePart(number=number, ago_s=0, rows=(row,)) for number in (4, 5))
    heard = beat(usage=usage)
    assert parts.record(heard, START.timestamp()) == 0
    assert parts.record(heard, START.timestamp()) == 0, "a part that is repeated waits once"
    assert [part.number for part in parts.some(10)] == [4, 5]
    parts.written(parts.some(1))
    assert parts.record(heard, START.timestamp()) == 4
    parts.written(parts.some(1))
    assert parts.record(heard, START.timestamp()) == 5
    assert parts.record(replace(heard, boot="boot-0002"), START.timestamp()) == 0


def test_parts_without_rows_are_bounded_too(monkeypatch):
    monkeypatch.setattr(usage_parts, "MAX_WAITING", 3)
    parts = usage_parts.UsageParts()
    usage = tuple(UsagePart(number=number, ago_s=0, rows=()) for number in range(1, 6))
    parts.record(beat(usage=usage), START.timestamp())
    assert (len(parts), parts.left_out) == (3, 1)
    parts.written(parts.some(3))
    parts.record(beat(usage=usage), START.timestamp())
    assert [part.number for part in parts.some(3)] == [4, 5]


async def test_usage_that_a_pod_has_invented_does_not_keep_out_that_of_others(clock):
    pod, gateway = Pod(clock), Gateway(clock)
    pod.call(micro_usd=70)
    await delivered(pod, gateway)

    @sync_to_async
    def invent() -> None:
        for book in (UsageTotal.objects.all(), UsageHour.objects.filter(whose=Whose.SERVICE)):
            book.update(micro_usd=2**63 - 10, saved_micro_usd=-(2**63) + 10)
        day = UsageDay.objects.get(tenant="acme")
        for name in ("liar", "liar-2"):
            day.pk, day.tenant, day.micro_usd = None, name, 2**63 - 10
            day.save(force_insert=True)

    await invent()
    pod.call(micro_usd=30, saved_micro_usd=-50)
    await delivered(pod, gateway)
    assert (await sync_to_async(UsageDay.objects.get)(tenant="acme")).micro_usd == 100
    assert (await sync_to_async(UsageTotal.objects.get)()).micro_usd == MAX_SUM
    # Nor does it stop the worker, or an erasure.
    tokens = dict.fromkeys(("fresh", "cached", "written", "output"), MAX_SUM)
    await sync_to_async(UsageHour.objects.filter(whose=Whose.TENANT).update)(**tokens)
    await sync_to_async(edits.tidy)(START + timedelta(hours=4))
    assert (await sync_to_async(UsageTotal.objects.get)()).micro_usd == MAX_SUM
    for name in ("liar", "liar-2", "acme"):
        assert await sync_to_async(edits.erase_tenant)("production", name)
