"""A scheduled change of the protection, followed to a pod in a process of its own."""

import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.fleet.live import figures
from controlplane.fleet.models import Server
from controlplane.policies.document import environment_of
from controlplane.policies.models import Dependency
from controlplane.schedules.due import run_due
from controlplane.schedules.edits import schedule_change
from controlplane.schedules.models import Schedule
from tests.people import ADA, create_people
from tests.waiting import wait_until
from tools.demo.processes import Processes
from tools.demo.seed import ENVIRONMENT, Seeded

ROOT = Path(__file__).resolve().parents[2]
DEPENDENCY = "search"
AT_ONCE = 5


class CallingPod:
    """The process, and its newest lines."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("calling_pod.py")), DEPENDENCY, str(AT_ONCE)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: deque[str] = deque(maxlen=1)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line)

    def state(self) -> dict[str, Any]:
        assert self.process.poll() is None, "the pod ended"
        return json.loads(self._lines[-1]) if self._lines else {}

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)
        self._reader.join(timeout=20)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def pod(control_plane: Processes, seeded: Seeded, redis_url: str, tmp_path: Path) -> Iterator[CallingPod]:
    running = CallingPod(
        os.environ
        | {
            "FUSEBOARD_REDIS_URL": redis_url,
            "FUSEBOARD_URL": control_plane.by_name["gateway"].url,
            "FUSEBOARD_TOKEN": seeded.agent_token,
            "FUSEBOARD_SERVICE": "shop",
            "FUSEBOARD_SERVER": "shop-1",
            "FUSEBOARD_STATE_DIR": str(tmp_path / "state"),
        }
    )
    try:
        yield running
    finally:
        running.stop()


def schedule(document: dict[str, Any], after: timedelta = timedelta(hours=1)) -> Schedule:
    return schedule_change(
        environment=ENVIRONMENT,
        due_at=timezone.now() + after,
        document=document,
        reason="Less load during the sale",
        actor=ADA,
    )


def come_due(row: Schedule) -> int:
    """What the worker does when its time has come. Returns the revision."""
    Schedule.objects.filter(pk=row.pk).update(due_at=timezone.now() - timedelta(seconds=1))
    run_due()
    row.refresh_from_db()
    assert (row.state, row.error) == ("applied", "")
    assert row.revision is not None
    return row.revision


def test_a_scheduled_protection_reaches_a_pod_and_the_end_of_observing_too(pod: CallingPod) -> None:
    create_people("ada")
    before = environment_of(ENVIRONMENT).revision
    wait_until(pod.state, accept=lambda state: state.get("revision") == before)
    assert pod.state()["refused"] == []
    bulkhead = {"max_concurrent": 3, "when_full": ["abort", "abort", "abort"]}
    row = schedule(
        {
            "protection": {
                "shedding": {"queue_max": 7},
                "observe": {"bulkhead_until_us": _micros(timedelta(hours=3))},
            },
            "dependencies": {DEPENDENCY: {"protection": {"bulkhead": bulkhead}}},
        }
    )
    assert environment_of(ENVIRONMENT).revision == before, "nothing changes before its time"
    revision = come_due(row)

    state = wait_until(pod.state, accept=lambda state: state["revision"] == revision and _sheds_at(state, 7))
    assert state["refused"] == [], "the bulkhead only observes"
    # The gateway writes what it would have refused.
    wait_until(_observed, "the count of what would be refused")
    slots = 3 + _slots_of_others()
    wait_until(
        lambda: Server.objects.get(name="shop-1").load.get("slots"), accept=lambda found: found == slots
    )

    revision = come_due(schedule({"protection": {"observe": {"bulkhead_until_us": 0}}}))
    state = wait_until(pod.state, accept=lambda state: state["revision"] == revision and state["refused"])
    assert set(state["refused"]) == {"bulkhead_full"}

    revision = come_due(schedule({"dependencies": {DEPENDENCY: {"protection": "off"}}, "protection": "off"}))
    wait_until(pod.state, accept=lambda state: state["revision"] == revision and not state["refused"])


def _slots_of_others() -> int:
    """The pod's load has the slots of all dependencies together, those of the demo's presets among them."""
    others = Dependency.objects.filter(environment=ENVIRONMENT).exclude(name=DEPENDENCY)
    return sum(row.protection.get("bulkhead", {}).get("max_concurrent", 0) for row in others)


def _micros(after: timedelta) -> int:
    return int((timezone.now() + after).timestamp() * 1_000_000)


def _sheds_at(state: dict[str, Any], queue_max: int) -> bool:
    queue = state.get("pressure", {}).get("signals", {}).get("queue", {})
    return state.get("shedding") is not None and f"(limit {queue_max})" in queue.get("text", "")


def _observed() -> float:
    calls = figures(ENVIRONMENT).protection.get(DEPENDENCY)
    return calls.observed_per_s if calls is not None else 0.0
