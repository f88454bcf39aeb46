"""The guide on the overview until the first pod reports: each step as it is, and no panel before."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from browsing import becomes, is_live
from django.utils import timezone
from fleet_rows import put_figures, put_server

from controlplane.accounts.models import AgentToken, User
from controlplane.alerts.models import Evaluation
from controlplane.audit.models import Entry
from controlplane.embedded import Running, ServerFailed
from controlplane.fleet.models import Event, Figures, Server
from controlplane.policies.models import Dependency
from controlplane.status.facts import Facts
from dashboard.hub import Hub
from dashboard.live.first_steps import FirstSteps, gateway_address, read_first_steps, redis_for_pods
from tests.dashboard.shown import text_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def empty(production: str) -> str:
    """A control plane of which only web ever ran."""
    for model in (Server, Event, Figures, Dependency, Evaluation):
        model._default_manager.all().delete()
    return production


def guide(client: Any) -> str:
    return text_of(client.get("/").content.decode().partition('id="guide"')[2].partition('id="kpis"')[0])


def run_processes() -> None:
    put_figures(live_servers=0)
    Figures.objects.update(gateway="gw-1:8001")
    Evaluation.objects.create(environment="production", at=timezone.now())


def test_an_empty_control_plane_explains_itself_and_ticks_nothing(log_in: Any, empty: str) -> None:
    page = log_in("ada").get("/").content.decode()
    text = text_of(page)
    assert "No pod has reported yet." in text
    assert "Nothing is measured until the first pod reports." in text
    steps = guide(log_in("ada"))
    assert "Fuseboard shares rate limits and circuit breakers among all pods" in steps
    assert "0 of 3 done" in steps
    assert "No gateway has ever run" in steps
    assert "python manage.py gateway" in steps
    assert "No worker has ever run" in steps
    assert "python manage.py worker" in steps
    assert "Done:" not in steps
    assert "export FUSEBOARD_URL=" in steps


def test_each_step_is_ticked_when_it_is_true(log_in: Any, empty: str) -> None:
    client = log_in("ada")
    run_processes()
    steps = guide(client)
    assert "1 of 3 done" in steps
    assert "Done: a gateway and a worker run." in steps
    assert "the gateway itself reported it" in steps
    Evaluation.objects.update(at=timezone.now() - timedelta(hours=1))
    Figures.objects.update(at=timezone.now() - timedelta(hours=1))
    steps = guide(client)
    assert "No gateway reports any more" in steps
    assert "No worker evaluates alerts any more" in steps


def test_the_token_is_made_here_and_displayed_once(log_in: Any, empty: str) -> None:
    client = log_in("ada")
    answer = client.post("/tokens/first")
    assert answer.status_code == 200
    token = AgentToken.objects.get()
    shown = answer.content.decode()
    found = re.search(r"(fb_[0-9a-f]{16}_[0-9a-f]{64})", shown)
    assert found
    assert found[1].startswith(f"fb_{token.selector}_")
    assert Entry.objects.filter(action="agent_token.created", actor="ada").exists()
    assert "1 agent token is valid" in guide(client)
    assert found[1] not in client.get("/").content.decode()
    assert client.get("/tokens/first").status_code == 302
    again = client.post("/tokens/first")
    assert again.status_code == 422
    assert "fb_" not in again.content.decode().replace("fb_...", "")
    assert AgentToken.objects.count() == 1


@pytest.mark.parametrize("name", ["vera", "olga"])
def test_only_an_admin_makes_the_token(log_in: Any, empty: str, name: str) -> None:
    client = log_in(name)
    assert "An admin makes it" in guide(client)
    assert "first-token-form" not in client.get("/").content.decode()
    assert client.post("/tokens/first").status_code == 403
    assert not AgentToken.objects.exists()


def test_the_guide_names_a_dependency_and_disappears_with_the_first_heartbeat(
    log_in: Any, production: str
) -> None:
    Server.objects.all().delete()
    Event.objects.all().delete()
    client = log_in("ada")
    page = client.get("/").content.decode()
    name = Dependency.objects.order_by("name").values_list("name", flat=True)[0]
    assert f'agent.guard("{name}")' in text_of(page).replace("&quot;", '"')
    put_server()
    Event.objects.create(
        environment="production", server="web-1", kind="joined", detail="", at=datetime.now(UTC)
    )
    page = client.get("/").content.decode()
    assert re.search(r'<div id="guide">\s*</div>', page)
    assert "first-token-form" not in page


def test_a_viewer_reads_who_does_what(log_in: Any, empty: str) -> None:
    steps = guide(log_in("vera"))
    assert "An admin adds a dependency" in steps
    assert "An admin makes it, and gives it to you." in steps


def test_the_address_of_the_gateway_says_where_it_comes_from(settings: Any) -> None:
    settings.PLAIN_HTTP, settings.ORIGINS, settings.GATEWAY_URLS = True, [], []
    address, because = gateway_address("")
    assert address == "http://127.0.0.1:8001"
    assert because.startswith("it is assumed")
    settings.ORIGINS, settings.PLAIN_HTTP = ["https://board.example.com"], False
    assert gateway_address("")[0] == "https://board.example.com:8001"
    assert gateway_address("gw-1:8443") == ("https://gw-1:8443", "the gateway itself reported it")
    assert gateway_address("fd00::7:8443")[0] == "https://[fd00::7]:8443"
    settings.ORIGINS = ["https://[fd00::1]:8000"]
    assert gateway_address("")[0] == "https://[fd00::1]:8001"
    settings.GATEWAY_URLS = ["https://gateway.example.com"]
    assert gateway_address("gw-1:8443")[0] == "https://gateway.example.com"


def test_the_address_of_redis_is_one_that_a_pod_can_use(
    log_in: Any, empty: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was redis://limits:6379 everywhere, which no embedded server has."""
    settings.REDIS_URL = "redis://control:hush@redis.example.com:6380/0?ssl_ca_certs=/ca"
    steps = guide(log_in("ada"))
    assert "FUSEBOARD_REDIS_URL=redis://USER:PASSWORD@redis.example.com:6380/0" in steps
    assert "hush" not in steps
    assert "environment variables of the process web, which serves this page" in steps
    url = settings.REDIS_URL = "redis://:secret-of-it@127.0.0.1:40123/0"
    running = Running(url=url, keeper=1, server=2)
    monkeypatch.setattr("dashboard.live.first_steps.look_up", lambda variable: running)
    steps = guide(log_in("ada"))
    assert f"FUSEBOARD_REDIS_URL={url}" in steps, "a pod on this machine can use it"
    assert "they find its embedded Postgres and Redis" in steps
    steps = guide(log_in("vera"))
    assert "FUSEBOARD_REDIS_URL=redis://USER:PASSWORD@127.0.0.1:40123/0" in steps
    assert "secret-of-it" not in steps
    assert "An admin of all environments sees its password here." in steps
    # Otherwise they could write the counters of other environments.
    User.objects.filter(username="bob").update(environment_roles={"production": "admin"}, role="viewer")
    assert "secret-of-it" not in guide(log_in("bob"))


