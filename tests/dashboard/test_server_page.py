"""The history on the page of a pod, and what the overview reports of the fleet."""

from typing import Any

from django.utils import timezone

from controlplane.fleet.models import Server
from controlplane.publishing.models import Ahead
from tests.dashboard.fleet_rows import put_figures


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
        "shared -&gt; local: connection refused",
        "tiers: none of that name",
        "No heartbeat",
        "Heartbeat is back",
        "Configuration applied",
        "stopped cleanly",
    ):
        assert said in page, said


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
    too_short = client.post("/servers/web-1/forget", {"reason": ""}, follow=True)
    assert Server.objects.filter(name="web-1").exists()
    assert "reason" in too_short.content.decode().lower()
    page = client.post("/servers/web-1/forget", {"reason": "it was invented"}, follow=True)
    assert "web-1 is forgotten" in page.content.decode()
    assert not Server.objects.filter(name="web-1").exists()


def test_an_operator_ends_a_frozen_expiry_on_the_page_of_pods(log_in: Any) -> None:
    put_figures(frozen=True, frozen_silent=6, frozen_expected=20, frozen_until=1_800_000_000.0)
    page = log_in("vera").get("/servers").content.decode()
    assert "6 of 20 pods are silent" in page
    assert "mark them offline" not in page
    client = log_in("olga")
    assert "They stopped: mark them offline" in client.get("/servers").content.decode()
    page = client.post("/fleet/lift-freeze", {"reason": "we scaled down"}, follow=True).content.decode()
    assert "Silent pods are marked offline" in page
