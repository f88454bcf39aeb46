"""The history on the page of a pod, and what the overview reports of the fleet."""

from datetime import timedelta
from typing import Any

from django.utils import timezone

from controlplane.alerts.state.evaluate import FirstSeen
from controlplane.fleet.models import Figures, GatewayOrder, Server
from controlplane.publishing.models import Ahead
from controlplane.status.read_facts import read_facts
from controlplane.validation import MISSING_REASON
from dashboard.live.history import History
from dashboard.live.overview import build
from dashboard.live.pages import page_of
from dashboard.live.topics import Topic, fragments
from tests.dashboard.fleet_rows import put_figures, put_server
from tests.dashboard.shown import text_of


def update(name: str, **columns: Any) -> None:
    Server.objects.filter(name=name).update(**columns)


def test_a_pod_has_a_history(log_in: Any) -> None:
    update("web-1", mode="local", mode_cause="connection refused")
    update("web-1", config_status="rejected", config_error="tiers: none of that name")
    update("web-1", state="unknown")
    update("web-1", state="online", config_status="applied", revision=7)
    update("web-1", state="gone")
    page = log_in("vera").get("/servers/web-1").content.decode()
    for said in (
        "Joined",
        "shared limits → local limits: connection refused",
        "tiers: none of that name",
        "No heartbeat",
        "Heartbeat is back",
        "Configuration applied",
        "stopped cleanly",
    ):
        assert said in page, said


def test_a_pod_without_requests_shows_its_calls_as_calls(log_in: Any) -> None:
    """Its calls stood below "Requests/s": the column had more than the tile above it."""
    load = {"requests_per_s": 0.0, "p95_ms": None}
    put_server("web-1", calls_per_s=1.7, load=load)
    put_server("web-2", calls_per_s=40.0, load={"requests_per_s": 40.0, "p95_ms": 30})
    put_server("web-3", calls_per_s=39.0, load={})
    client = log_in("vera")
    page = text_of(client.get("/servers").content.decode())
    assert "0 1.7 calls/s" in page
    assert page.count("calls/s") == 1, "not of a pod with requests, or of a gateway of an earlier release"
    assert "p95 of requests no requests" in text_of(client.get("/servers/web-1").content.decode())


def test_two_processes_with_one_name_are_displayed(log_in: Any) -> None:
    for boot in ("boot-aaaa", "boot-bbbb", "boot-aaaa", "boot-bbbb"):
        update("web-2", boot=boot)
    client = log_in("vera")
    assert "Two processes report under this name" in client.get("/servers/web-2").content.decode()
    assert "Two processes report as web-2" in client.get("/").content.decode()


def test_a_restart_does_not_count_as_a_second_process(log_in: Any) -> None:
    update("web-2", boot="boot-next")
    page = log_in("vera").get("/servers/web-2").content.decode()
    assert "started again" in page
    assert "Two processes" not in page


def test_a_mass_loss_and_a_restored_database_are_reported(log_in: Any) -> None:
    put_figures(frozen=True, live_servers=10, uncounted=4)
    Ahead.objects.create(environment="production", epoch=1, revision=999, who="Redis", at=timezone.now())
    page = log_in("vera").get("/").content.decode()
    assert "Many pods went silent at once" in page
    assert "4 of 10 pods are missing from the rates until their second heartbeat" in page
    assert "Redis has revision 1.999" in page


def test_an_operator_forgets_a_pod_on_its_page(log_in: Any) -> None:
    assert "Forget this pod" not in log_in("vera").get("/servers/web-1").content.decode()
    client = log_in("olga")
    assert "Forget this pod" in client.get("/servers/web-1").content.decode()
    blank = client.post("/servers/web-1/forget", {"reason": " " * 8})
    assert blank.status_code == 422
    assert MISSING_REASON in blank.content.decode()
    short = client.post("/servers/web-1/forget", {"reason": "invent"})
    assert ">invent</textarea>" in short.content.decode(), "what was typed is kept"
    assert Server.objects.filter(name="web-1").exists()
    page = client.post("/servers/web-1/forget", {"reason": "it was invented"}, follow=True)
    assert "web-1 is forgotten" in page.content.decode()
    assert not Server.objects.filter(name="web-1").exists()


