"""The page of locks: who holds what, what failed, and which pods do not report."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.fleet.models import Server
from tests.dashboard.shown import text_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def new_agents(production: str) -> None:
    """The pods of the environment report locks, and have none."""
    Server.objects.update(primitives={})


def a_pod(name: str, primitives: dict[str, Any] | None, **fields: Any) -> None:
    now = timezone.now()
    usual = {
        "environment": "production",
        "boot": f"boot-of-{name}",
        "service": "shop",
        "agent_version": "1",
        "state": "online",
        "mode": "shared",
        "mode_since": now - timedelta(hours=1),
        "config_status": "applied",
        "config_source": "http",
        "started_at": now - timedelta(hours=1),
        "last_seen_at": now,
        "due_at": now + timedelta(seconds=5),
    }
    Server.objects.create(name=name, primitives=primitives, **{**usual, **fields})


def shown(client: Any) -> str:
    answer = client.get("/locks")
    assert answer.status_code == 200, answer.content.decode()[:2000]
    return text_of(answer.content.decode())


def test_without_locks_the_page_says_how_to_begin(log_in: Any, production: str) -> None:
    a_pod("shop-1", {})
    page = shown(log_in("vera"))
    assert "No pod has a lock now." in page
    assert "Services take one with agent.lock(name)" in page
    assert "agent.once(event, id) for tasks and events" in page
    assert "not report" not in page


def test_it_shows_answers_whose_key_is_missing(log_in: Any, production: str) -> None:
    a_pod("shop-1", {"once": {"replayed": 4, "unsealed": 3}})
    page = log_in("vera").get("/locks").content.decode()
    assert "No key for the answer" in page
    assert '<td class="num hot">3</td>' in page
    assert 'class="st-warn"' in page, "the row of this pod"


def test_it_shows_who_holds_what_and_what_failed(log_in: Any, production: str) -> None:
    since = timezone.now().timestamp() - 400
    a_pod(
        "shop-1",
        {
            "locks": {"acquired": 40, "waited": 3, "waited_ms": 4_000},
            "holding": 3,
            "longest_since": since,
            "held": [["nightly-report", since], ["<b>export</b>", since + 300]],
        },
    )
    a_pod("shop-2", {"locks": {"acquired": 2, "lost": 1}, "once": {"begun": 120, "replayed": 4}})
    a_pod("shop-3", {"locks": {"acquired": 1}}, state="gone")
    client = log_in("vera")
    page = shown(client)
    assert "nightly-report shop-1 shop" in page
    assert "1 more without a name here" in page
    assert "<b>export</b>" not in client.get("/locks").content.decode()
    rows = page.partition("Locks by pod")[2].partition("Idempotency by pod")[0]
    assert "All pods 42 3 0.095 s 0 1 0" in rows
    assert rows.index("shop-2") < rows.index("shop-1"), "the pod with a failure first"
    assert "shop-2 120 4 0 0 0 0" in page
    assert "shop-3" not in page


def test_pods_with_an_old_agent_are_named(log_in: Any, production: str) -> None:
    a_pod("shop-1", {})
    a_pod("shop-8", None)
    assert "1 pod does not report locks: shop-8. Its agent is too old." in shown(log_in("vera"))
    a_pod("shop-9", None)
    assert "2 pods do not report locks: shop-8, shop-9. Their agents are too old." in shown(log_in("vera"))


def test_the_api_has_the_same(log_in: Any, production: str) -> None:
    since = timezone.now().timestamp() - 60
    a_pod(
        "shop-1",
        {"locks": {"acquired": 1}, "holding": 1, "longest_since": since, "held": [["report", since]]},
    )
    a_pod("shop-8", None)
    answer = log_in("vera").get("/api/v1/production/locks").json()
    [held] = answer["held"]
    assert (held["name"], held["pod"], 59 < held["held_s"] < 90) == ("report", "shop-1", True)
    assert answer["pods"] == [
        {"pod": "shop-1", "service": "shop", "holding": 1, "locks": {"acquired": 1}, "once": {}}
    ]
    assert answer["not_reporting"] == ["shop-8"]
