"""Celery, dramatiq and arq with their own workers and a real broker, each in its own environment."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import redis

from fuseboard.contract import keys
from fuseboard.contract.policy import Dependency, Limit
from fuseboard.contract.words import Algorithm
from tests.agents.published import publish
from tests.agents.servers import BREAKER, PATIENT, POLICY
from tests.engines import work
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
#: Of four tasks at once, three are refused, and two of them again.
SLOW = Limit(name="slow", limit=1, window_ms=300, algorithm=Algorithm.SLIDING_WINDOW)
CLOSED = Limit(name="closed", limit=0, window_ms=1000)
TWO_AT_ONCE = Limit(name="two", limit=2, window_ms=60_000, algorithm=Algorithm.CONCURRENCY)
RULES = msgspec.structs.replace(
    POLICY,
    dependencies=(
        Dependency(name="limited", vendor_limits=(SLOW,), breaker=BREAKER),
        Dependency(name="paired", vendor_limits=(TWO_AT_ONCE,), breaker=BREAKER),
        Dependency(name="gate", vendor_limits=(CLOSED,), breaker=BREAKER),
        Dependency(name="never", vendor_limits=(CLOSED,), breaker=BREAKER),
        Dependency(name="steady", breaker=BREAKER),
        Dependency(name="failing", breaker=BREAKER),
    ),
    tuning=PATIENT,
)


@pytest.fixture
def published(limits: redis.Redis) -> redis.Redis:
    publish(limits, RULES, revision=1)
    return limits


def python_of(engine: str) -> str:
    """The interpreter of the engine's environment; Celery is in that of the control plane."""
    if engine == "celery":
        return sys.executable
    python = ROOT / f".venv-{engine}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no .venv-{engine}: run make engine-environments")
    return str(python)


def environment(tmp_path: Path) -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT / "agents"), str(ROOT)])
    ours = {"PYTHONPATH": paths, "FUSEBOARD_STATE_DIR": str(tmp_path), "TEST_MOST_REFUSALS": "7"}
    dropped = (
        "DJANGO_SETTINGS_MODULE",
        "FUSEBOARD_URL",
        "FUSEBOARD_TOKEN",
        "FUSEBOARD_TOKEN_FILE",
        "FUSEBOARD_SERVER",
    )
    return {name: value for name, value in os.environ.items() if name not in dropped} | ours


@contextmanager
def worker(
    engine: str, tmp_path: Path, *arguments: str, around: dict[str, str] | None = None
) -> Iterator[Callable[..., str]]:
    """A worker while the block runs. Returns a function that runs the engine's module as a program."""
    python, around = python_of(engine), environment(tmp_path) | (around or {})

    def program(*options: str) -> str:
        command = [python, "-m", f"tests.engines.{engine}_app", *options]
        done = subprocess.run(command, cwd=ROOT, env=around, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [python, "-m", engine, *arguments], cwd=ROOT, env=around, stdout=log, stderr=log
        )
    try:
        yield program
    except BaseException:
        sys.stderr.write((tmp_path / "log").read_text())
        raise
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def every_order_ran_once_without_a_retry(extra: str = "") -> bool:
    ran = sorted(work.records("limited"))
    assert all(line.split()[1] == "0" for line in ran), ran
    return ran == [f"{order} 0{extra}" for order in range(4)]


def breaker_is_open(limits: redis.Redis) -> bool:
    return (limits.get(keys.breaker("production", "failing")) or b"").startswith(b"open")


