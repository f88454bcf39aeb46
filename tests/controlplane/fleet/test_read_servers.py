"""A tick reads only the rows of pods that changed since the last one (7.1 of the dashboard's design)."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.fleet.models import Server
from controlplane.status import read_servers as module
from controlplane.status.read_servers import read_servers

VIEW = {"dependency": "llm", "state": "closed", "generation": 3, "since": 1.0, "window_calls": 40}

pytestmark = pytest.mark.django_db


def add(name: str, **fields: Any) -> Server:
    now = timezone.now()
    usual = {
        "environment": "production",
        "boot": "boot-0001",
        "service": "shop",
        "state": "online",
        "mode": "shared",
        "mode_since": now,
        "config_status": "applied",
        "config_source": "redis",
        "started_at": now,
        "last_seen_at": now,
        "due_at": now,
        "breakers": [VIEW],
    }
    return Server.objects.create(name=name, **{**usual, **fields})


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of rows that were turned into pods."""
    found: list[str] = []
    original = module.server_of_row

    def server_of_row(row: Server) -> Any:
        found.append(row.name)
        return original(row)

    monkeypatch.setattr(module, "server_of_row", server_of_row)
    monkeypatch.setattr(module, "_looks", {})
    return found


def test_only_changed_rows_are_read_again(parsed: list[str], django_assert_num_queries: Any) -> None:
    for name in ("pod-2", "pod-1", "pod-3"):
        add(name)
    first = read_servers("production")
    assert [server.name for server in first] == ["pod-1", "pod-2", "pod-3"]
    assert first[0].breakers["llm"].calls == 40
    parsed.clear()
    with django_assert_num_queries(2):
        assert read_servers("production") == first
    assert parsed == []
    # Twice in one transaction: then its number is the same, and its place is not.
    for calls in (41, 42):
        Server.objects.filter(name="pod-2").update(breakers=[VIEW | {"window_calls": calls}])
        assert read_servers("production")[1].breakers["llm"].calls == calls
    assert parsed == ["pod-2", "pod-2"]


def test_pods_that_came_and_went_are_noticed(parsed: list[str]) -> None:
    for name in ("pod-1", "pod-2"):
        add(name)
    read_servers("production")
    add("pod-0")
    add("other", environment="staging")
    Server.objects.filter(name="pod-1").delete()
    left = timezone.now() - timedelta(minutes=11)
    Server.objects.filter(name="pod-2").update(state="gone", last_seen_at=left)
    assert [server.name for server in read_servers("production")] == ["pod-0"]
    assert [server.name for server in read_servers("staging")] == ["other"]
    Server.objects.all().delete()
    assert read_servers("production") == ()
    assert module._looks["production"].servers == {}
