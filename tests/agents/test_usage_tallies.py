"""What calls to models used goes out in small parts, until Postgres has each, and none is lost."""

from collections import Counter
from random import Random

import pytest
from msgspec.structs import replace

from fuseboard.contract.sync import BreakerView, decode_request
from fuseboard.contract.tallies import MAX_TALLIED, Tally, TenantTally
from fuseboard.contract.usage import MAX_AMOUNT, MAX_PARTS, MAX_ROWS, UsageRow
from fuseboard.reporting import usage_tallies
from fuseboard.reporting.heartbeat import HEARTBEAT_BYTES, encode_bounded
from fuseboard.reporting.tenant_tallies import LAST_BYTES as LAST_TALLY_BYTES
from fuseboard.reporting.usage_tallies import (
    EVERY_S,
    LAST_BYTES,
    MAX_BYTES,
    MAX_KEPT,
    MAX_MODELS,
    MAX_SPANS,
    OLDER_GATEWAY_S,
    SPAN_S,
    UsageTallies,
    Used,
)
from tests.contract.examples import SMALLEST_REQUEST


class Setting:
    def __init__(self) -> None:
        self.now = 1000.0
        self.tallies = UsageTallies(now=lambda: self.now, wall=self.wall)

    def wall(self):
        return 1_800_000_000.0 + self.now

    def add(self, tenant="acme", model="m", times=1, **numbers):
        for _ in range(times):
            self.tallies.add(model, "llm", tenant, Used(**numbers))

    def drain(self):
        """Every part that waits, each taken."""
        self.now += EVERY_S
        found = []
        while parts := self.tallies.next():
            found += parts
            self.tallies.taken(parts[-1].number)
        return found


def rows(parts):
    return [row for part in parts for row in part.rows]


def calls(parts):
    return sum(row.calls for row in rows(parts))


def test_calls_are_added_up_by_model_dependency_and_tenant():
    setting = Setting()
    setting.add(fresh=10, output=3, micro_usd=7)
    setting.add(fresh=5, cached=2, written=1, output=4, micro_usd=9, wasted=1, wasted_micro_usd=9)
    setting.add("globex", fresh=1)
    setting.add(model="other", estimated=1, unpriced=1, saved_micro_usd=-4)
    assert setting.tallies.next() == (), "the calls of some seconds are sent together"
    (part,) = setting.drain()
    assert part.number == 1
    assert set(part.rows) == {
        UsageRow("m", "llm", "acme", 2, 15, 2, 1, 7, 16, 1, 9),
        UsageRow("m", "llm", "globex", 1, 1),
        UsageRow("other", "llm", "acme", 1, estimated=1, unpriced=1, saved_micro_usd=-4),
    }
    assert setting.drain() == [], "what is taken is not sent again"
    assert setting.tallies.left == 0


def test_a_part_is_repeated_until_postgres_has_it_and_its_age_grows():
    setting = Setting()
    setting.add()
    setting.now += EVERY_S
    (first,) = setting.tallies.next()
    setting.tallies.taken(0)
    setting.now += 5
    (again,) = setting.tallies.next()
    assert again == replace(first, ago_s=first.ago_s + 5)
    setting.add()
    setting.now += EVERY_S
    assert [part.number for part in setting.tallies.next()] == [1, 2]
    setting.tallies.taken(1)
    assert [part.number for part in setting.tallies.next()] == [2]


def test_an_older_gateway_gets_the_parts_rarely_and_nothing_is_lost():
    setting = Setting()
    setting.add()
    setting.now += EVERY_S
    assert setting.tallies.next()
    setting.tallies.taken(None)
    setting.now += OLDER_GATEWAY_S - 1
    assert setting.tallies.next() == ()
    setting.add(times=4)
    setting.now += EVERY_S
    parts = setting.tallies.next()
    assert calls(parts) == 5


def test_hours_without_a_control_plane_are_bounded_in_memory_and_keep_their_times():
    setting = Setting()
    hours = 30
    for _ in range(hours * 12):
        setting.add(fresh=2)
        setting.tallies.next()  # sent, and never answered
        setting.now += SPAN_S
    assert setting.tallies.left <= MAX_SPANS + MAX_PARTS + 1
    found = setting.drain()
    assert calls(found) == hours * 12
    assert sum(row.fresh for row in rows(found)) == hours * 24
    assert max(part.ago_s for part in found) >= (hours - 1) * 3600
    assert all(len(part.rows) <= MAX_ROWS for part in found)


def test_too_many_tenants_are_counted_without_their_names():
    setting = Setting()
    for number in range(MAX_KEPT + 500):
        setting.add(f"tenant-{number}", fresh=1)
    assert setting.tallies.left <= MAX_KEPT
    found = setting.drain()
    assert calls(found) == MAX_KEPT + 500
    assert 500 < sum(row.calls for row in rows(found) if not row.tenant) < MAX_KEPT


def test_the_cheapest_tenants_lose_their_names_first():
    setting = Setting()
    for number in range(MAX_KEPT):
        setting.add(f"tenant-{number}", micro_usd=number % 1_000)
    setting.add("costly", micro_usd=1_000)
    named = {row.tenant: row.micro_usd for row in rows(setting.drain()) if row.tenant}
    assert named["costly"] == 1_000
    assert min(named.values()) > 100


