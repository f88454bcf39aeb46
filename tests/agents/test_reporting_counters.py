"""Totals since the process started, as a heartbeat carries them."""

import sys
import threading

from fuseboard.contract.sync import BUSIEST_TENANTS, CALL_EDGES_MS, LATENCY_EDGES_US, RuleCounters, encode
from fuseboard.contract.words import Outcome, Reason
from fuseboard.reporting.counters import BUSIEST_BY_RULE, MAX_DEPENDENCIES, Counters
from fuseboard.reporting.request_tallies import MAX_OF_ALL, MAX_OF_TENANT, MAX_TENANTS, MAX_WAYS


def test_requests_are_counted_by_tenant_and_refusals_by_reason():
    counters = Counters()
    for allowed, reason in [(True, None), (False, Reason.QUOTA), (False, Reason.SUSPENDED)]:
        counters.request("acme", allowed, reason)
    wire = counters.wire()
    assert wire.requests == 3
    assert wire.refused == {Reason.QUOTA: 1, Reason.SUSPENDED: 1}
    (acme,) = wire.tenants
    assert (acme.tenant, acme.allowed, acme.refused) == ("acme", 1, 2)


def test_calls_are_counted_by_dependency_and_outcome():
    counters = Counters()
    for outcome in Outcome:
        counters.call("payments", outcome)
    counters.call_refused("payments", Reason.BREAKER_OPEN)
    (payments,) = counters.wire().dependencies
    assert (payments.ok, payments.failure, payments.slow, payments.neutral) == (1, 1, 1, 1)
    assert payments.refused == {Reason.BREAKER_OPEN: 1}


def test_how_long_calls_took_is_counted_by_dependency():
    counters = Counters()
    counters.call("ledger", Outcome.OK)
    for seconds in (0.001, 0.002, 0.0021, 0.7, 3_600.0):
        counters.call_took("payments", seconds)
    ledger, payments = counters.wire().dependencies
    # Zeros at the end are left out, so that what is not measured takes no bytes.
    assert ledger.latency == ()
    assert payments.latency == (2, 1, *[0] * 6, 1, *[0] * 5, 1)
    assert len(payments.latency) == len(CALL_EDGES_MS) + 1


def test_an_answer_on_an_edge_belongs_to_the_bucket_below_it():
    counters = Counters()
    for latency_us in (0, 250, 251, 500_000, 500_001):
        counters.store_answer(latency_us)
    latency = counters.wire().store.latency
    assert len(latency) == len(LATENCY_EDGES_US) + 1
    assert (latency[0], latency[1], latency[-2], latency[-1]) == (2, 1, 1, 1)


def test_every_question_is_counted_however_it_ended():
    counters = Counters()
    counters.store_answer(100)
    counters.store_timeout()
    counters.store_error()
    counters.decided_locally()
    counters.unknown_tenant()
    wire = counters.wire()
    assert (wire.store.asked, wire.store.timeouts, wire.store.errors) == (3, 1, 1)
    assert (wire.decided_locally, wire.unknown_tenants) == (1, 1)


def test_a_million_tenants_cost_a_bounded_table_and_no_request_of_the_total():
    counters = Counters()
    for number in range(MAX_TENANTS + 500):
        counters.request(f"t{number}", True, None)
    counters.request("t1", True, None)
    for number in range(MAX_DEPENDENCIES + 5):
        counters.call(f"d{number}", Outcome.OK)
    wire = counters.wire()
    assert wire.requests == MAX_TENANTS + 501
    assert len(wire.tenants) == BUSIEST_TENANTS
    assert wire.tenants[0].tenant == "t1"
    assert len(wire.dependencies) == MAX_DEPENDENCIES


def test_the_list_shows_who_is_busy_of_late_not_who_once_was():
    counters = Counters()
    for _ in range(1000):
        counters.request("once", True, None)
    counters.wire()
    for _ in range(40):
        for number in range(BUSIEST_TENANTS):
            counters.request(f"t{number}", True, None)
            counters.request(f"t{number}", True, None)
        tenants = {counted.tenant for counted in counters.wire().tenants}
    assert "once" not in tenants


def test_a_beat_may_be_made_while_the_loop_counts():
    """The sync thread reads without a lock: tables grow under its hands, and nothing breaks or falls."""
    counters, done = Counters(), threading.Event()
    errors: list[BaseException] = []

    def read() -> None:
        last = 0
        try:
            while not done.is_set():
                wire = counters.wire()
                assert wire.requests >= last
                last = wire.requests
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=read)
    thread.start()
    try:
        for number in range(20_000):
            counters.request(f"t{number % 15_000}", number % 3 == 0, Reason.QUOTA)
            counters.call(f"d{number % 600}", Outcome.OK)
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert errors == []
    assert counters.wire().requests == 20_000


def test_requests_are_reported_by_rule_for_the_busiest_tenants_and_for_all():
    counters = Counters()
    for number in range(BUSIEST_BY_RULE + 5):
        for _ in range(100 - number):
            counters.request(f"t{number:02}", True, None, ("requests",))
    counters.request("t00", False, Reason.QUOTA, ("requests",), "requests")
    counters.request("t01", True, None, ("exports", "requests"))
    counters.tally("t01", ("requests",)).allowed += 7
    counters.request("t02", False, Reason.SUSPENDED, ("requests",), "suspended")
    counters.tally("t01", ("exports", "requests")).would_refuse("exports", 3)
    wire = counters.wire()
    told = {counted.tenant: counted.rules for counted in wire.tenants if counted.rules}
    assert set(told) == {f"t{number:02}" for number in range(BUSIEST_BY_RULE)}
    # Nearly always every rule bound every request, and need not say how many.
    assert told["t00"] == (RuleCounters(rule="requests", refused=1),)
    assert told["t01"] == (
        RuleCounters(rule="exports", asked=1, shadow=3),
        RuleCounters(rule="requests", asked=107),
    )
    assert told["t02"] == (RuleCounters(rule="requests"),)
    asked = sum(100 - number for number in range(BUSIEST_BY_RULE + 5)) + 10
    assert wire.rules == (
        RuleCounters(rule="exports", asked=1, shadow=3),
        RuleCounters(rule="requests", asked=asked, refused=1),
    )


def test_a_million_rules_cost_a_bounded_table_too():
    counters = Counters()
    for number in range(10 * (MAX_WAYS + 5)):
        counters.request(f"t{number % 10}", False, Reason.QUOTA, (f"r{number}",), f"r{number}")
    wire = counters.wire()
    assert wire.requests == wire.refused[Reason.QUOTA] == 10 * (MAX_WAYS + 5)
    assert len(wire.rules) == MAX_OF_ALL
    assert len(wire.tenants[0].rules) == MAX_OF_TENANT
    assert len(encode(wire)) < 8_000