def test_a_name_that_is_too_long_is_no_other_pod(log_in: Any) -> None:
    """The name was cut to 64 letters: another pod would have been forgotten."""
    put_server("w" * 64)
    client = log_in("olga")
    path = f"/servers/{'w' * 65}"
    assert client.get(path).status_code == 404
    assert client.post(f"{path}/forget", {"reason": "it was invented"}).status_code == 404
    assert Server.objects.filter(name="w" * 64).exists()


def test_without_a_gateway_a_pod_divides_by_the_pods_that_were_known_last(log_in: Any) -> None:
    client = log_in("vera")
    Figures.objects.all().delete()
    long_ago = timezone.now() - timedelta(minutes=1)
    Server.objects.update(state="unknown", last_seen_at=long_ago, due_at=long_ago)
    pods = Server.objects.count()
    assert pods > 1
    assert client.get("/servers/web-1").context["divisor"] == pods
    assert f"allow 1/{pods} of their value" in client.get("/tenant?key=acme-retail").content.decode()


def test_a_pod_without_a_request_divides_by_all_pods(log_in: Any) -> None:
    """Its page said "counts as 1 of 3 pods", which it does not, and divided by 3 of 4."""
    put_server("web-4", spending=0)
    client = log_in("vera")
    assert "counts as 1 of 3 pods" in text_of(client.get("/servers/web-1").content.decode())
    page = client.get("/servers/web-4")
    assert "no requests yet: counts in no divisor, and divides by all 4 pods" in text_of(
        page.content.decode()
    )
    assert page.context["divisor"] == 4


def drawn_for(role: str) -> dict[str, str]:
    live = build(read_facts(), History(), FirstSeen())
    topic = Topic(page="servers", role=role)
    context = page_of(topic, live, History()).context
    return {one.target: one.html(context) for one in fragments(topic, context)}


def test_a_freeze_appears_on_the_open_page_of_pods_and_vanishes(log_in: Any) -> None:
    """The panel was in no fragment: it appeared, and vanished, with the next reload only."""
    assert drawn_for("operator")["frozen"].split() == ["<div", 'class="frozen"', 'id="frozen">', "</div>"]
    assert 'id="frozen"' in log_in("olga").get("/servers").content.decode()
    put_figures(frozen=True, frozen_silent=6, frozen_expected=20, frozen_until=1_800_000_000.0)
    shown = drawn_for("operator")["frozen"]
    assert "6 of 20 pods are silent" in shown
    assert "until 08:00 UTC on 15 January at the latest" in shown
    assert "<form" not in shown, "a form that the socket sends has no token, and loses what is typed"
    put_figures(frozen=True)
    assert "0 of 0 pods" not in drawn_for("viewer")["frozen"]


def test_an_operator_ends_a_frozen_expiry_on_the_page_of_pods(log_in: Any) -> None:
    put_figures(frozen=True, frozen_silent=6, frozen_expected=20, frozen_until=1_800_000_000.0)
    page = log_in("vera").get("/servers").content.decode()
    assert "6 of 20 pods are silent" in page
    assert "They stopped: mark them offline" not in page
    client = log_in("olga")
    assert "They stopped: mark them offline" in client.get("/servers").content.decode()
    short = client.post("/fleet/lift-freeze", {"reason": "scaled"})
    assert short.status_code == 422
    assert MISSING_REASON in short.content.decode()
    assert ">scaled</textarea>" in short.content.decode()
    assert not GatewayOrder.objects.exists()
    page = client.post("/fleet/lift-freeze", {"reason": "we scaled down"}, follow=True).content.decode()
    assert "Silent pods are marked offline" in page
    assert [order.kind for order in GatewayOrder.objects.all()] == ["lift_freeze"]
