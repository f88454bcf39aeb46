"""Benchmarks fail when a decision that should be shared was made without Redis."""

import re
import signal
from pathlib import Path

import pytest

from controlplane.embedded.valkey import Valkey
from fuseboard.batching.demand import may_be_leased_early
from fuseboard.contract.words import Mode
from fuseboard.reporting.counters import Counters
from tools.bench.side_by_side import ours
from tools.bench.side_by_side.shared_only import DecidedLocallyError, check_shared, shared_only

SIDE_BY_SIDE = Path(__file__).resolve().parents[2] / "tools" / "bench" / "side_by_side"


async def decide_one_without_redis(valkey: Valkey, **options: bool) -> None:
    async with ours.running(valkey.url, "bench", **options) as pod:
        assert (await pod.admission.admit_request("tenant-000")).mode is Mode.SHARED
        assert valkey.process is not None
        valkey.process.send_signal(signal.SIGSTOP)
        try:
            assert (await pod.admission.admit_request("tenant-001")).mode is Mode.LOCAL
        finally:
            valkey.process.send_signal(signal.SIGCONT)


async def test_a_pod_that_decided_without_redis_ends_the_run(valkey: Valkey):
    with pytest.raises(DecidedLocallyError, match=r"bench: 1 decisions .* without Redis"):
        await decide_one_without_redis(valkey)


async def test_a_bench_of_the_deadline_may_decide_without_redis(valkey: Valkey):
    await decide_one_without_redis(valkey, may_decide_locally=True)


async def test_shared_decisions_end_no_run(valkey: Valkey):
    async with ours.running(valkey.url, "bench") as pod:
        for _ in range(20):
            assert (await pod.admission.admit_request("tenant-000")).allowed


def test_only_decisions_of_the_block_count():
    counters = Counters()
    counters.decided_locally()
    with shared_only("before", counters):
        pass
    with pytest.raises(SystemExit), shared_only("within", counters):
        counters.decided_locally()


def test_another_error_of_the_block_is_not_hidden():
    counters = Counters()

    def fail() -> None:
        with shared_only("failed", counters):
            counters.decided_locally()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_a_run_that_decided_locally_ends_with_a_failure():
    check_shared("none", 0)
    with pytest.raises(SystemExit) as ended:
        check_shared("FastAPI", 3)
    assert "FastAPI: 3 decisions" in str(ended.value.code)


def test_the_pod_that_is_asked_each_time_is_never_leased():
    assert may_be_leased_early(ours.REQUESTS)
    assert not may_be_leased_early(ours.ASKED_REQUESTS)


def test_every_bench_side_by_side_takes_its_pods_from_the_one_place_that_checks():
    for file in SIDE_BY_SIDE.glob("*.py"):
        text = file.read_text()
        makes_pods = re.search(r"\b(?:Agent|Pod|compose_admission)\(", text)
        assert not makes_pods or file.name in ("application.py", "ours.py"), file.name
    assert "check_shared(" in (SIDE_BY_SIDE / "served.py").read_text()
