"""An upgrade as docs/upgrading.md describes it calls no person, and an outage after it does."""

from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from controlplane.alerts.emergency.plan import EmergencyPlan, is_muted, read_plans
from controlplane.alerts.models import Alert, Mute
from controlplane.alerts.people.upgrades import MUTED_RULES
from controlplane.audit.models import Entry
from controlplane.editing.edits import create_environment
from controlplane.gateway.counts import Counts
from controlplane.gateway.emergency.watch import STARTS, Emergency
from tests.controlplane.alerts.stores_down import Installation, Sink
from tests.controlplane.alerts.test_alerts_without_stores import evaluated, reporting
from tests.controlplane.gateway.manual_gateway import TurnedClock, ready_gateway
from tests.controlplane.gateway.test_gateway_process import manage
from tests.people import ADA
from tests.waiting import wait_until


def upgrade(*options: str) -> str:
    out = StringIO()
    call_command("begin_upgrade", *options, stdout=out)
    return out.getvalue()


def muted(environment: str, rule: str, *, level: int = 3, after: timedelta = timedelta()) -> bool:
    """Whether a gateway would keep silent."""
    now = timezone.now()
    plan = read_plans(now.timestamp()).plans[environment]
    return is_muted(
        plan, Alert(environment=environment, key=rule, level=level, subject_kind="fleet"), now + after
    )


def test_an_upgrade_mutes_what_it_causes_in_every_environment_and_ends_by_itself(production: str) -> None:
    create_environment(environment="staging", reason="for a test", actor=ADA)
    assert "muted until" in upgrade("--for", "20m", "--reason", "Release 0.3")
    for environment in (production, "staging"):
        assert all(muted(environment, rule) for rule in MUTED_RULES)
        assert not any(muted(environment, rule) for rule in ("postgres-down", "redis-down", "all-local"))
        assert not any(muted(environment, rule, after=timedelta(minutes=21)) for rule in MUTED_RULES)
    assert Mute.objects.count() == 2 * len(MUTED_RULES)
    entries = Entry.objects.filter(action="mute.created", origin="command")
    assert {(entry.environment, entry.reason) for entry in entries} == {
        (production, "Release 0.3"),
        ("staging", "Release 0.3"),
    }


@pytest.mark.usefixtures("db")
def test_without_an_environment_nothing_is_muted() -> None:
    assert upgrade() == "There is no environment, so no alert to mute.\n"
    assert not Mute.objects.exists()


def test_an_upgrade_mutes_what_is_about_the_control_plane_only() -> None:
    assert MUTED_RULES == ("gateway-away", "outbox", "worker-away")


def test_an_upgrade_that_begins_again_replaces_the_first_and_its_end_leaves_other_mutes(
    production: str,
) -> None:
    upgrade("--for", "1h")
    upgrade()
    assert not muted(production, "worker-away", after=timedelta(minutes=16))
    now = timezone.now()
    Mute.objects.create(
        environment=production,
        rule="lag",
        by="ada",
        reason="mine",
        starts_at=now,
        ends_at=now + timedelta(hours=1),
    )
    assert "sent again" in upgrade("--end")
    assert not muted(production, "worker-away")
    assert muted(production, "lag", level=1)
    assert "No upgrade" in upgrade("--end")


def test_an_environment_with_too_many_mutes_is_named(
    production: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.alerts.people.mute_edits.MAX_MUTES", 2)
    with pytest.raises(CommandError, match="production: rule: An environment has at most 2 mutes"):
        upgrade()
    assert not Mute.objects.exists()


@pytest.mark.parametrize("duration", ["0m", "61m", "2h", "15", "m", "1.5h", "-5m", "99999h"])
def test_a_duration_that_would_not_mute_level_3_is_refused(production: str, duration: str) -> None:
    with pytest.raises(CommandError, match="at most 60m"):
        upgrade(f"--for={duration}")
    assert not Mute.objects.exists()


async def test_a_gateway_that_starts_gives_the_worker_time_to_start(tmp_path: Path, limits: Any) -> None:
    clock = TurnedClock()
    gateway = ready_gateway(clock, oncall_dir=str(tmp_path))
    emergency = Emergency(gateway.fleets, gateway.settings, clock, Counts())
    emergency._plans = {"production": EmergencyPlan(environment="production", at=clock.wall())}
    # The worker stopped an hour ago, with everything else.
    emergency.note_evaluated("production", 3600.0)
    try:
        while clock.now < 1_000 + STARTS * 30 - 1:
            await emergency.look()
            assert emergency.journal.episodes == [], clock.now
            clock.turn(5)
        clock.turn(5)
        await emergency.look()
        assert [one.key for one in emergency.journal.episodes] == ["worker-away"]
        # A gateway that starts again goes on with what it has sent.
        emergency._own.release()
        again = Emergency(gateway.fleets, gateway.settings, clock, Counts())
        again._plans = emergency._plans
        again.note_evaluated("production", 3600.0)
        await again.look()
        assert [one.over_at for one in again.journal.episodes] == [None]
        await again.close()
    finally:
        await emergency.close()


@pytest.fixture
def sink() -> Iterator[Sink]:
    sink = Sink()
    yield sink
    sink.close()


@pytest.fixture
def installed(tmp_path: Path, sink: Sink) -> Iterator[Installation]:
    installed = Installation(tmp_path, sink)
    yield installed
    installed.close()


@pytest.mark.timeout(400)
def test_no_person_is_called_while_processes_are_replaced(installed: Installation, sink: Sink) -> None:
    """The worker is away for twice the time that calls a person otherwise, and a gateway starts meanwhile."""
    installed.begin_worker()
    wait_until(lambda: evaluated(installed), "an evaluation", within_s=100)
    port = installed.begin_gateway()
    with reporting(installed, [port]):
        wait_until(lambda: list(installed.folder.glob("oncall/*/production.plan")), "a plan", within_s=60)
        manage(installed.variables, "begin_upgrade", "--for", "5m")
        installed.kill("worker")
        installed.kill_gateway(port)
        manage(installed.variables, "migrate")
        assert installed.begin_gateway(port) == port
        wait_until(lambda: not_evaluated_s(installed) > 25, "an absence", within_s=100)
        installed.begin_worker()
        wait_until(lambda: evaluated(installed), "the next evaluation", within_s=100)
        manage(installed.variables, "begin_upgrade", "--end")
        ended = not_evaluated_s(installed)
        wait_until(lambda: not_evaluated_s(installed) < ended, "an evaluation after the end", within_s=30)
    assert sink.counts() == {}
    with psycopg.connect(installed.postgres.url) as connection:
        assert connection.execute("SELECT count(*) FROM alerts_incident").fetchone() == (0,)


def not_evaluated_s(installed: Installation) -> float:
    with psycopg.connect(installed.postgres.url) as connection:
        [(age,)] = connection.execute(
            "SELECT extract(epoch FROM now() - max(at)) FROM alerts_evaluation"
        ).fetchall()
    return float(age)
