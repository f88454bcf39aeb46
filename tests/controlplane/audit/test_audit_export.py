"""Every audit entry reaches a SIEM in order and at least once, and no edit waits for it."""

import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone
from msgspec import json

from controlplane.alerts.evaluator import evaluate_environment
from controlplane.alerts.models import Alert
from controlplane.audit.models import ChainHead, Entry
from controlplane.audit.record import record
from controlplane.audit_export import export as exporting
from controlplane.audit_export.export import LEASE_S, PAUSES_S, NotExported, export_to
from controlplane.audit_export.models import Export
from controlplane.audit_export.waiting import not_exported
from controlplane.celery import app
from controlplane.siem.targets import to_file, to_webhook
from tests.controlplane.alerts.delivery.sinks import Chat, chat
from tests.controlplane.alerts.delivery.test_webhook_signing import accepts
from tests.controlplane.alerts.test_alert_evaluator import let_pass
from tests.controlplane.monitoring.test_worker_metrics import WITHIN_S, worker_of
from tests.people import ADA
from tests.waiting import wait_until
from tools.demo.processes import Processes

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "whsec_" + "A" * 43 + "="


def entry(name: str, environment: str = "production") -> Entry:
    return record(
        actor=ADA, action="tenant.set", target_kind="tenant", target_name=name, before=None,
        after={"quota": 5}, reason="for a test", environment=environment,
    )  # fmt: skip


def names(entries: list[Entry]) -> list[str]:
    return [one.target_name for one in entries]


class Target:
    """Remembers what it accepted; ``fails`` counts down."""

    def __init__(self, fails: int = 0) -> None:
        self.got: list[Entry] = []
        self.fails = fails

    def __call__(self, entries: list[Entry]) -> None:
        if self.fails:
            self.fails -= 1
            raise NotExported("HTTP 503")
        self.got += entries


@pytest.fixture(autouse=True)
def _nothing_yet(request: pytest.FixtureRequest) -> None:
    """The audit is never emptied, so that only what a test writes counts."""
    if "production" in request.fixturenames:
        # First: it keeps a copy of the rows that are there, for other tests.
        request.getfixturevalue("production")
    heads = {head.environment: [head.sequence, head.hash] for head in ChainHead.objects.all()}
    for name in ("webhook", "file"):
        Export.objects.create(target=name, positions=heads)


def test_entries_arrive_once_in_the_order_of_their_chain() -> None:
    written = [entry(f"t{number}") for number in range(5)]
    elsewhere = entry("s", "staging")
    target = Target()
    assert export_to("webhook", target, batch=2) == 6
    assert names([one for one in target.got if one.environment == "production"]) == names(written)
    assert elsewhere in target.got
    assert export_to("webhook", target, batch=2) == 0
    entry("t5")
    assert export_to("webhook", target, batch=2) == 1


def test_an_entry_that_commits_late_is_not_left_out() -> None:
    """Its row has a lower id than one of another chain that was exported before."""
    began, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        with transaction.atomic():
            entry("slow")
            began.set()
            go_on.wait(30)
        connection.close()

    thread = threading.Thread(target=slow)
    thread.start()
    assert began.wait(30)
    late = entry("fast", "staging")
    target = Target()
    export_to("webhook", target, batch=10)
    assert names(target.got) == ["fast"]
    go_on.set()
    thread.join()
    export_to("webhook", target, batch=10)
    assert names(target.got) == ["fast", "slow"]
    assert target.got[1].pk < late.pk


def test_after_a_failure_it_waits_longer_each_time_and_gives_up_never() -> None:
    entry("t")
    target = Target(fails=6)
    for pause_s in (*PAUSES_S, PAUSES_S[-1], PAUSES_S[-1]):
        before = timezone.now()
        assert export_to("webhook", target, batch=1) == 0
        row = Export.objects.get(pk="webhook")
        assert row.not_before is not None
        assert abs((row.not_before - before).total_seconds() - pause_s) < 5
        assert export_to("webhook", Target(), batch=1) == 0, "it waits"
        Export.objects.update(not_before=timezone.now())
    assert row.problem == "HTTP 503"
    assert export_to("webhook", target, batch=1) == 1
    row.refresh_from_db()
    assert (row.failures, row.problem) == (0, "")


class Killed(BaseException):
    """As SIGKILL: no handler runs."""


