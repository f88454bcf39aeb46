"""What tenants asked for goes out in small parts, until each is answered, and adds up to what was counted."""

from collections import Counter

from msgspec.structs import replace

from fuseboard.contract.sync import BreakerView, decode_request
from fuseboard.contract.tallies import MAX_TALLIED, Tally, TenantTally
from fuseboard.contract.words import Reason
from fuseboard.reporting import request_tallies
from fuseboard.reporting.counters import Counters
from fuseboard.reporting.heartbeat import FIELDS_BYTES, HEARTBEAT_BYTES, encode_bounded
from fuseboard.reporting.tenant_tallies import EVERY_S, LAST_BYTES, MAX_BYTES, MAX_TENANTS, TenantTallies
from tests.contract.examples import SMALLEST_REQUEST


class Setting:
    def __init__(self):
        self.now = 0.0
        self.counters = Counters()
        self.tallies = TenantTallies(self.counters, now=lambda: self.now)

    def ask(self, tenant, times=1, refused=0):
        for _ in range(times):
            self.counters.request(tenant, True, None)
        for _ in range(refused):
            self.counters.request(tenant, False, Reason.QUOTA)

    def parts(self):
        """Every part that is waiting, each answered."""
        found = []
        while (part := self.tallies.next()) is not None:
            self.tallies.taken()
            found.append(part)
        return found


def summed(parts):
    asked, refused = Counter(), Counter()
    for part in parts:
        for one in part.tenants:
            asked[one.tenant] += one.asked
            refused[one.tenant] += one.refused
    return asked, refused


def test_parts_add_up_to_what_was_counted():
    setting = Setting()
    setting.ask("acme", 3, refused=2)
    setting.ask("globex")
    (first,) = setting.parts()
    assert first == Tally(number=1, tenants=(TenantTally("acme", 5, 2), TenantTally("globex", 1)))
    setting.ask("acme", 4)
    assert setting.parts() == [], "the next look is a minute later"
    setting.now += EVERY_S
    (second,) = setting.parts()
    assert second == Tally(number=2, tenants=(TenantTally("acme", 4),))
    setting.now += EVERY_S
    # Nothing was counted: the gateway reads that this pod tallies.
    assert setting.parts() == [Tally(number=3)]


def test_a_part_is_repeated_until_it_is_answered():
    setting = Setting()
    setting.ask("acme")
    part = setting.tallies.next()
    setting.ask("acme", 9)
    setting.now += 3 * EVERY_S
    assert setting.tallies.next() is part
    setting.tallies.taken()
    assert setting.tallies.next() == Tally(number=2, tenants=(TenantTally("acme", 9),))


def test_many_tenants_go_out_in_parts_that_are_bounded():
    setting = Setting()
    names = [f"customer-{n}" for n in range(2 * MAX_TENANTS)] + [f"{n}{'long ' * 35}" for n in range(150)]
    for name in names:
        setting.ask(name)
    parts = setting.parts()
    assert summed(parts)[0] == dict.fromkeys(names, 1)
    for part in parts:
        assert len(part.tenants) <= MAX_TENANTS
        assert sum(len(one.tenant) for one in part.tenants) <= MAX_BYTES
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))


def test_a_process_that_stops_reports_what_it_counted_since_the_last_minute():
    setting = Setting()
    setting.parts()
    setting.ask("acme", 2)
    assert setting.tallies.next() is None
    assert setting.tallies.next(leaving=True).tenants == (TenantTally("acme", 2),)


def test_a_process_that_stops_sends_as_much_as_it_can_and_says_if_more_is_left():
    setting = Setting()
    setting.parts()
    names = [f"customer-{n}" for n in range(MAX_TALLIED + 1)]
    for name in names[:-1]:
        setting.ask(name)
    last = setting.tallies.next(leaving=True)
    assert summed([last])[0] == dict.fromkeys(names[:-1], 1)
    assert not last.partial
    assert len(encode_bounded(replace(SMALLEST_REQUEST, tally=last))) < HEARTBEAT_BYTES
    setting = Setting()
    for name in names:
        setting.ask(name)
    last = setting.tallies.next(leaving=True)
    assert summed([last])[0] == dict.fromkeys(names[:-1], 1)
    assert last.partial


def test_a_process_that_stops_repeats_what_is_not_answered_and_says_that_more_is_left():
    setting = Setting()
    setting.ask("acme")
    part = setting.tallies.next()
    setting.ask("globex")
    # A gateway that has the part counts no other of its number.
    assert setting.tallies.next(leaving=True) == replace(part, partial=True)


def test_the_last_tally_of_long_names_is_bounded():
    setting = Setting()
    for n in range(300):
        setting.ask(f"{n}{'long ' * 35}")
    last = setting.tallies.next(leaving=True)
    assert sum(len(one.tenant) for one in last.tenants) <= LAST_BYTES
    assert last.partial
    assert len(encode_bounded(replace(SMALLEST_REQUEST, tally=last))) < HEARTBEAT_BYTES


def test_a_pod_with_too_many_tenants_says_so(monkeypatch):
    monkeypatch.setattr(request_tallies, "MAX_TENANTS", 2)
    setting = Setting()
    for name in ("a", "b", "c"):
        setting.ask(name)
    (part,) = setting.parts()
    assert part.partial
    assert summed([part])[0] == {"a": 1, "b": 1}


def test_a_heartbeat_that_is_cut_keeps_its_tally():
    """What a tally lists is sent once, so it must not be left out."""
    breakers = tuple(BreakerView(dependency=f"dependency-{n}-{'x' * 40}") for n in range(500))
    tally = Tally(number=1, tenants=tuple(TenantTally(f"customer-{n}", n) for n in range(200)))
    body = encode_bounded(replace(SMALLEST_REQUEST, breakers=breakers, tally=tally))
    kept = decode_request(body)
    assert len(kept.breakers) < 500
    assert kept.cut
    assert kept.tally == tally
    assert len(body) <= FIELDS_BYTES + 12_000