@pytest.mark.parametrize(("hours", "tenants", "models"), [(30, 400, 1), (60, 20, 90), (250, 40, 3)])
def test_in_an_outage_with_more_rows_than_fit_no_call_moves_to_another_hour(hours, tenants, models):
    setting = Setting()
    random = Random(7)
    used = Counter()
    for _ in range(hours * 12):
        # A little before and after the hour, too.
        setting.now += random.choice([SPAN_S - 40, SPAN_S, SPAN_S + 40])
        hour = int(setting.wall() // 3600)
        for _ in range(tenants // 4):
            cost = random.randrange(1, 1_000)
            tenant, model = random.randrange(tenants), random.randrange(models)
            setting.add(f"t{tenant}", f"m{model}", micro_usd=cost, fresh=1)
            used[hour, "calls"] += 1
            used[hour, "micro_usd"] += cost
        setting.tallies.next()  # sent, and never answered
    assert setting.tallies.left <= MAX_KEPT + MAX_PARTS * MAX_ROWS
    found = Counter()
    for part in setting.drain():
        # As a gateway counts it.
        hour = int(setting.wall() - part.ago_s) // 3600
        found[hour, "calls"] += sum(row.calls for row in part.rows)
        found[hour, "micro_usd"] += sum(row.micro_usd for row in part.rows)
    last = int(setting.wall()) // 3600
    kept = {key: number for key, number in used.items() if key[0] > last - 7 * 24}
    assert {key: found[key] for key in kept} == kept
    assert sum(found.values()) == sum(used.values())


def test_too_many_models_are_counted_without_their_names():
    setting = Setting()
    for number in range(MAX_MODELS + 7):
        setting.add(model=f"model-{number}", fresh=1)
    found = setting.drain()
    assert UsageRow("", "", "", 7, 7) in rows(found)
    assert calls(found) == MAX_MODELS + 7


def test_heartbeats_stay_small_whatever_the_names():
    setting = Setting()
    random = Random(1)
    for number in range(2_000):
        setting.add(f"{number}-" + "ü" * random.randrange(150), model="模" * random.randrange(200))
    setting.now += EVERY_S
    sent = 0
    while parts := setting.tallies.next():
        assert len(parts) <= MAX_PARTS
        body = encode_bounded(replace(SMALLEST_REQUEST, usage=parts))
        assert len(body) <= MAX_BYTES + 1_000
        assert decode_request(body).usage == parts
        sent += calls(parts)
        setting.tallies.taken(parts[-1].number)
    assert sent == 2_000


def test_the_last_heartbeat_has_what_fits_and_stays_below_its_bound():
    setting = Setting()
    setting.add()
    setting.now += EVERY_S
    setting.tallies.next()
    setting.add("globex")
    last = setting.tallies.next(leaving=True)
    assert [part.number for part in last] == [1, 2], "also what is not answered, and what is not due"
    for number in range(1_000):
        setting.add(f"{number} {'long ' * 30}")
    last = setting.tallies.next(leaving=True)
    assert len(encode_bounded(replace(SMALLEST_REQUEST, usage=last))) <= LAST_BYTES + 1_000
    assert setting.tallies.left > len(rows(last))
    tally = Tally(
        number=1,
        tenants=tuple(
            TenantTally(f"{n:04}" * (LAST_TALLY_BYTES // MAX_TALLIED // 4), 1) for n in range(MAX_TALLIED)
        ),
    )
    breakers = tuple(BreakerView(dependency=f"dependency-{n}-{'x' * 40}") for n in range(500))
    body = encode_bounded(replace(SMALLEST_REQUEST, usage=last, tally=tally, breakers=breakers))
    assert len(body) <= HEARTBEAT_BYTES
    kept = decode_request(body)
    assert (kept.usage, kept.tally) == (last, tally)
    assert kept.cut


def test_names_that_no_heartbeat_can_have_are_made_safe():
    setting = Setting()
    setting.add("half \ud800", model="\udfff" + "m" * 300)
    setting.add(micro_usd=MAX_AMOUNT, times=2, saved_micro_usd=-MAX_AMOUNT)
    found = setting.drain()
    body = encode_bounded(replace(SMALLEST_REQUEST, usage=tuple(found)))
    assert decode_request(body).usage == tuple(found)
    assert {row.micro_usd for row in rows(found)} == {0, MAX_AMOUNT}


@pytest.mark.parametrize("seed", range(5))
def test_what_is_taken_adds_up_to_what_was_counted_whatever_is_lost(seed, monkeypatch):
    """A model: answers are lost, heartbeats fail, and Postgres takes a part once."""
    monkeypatch.setattr(usage_tallies, "MAX_KEPT", 50)
    random = Random(seed)
    setting = Setting()
    counted, taken, last = Counter(), Counter(), 0
    for _ in range(3_000):
        action = random.choice(["add", "add", "add", "beat", "wait"])
        if action == "add":
            tokens = random.randrange(1000)
            setting.add(f"t{random.randrange(80)}", f"m{random.randrange(5)}", fresh=tokens)
            counted.update(calls=1, fresh=tokens)
        elif action == "wait":
            setting.now += random.choice([1, EVERY_S, SPAN_S])
        else:
            parts = setting.tallies.next()
            for part in parts if random.random() < 0.7 else parts[:0]:
                if part.number > last:
                    last = part.number
                    taken.update(calls=calls([part]), fresh=sum(row.fresh for row in part.rows))
            if parts and random.random() < 0.5:
                setting.tallies.taken(random.choice([last, last, 0]))
    parts = setting.tallies.next(leaving=True)
    while parts:
        fresh = [part for part in parts if part.number > last]
        taken.update(calls=calls(fresh), fresh=sum(row.fresh for row in rows(fresh)))
        last = parts[-1].number
        setting.tallies.taken(last)
        parts = setting.tallies.next(leaving=True)
    assert taken == counted


def test_a_name_has_no_character_that_postgres_refuses():
    setting = Setting()
    setting.add("ac\0me", model="m\0\ud800")
    (part,) = setting.drain()
    assert part.rows == (UsageRow("m??", "llm", "ac?me", 1),)