def test_a_process_that_dies_after_the_target_accepted_repeats_the_same_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry("t")
    target = Target()

    def killed(_: Any) -> bool:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(exporting, "_move", killed)
        with pytest.raises(Killed):
            export_to("webhook", target, batch=1)
    assert export_to("webhook", target, batch=1) == 0, "its lease has not ended"
    Export.objects.update(lease_until=F("lease_until") - timedelta(seconds=LEASE_S))
    export_to("webhook", target, batch=1)
    assert names(target.got) == ["t", "t"]
    assert target.got[0].hash == target.got[1].hash


def test_a_process_that_was_paused_past_its_lease_moves_nothing() -> None:
    for name in ("t0", "t1"):
        entry(name)
    target = Target()

    def paused(entries: list[Entry]) -> None:
        Export.objects.update(lease_until=F("lease_until") - timedelta(seconds=LEASE_S))
        assert export_to("webhook", target, batch=1) == 2, "another process exports"

    assert export_to("webhook", paused, batch=1) == 0
    assert export_to("webhook", target, batch=1) == 0
    assert names(target.got) == ["t0", "t1"]


def test_a_history_that_was_restored_is_exported_from_its_beginning() -> None:
    entry("t")
    export_to("file", Target(), batch=500)
    row = Export.objects.get(pk="file")
    row.positions["production"] = [row.positions["production"][0] + 100, "0" * 64]
    row.save()
    target = Target()
    export_to("file", target, batch=500)
    assert next(one.sequence for one in target.got if one.environment == "production") == 1
    assert "t" in names(target.got)


def test_an_edit_does_not_wait_for_the_export() -> None:
    """While a target hangs, the exporter holds no lock that an entry needs."""
    entry("t0")
    began, go_on = threading.Event(), threading.Event()

    def hangs(_: list[Entry]) -> None:
        began.set()
        go_on.wait(30)

    def run() -> None:
        export_to("webhook", hangs, batch=1)
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert began.wait(30)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '100ms'")
            entry("t1")
        assert Entry.objects.filter(target_name="t1").exists()
        assert not go_on.is_set()
    finally:
        go_on.set()
        thread.join()


def test_a_file_has_whole_lines_also_after_a_crash_and_a_rotation(tmp_path: Path, settings: Any) -> None:
    file = tmp_path / "audit.jsonl"
    settings.AUDIT_EXPORT_FILE = str(file)
    first = entry("t0")
    first.refresh_from_db()
    export_to("file", to_file, batch=500)
    # A process died in the middle of the next line.
    with file.open("ab") as opened:
        opened.write(b'{"id": 1, "at": "20')
    entry("t1")
    export_to("file", to_file, batch=500)
    good, broken, after = file.read_text().splitlines()
    assert json.decode(good)["hash"] == first.hash
    assert broken.startswith('{"id": 1,')
    assert json.decode(after)["target_name"] == "t1"
    assert file.stat().st_mode & 0o777 == 0o600
    file.rename(tmp_path / "audit.jsonl.1")
    entry("t2")
    export_to("file", to_file, batch=500)
    assert [json.decode(line)["target_name"] for line in file.read_text().splitlines()] == ["t2"]