def test_an_embedded_server_is_recognized_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(url="redis://:pw@127.0.0.1:40123/0", keeper=1, server=2)
    monkeypatch.setattr("dashboard.live.first_steps.look_up", lambda variable: running)
    assert redis_for_pods(running.url).secret == running.url
    assert not redis_for_pods("redis://limits:6379").is_embedded
    assert redis_for_pods("").address == "redis://HOST:6379"

    def none(variable: str) -> Running:
        raise ServerFailed("No embedded server runs.")

    monkeypatch.setattr("dashboard.live.first_steps.look_up", none)
    assert redis_for_pods(running.url).secret == ""


def test_the_hub_reads_the_steps_every_5_seconds_until_a_pod_reports(
    empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read them three times a second for each watched environment without pods."""
    hub, read = Hub(), []

    def steps(facts: Facts) -> FirstSteps | None:
        read.append(facts)
        return read_first_steps(facts)

    monkeypatch.setattr("dashboard.hub.read_first_steps", steps)
    known = hub.of(empty)
    for _ in range(3):
        hub._read(empty, known)
    assert len(read) == 1
    known.steps_due = 0.0
    hub._read(empty, known)
    assert len(read) == 2
    put_server()
    hub._read(empty, known)
    assert known.first_steps is None, "the guide disappears at once"


@pytest.mark.browser
def test_the_three_states_in_a_browser(sign_in: Any, empty: str) -> None:
    page = sign_in("ada")
    page.goto("/")
    is_live(page)
    assert not page.is_visible("#kpis"), "no panel before anything is measured"
    assert not page.is_visible("#conditions")
    run_processes()
    becomes(page, "document.querySelector('#guide').textContent.includes('a gateway and a worker run')")
    page.click("button:text('Make a token')")
    page.wait_for_selector("text=It will not be shown again")
    is_live(page)
    page.wait_for_selector("#guide >> text=2 of 3 done")
    assert "fb_" in page.text_content(".once"), "an update leaves the token where it is"
    assert page.is_visible(".once button[data-copies]")
    assert page.is_visible("#guide button[data-copies]")
    put_server()
    Event.objects.create(
        environment="production", server="web-1", kind="joined", detail="", at=datetime.now(UTC)
    )
    page.wait_for_selector("#kpis", state="visible")
    assert page.locator(".first-pod").count() == 0