def test_celery(published: redis.Redis, tmp_path: Path):
    from celery import chord

    from fuseboard import Refused
    from tests.engines.celery_app import failing, flaky, limited, never, total

    arguments = ("-A", "tests.engines.celery_app", "worker", "-c", "2", "-l", "WARNING", "--without-gossip")
    with worker("celery", tmp_path, *arguments, "--without-mingle", "--without-heartbeat"):
        refused = never.apply_async()
        ended = chord([limited.s(order).set(priority=2) for order in range(4)])(total.s())
        recovered = flaky.delay()
        for _ in range(4):
            failing.delay()
        assert ended.get(timeout=30) == 6
        wait_until(lambda: every_order_ran_once_without_a_retry(" 2"), "four orders with their priority")
        assert recovered.get(timeout=30) == "recovered"
        assert work.records("flaky") == ["0", "1"]
        wait_until(lambda: breaker_is_open(published), "the breaker")
        with pytest.raises(Exception, match="refused \\(vendor_limit\\) by closed") as failed:
            refused.get(timeout=30)
        assert type(failed.value).__name__ in (Refused.__name__, "Exception")
        assert work.records("never") == []


def test_dramatiq(published: redis.Redis, tmp_path: Path):
    with worker("dramatiq", tmp_path, "tests.engines.dramatiq_app", "-p", "1", "-t", "4") as program:
        program()
        wait_until(every_order_ran_once_without_a_retry, "four orders")
        wait_until(lambda: work.records("flaky") == ["0", "1"], "the retry of the actor itself")
        wait_until(lambda: breaker_is_open(published), "the breaker")
        wait_until(lambda: "never" in work.records("nacked"), "the end of the refusals")
        wait_until(lambda: len(work.records("nacked")) == 6, "all messages that fail")
        assert sorted(work.records("nacked")) == ["failing"] * 4 + ["mistaken", "never"]
        assert work.records("mistaken") == []
        # The callback gets the options of the message as JSON.
        wait_until(lambda: "MessageRefused" in work.records("noted"), "the callback of the last refusal")
        assert work.records("never") == []


def test_arq(published: redis.Redis, tmp_path: Path):
    with worker("arq", tmp_path, "tests.engines.arq_app.WorkerSettings") as program:
        program()
        wait_until(every_order_ran_once_without_a_retry, "four orders")
        wait_until(lambda: work.records("flaky") == ["0", "1"], "the retry of the job itself")
        wait_until(lambda: breaker_is_open(published), "the breaker")
        wait_until(lambda: program("--ended") == "Refused", "the end of the refusals", every_s=0.5)
        with redis.Redis.from_url(work.BROKER) as broker:
            assert broker.keys("fuseboard:refused:*") == []  # admitted, or failed
        assert work.records("never") == []


@pytest.mark.parametrize("engine", ["celery", "dramatiq", "arq"])
def test_the_code_of_the_page_works(engine: str, limits: redis.Redis, tmp_path: Path):
    codes = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/engines.md").read_text(), re.M | re.S)
    (code,) = [code for code in codes if f"integrations.{engine}" in code]
    command = [python_of(engine), "-c", f"{code}\nassert 'charge' in str(charge)"]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


_TWICE = """
import asyncio, inspect, sys, types
shop = sys.modules["shop"] = types.ModuleType("shop")
paid = []
shop.pay = lambda order: paid.append(order["id"]) or {{"paid": order["id"]}}
{code}
order = {{"id": "evt-{engine}"}}
call = getattr(charge, "fn", charge)  # of an actor, its function
if inspect.iscoroutinefunction(call):
    async def twice():
        async with agent:
            return [await call({{}}, order) for _ in range(2)]
    answers = asyncio.run(twice())
else:
    answers = [call(order) for _ in range(2)]
assert paid == ["evt-{engine}"], paid
assert {engine!r} == "dramatiq" or answers == [None, {{"paid": "evt-{engine}"}}], answers
"""


@pytest.mark.parametrize("engine", ["celery", "dramatiq", "arq"])
def test_the_code_of_the_page_does_a_task_once(engine: str, limits: redis.Redis, tmp_path: Path):
    codes = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/engines.md").read_text(), re.M | re.S)
    (code,) = [
        code
        for code in codes
        if "agent.once" in code and re.search(rf"^(from|import) {engine}\b", code, re.M)
    ]
    command = [python_of(engine), "-c", _TWICE.format(code=code, engine=engine)]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