def test_a_new_file_is_on_the_disk_with_its_name(
    tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    file = tmp_path / "audit.jsonl"
    settings.AUDIT_EXPORT_FILE = str(file)
    for name in ("t0", "t1"):
        entry(name)
        assert export_to("file", to_file, batch=500) == 1
    assert synced == [str(file), str(tmp_path), str(file)]


def test_a_file_that_cannot_be_written_is_a_failure_and_loses_nothing(tmp_path: Path, settings: Any) -> None:
    settings.AUDIT_EXPORT_FILE = str(tmp_path / "missing" / "audit.jsonl")
    entry("t")
    assert export_to("file", to_file, batch=500) == 0
    assert "No such file" in Export.objects.get(pk="file").problem
    assert not_exported() == {"file": 1}


def test_the_standard_output_gets_lines(settings: Any, capfd: pytest.CaptureFixture[str]) -> None:
    settings.AUDIT_EXPORT_FILE = "-"
    entry("t")
    export_to("file", to_file, batch=500)
    assert json.decode(capfd.readouterr().out)["target_name"] == "t"


def test_a_webhook_to_an_address_inside_is_a_failure(settings: Any) -> None:
    settings.AUDIT_EXPORT_URL, settings.AUDIT_EXPORT_SECRETS = "http://127.0.0.1:9/", [SECRET]
    entry("t")
    assert export_to("webhook", to_webhook, batch=1) == 0
    assert "FUSEBOARD_WEBHOOK_NETWORKS" in Export.objects.get(pk="webhook").problem
    assert not_exported() == {"webhook": 1}


def export_alert(*, after_s: float = 0.0) -> tuple[str, str, str] | None:
    """Its severity, state and detail, as if entries were older."""
    with patch("controlplane.status.read_facts.time.time", return_value=time.time() + after_s):
        evaluate_environment("production")
    row = Alert.objects.exclude(state="resolved").filter(key="audit-export:webhook").first()
    return (row.severity, row.state, row.detail) if row is not None else None


def test_an_entry_that_the_target_refuses_is_an_alert_and_holds_up_only_its_environment(
    production: str, settings: Any
) -> None:
    settings.AUDIT_EXPORT_SECRETS = [SECRET]
    settings.WEBHOOK_NETWORKS = [ip_network("127.0.0.0/8")]
    poison = entry("poison")
    poison.refresh_from_db()
    entry("after", production)
    entry("elsewhere", "staging")
    with chat(422, 200) as sink:
        settings.AUDIT_EXPORT_URL = f"http://127.0.0.1:{sink.port}/"
        assert export_to("webhook", to_webhook, batch=1) == 1
        got = [document["data"]["target_name"] for _, document in sink.got]
        assert got == ["poison", "elsewhere"]
        assert export_alert() is None, "it is seconds old"
        found = export_alert(after_s=700)
        assert found is not None
        assert found[:2] == ("warning", "pending")
        let_pass(60)
        assert (export_alert(after_s=760) or "")[:2] == ("warning", "firing")
        assert f"2 entries wait, the oldest for 12 min: number {poison.sequence} of production" in found[2]
        assert "1 attempt in a row failed; the last one: HTTP 422." in found[2]
        assert (export_alert(after_s=3_700) or "")[:2] == ("critical", "firing")
        # The receiver was corrected.
        Export.objects.update(not_before=None)
        assert export_to("webhook", to_webhook, batch=1) == 2
        assert (export_alert() or "")[:2] == ("critical", "recovering")
    row = Alert.objects.get(key="audit-export:webhook")
    assert (row.level, row.runbook, row.subject_kind) == (2, "audit-export-stuck", "audit")
    assert [document["data"]["target_name"] for _, document in sink.got[2:]] == ["poison", "after"]


def test_an_alert_says_that_no_attempt_was_made(production: str, settings: Any) -> None:
    settings.AUDIT_EXPORT_URL = "https://siem.example.com/"
    entry("t")
    found = export_alert(after_s=700)
    assert found is not None
    assert "No attempt failed: no worker exports" in found[2]


@pytest.fixture
def sink() -> Iterator[Chat]:
    with chat(200, None) as sink:
        yield sink


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path / "logs")
    yield processes
    processes.stop("worker")


def test_a_worker_that_is_killed_while_it_exports_loses_no_entry(
    production: str, processes: Processes, limits: Any, sink: Chat, tmp_path: Path, settings: Any
) -> None:
    written = [entry(f"t{number}") for number in range(4)]
    for row in written:
        # Postgres sets the hash.
        row.refresh_from_db()
    file = tmp_path / "audit.jsonl"
    worker = worker_of(
        "threads",
        tmp_path,
        FUSEBOARD_AUDIT_EXPORT_URL=f"http://127.0.0.1:{sink.port}/",
        FUSEBOARD_AUDIT_EXPORT_SECRET=SECRET,
        FUSEBOARD_AUDIT_EXPORT_FILE=str(file),
        FUSEBOARD_WEBHOOK_NETWORKS="127.0.0.1/32",
    )
    processes.add(worker)
    processes.begin("worker")
    app.send_task("audit_export.export", queue="metrics-threads")
    # The second request is not answered.
    wait_until(lambda: len(sink.got) == 2, "the second entry", within_s=WITHIN_S)
    assert worker.popen is not None
    worker.popen.kill()
    worker.popen.wait()
    Export.objects.update(lease_until=timezone.now())
    processes.begin("worker")
    app.send_task("audit_export.export", queue="metrics-threads")
    wait_until(lambda: len(sink.got) == 5, "the other entries", within_s=WITHIN_S)
    got = [document["data"]["target_name"] for _, document in sink.got]
    assert got == ["t0", "t1", "t1", "t2", "t3"]
    ids = [headers["webhook-id"] for headers in sink.headers]
    assert ids == [f"audit_{written[number].hash}" for number in (0, 1, 1, 2, 3)]
    assert all(
        accepts(SECRET, headers, body) for headers, body in zip(sink.headers, sink.bodies, strict=True)
    )
    assert [json.decode(line)["target_name"] for line in file.read_text().splitlines()] == names(written)
