"""The environment of a page is in its address: links, edits, rights and updates stay in it."""

import re
from dataclasses import replace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import OperationalError
from django.test import Client
from django.urls import get_script_prefix
from fleet_rows import breaker, put_server
from test_live import closing_code, hub, opened, until  # noqa: F401 - hub is a fixture, used by name

from controlplane.accounts.models import User
from controlplane.page_addresses import home_of, links_into, split_address
from controlplane.policies.models import Environment, TierQuota
from controlplane.status.read_facts import read_facts
from dashboard import consumer
from dashboard.hub import Hub
from dashboard.hub import hub as the_hub
from dashboard.live.topics import Topic
from tests.controlplane.calling import send, token_of
from tests.people import create_person

pytestmark = pytest.mark.django_db(transaction=True)
_LINK = re.compile(r'(?:href|action|hx-get|hx-post|data-entries|data-tenants|data-revision)="(/[^"]*)"')
#: They have no environment, or name it elsewhere.
_ELSEWHERE = ("/static/", "/api/")


@pytest.fixture
def staging(production: str) -> str:
    """A copy of production, in which Otto alone works; Olga works in production alone."""
    call_command("create_environment", "staging", "--like", "production", "--tenants", verbosity=0)
    create_person("otto", environment_roles={"production": "", "staging": "admin"})
    User.objects.filter(username="olga").update(environment_roles={"production": "admin", "staging": ""})
    return "staging"


def as_person(client: Client, name: str) -> Client:
    client.force_login(User.objects.get(username=name))
    return client


@pytest.mark.parametrize(
    ("path", "environment", "rest"),
    [
        ("/breakers", "production", "/breakers"),
        ("/env/staging/breakers/a%2Fb", "staging", "/breakers/a%2Fb"),
        ("/env/staging", "staging", "/"),
        ("/env/staging/", "staging", "/"),
        ("/env/staging//evil.example", "staging", "//evil.example"),
        ("/env/production/tiers", "production", "/tiers"),
        # They name no environment, and no page.
        ("/env/St Aging/tiers", "production", "/env/St Aging/tiers"),
        ("/env//tiers", "production", "/env//tiers"),
        ("/environment/staging", "production", "/environment/staging"),
    ],
)
def test_an_address_names_one_environment(path: str, environment: str, rest: str) -> None:
    assert split_address(path) == (environment, rest)


def test_links_lead_elsewhere_only_inside_the_block() -> None:
    with links_into("staging"):
        assert get_script_prefix() == home_of("staging") == "/env/staging/"
    assert get_script_prefix() == home_of("production") == "/"


@pytest.mark.parametrize(
    "path", ["", "breakers", "breakers/payments-api", "tenant?key=acme-retail", "tiers", "audit"]
)
def test_every_link_of_a_page_stays_in_its_environment(client: Client, staging: str, path: str) -> None:
    page = as_person(client, "ada").get(f"/env/staging/{path}")
    assert page.status_code == 200
    links = [one for one in _LINK.findall(page.content.decode()) if not one.startswith(_ELSEWHERE)]
    outside = {one for one in links if not one.startswith("/env/staging/")}
    assert outside == {f"/{path}"}, "only the switch leads to production"
    assert 'hx-ws:connect="/ws/live?' in page.content.decode()
    assert "environment=staging" in page.content.decode()
    assert get_script_prefix() == "/"


def test_the_switch_offers_only_environments_with_a_role(client: Client, staging: str) -> None:
    offered = '<a class="btn" href="{}">{}</a>'
    ada = as_person(client, "ada").get("/breakers?state=open&saved=3").content.decode()
    assert offered.format("/env/staging/breakers?state=open", "staging") in ada
    assert offered.format("/env/staging/", "staging") in client.get("/revisions/1").content.decode()
    for name, path in (("olga", "/breakers"), ("otto", "/env/staging/breakers")):
        assert "Switch to" not in as_person(client, name).get(path).content.decode()


def test_the_palette_switches_the_environment(client: Client, staging: str) -> None:
    entries = as_person(client, "ada").get("/env/staging/palette").json()["entries"]
    there = {one["name"]: one["href"] for one in entries if one["hint"] == "Environment"}
    assert there == {"Switch to production": "/"}
    assert {one["href"] for one in entries if one["hint"] == "Page"} >= {"/env/staging/breakers"}
    entries = as_person(client, "olga").get("/palette").json()["entries"]
    assert not [one for one in entries if one["hint"] == "Environment"]


def test_a_form_edits_the_environment_of_its_page_only(client: Client, staging: str) -> None:
    def limits() -> dict[str, int]:
        rows = TierQuota.objects.filter(tier__name="pro", name="requests")
        return dict(rows.values_list("tier__environment", "limit"))

    before, revision = limits(), Environment.objects.get(pk="staging").revision
    form = {"base": str(revision), "limit.requests.limit": "4321", "reason": "for a test of staging"}
    saved = as_person(client, "ada").post("/env/staging/edit/tier?key=pro", form)
    assert saved["Location"] == f"/env/staging/edit/tier?key=pro&saved={revision + 1}"
    assert limits() == before | {"staging": 4321}
    page = client.get(saved["Location"]).content.decode()
    assert f'action="/env/staging/revisions/{revision + 1}/undo"' in page
    undone = client.post(f"/env/staging/revisions/{revision + 1}/undo", {"back": "//evil.example"})
    assert undone["Location"] == f"/env/staging/?saved={revision + 2}"
    assert limits() == before


def test_a_person_gets_the_same_answer_for_an_environment_without_a_role_and_one_that_does_not_exist(
    client: Client, staging: str
) -> None:
    as_person(client, "olga")
    User.objects.filter(username="olga").update(environment_roles={"staging": "", "nothing": ""})
    closed, invented = (client.get(f"/env/{name}/tiers") for name in ("staging", "nothing"))
    assert closed.status_code == invented.status_code == 403
    assert closed.content == invented.content.replace(b"nothing", b"staging")
    ada = as_person(client, "ada").get("/env/nothing/tiers")
    assert ada.status_code == 404
    assert "There is no environment nothing." in ada.content.decode()


def test_addresses_of_an_environment_have_pages_only(client: Client, staging: str) -> None:
    as_person(client, "ada")
    for path in (
        "api/v1/staging/tiers",
        "healthz",
        "metrics",
        "static/dashboard/base.css",
        "env/production/tiers",
    ):
        missing = client.get(f"/env/staging/{path}")
        assert missing.status_code == 404
        assert "Page not found" in missing.content.decode()


def test_a_login_leads_back_to_the_environment(client: Client, staging: str) -> None:
    asked = client.get("/env/staging/tiers?sort=name")
    assert asked["Location"] == "/login?next=/env/staging/tiers%3Fsort%3Dname"
    assert as_person(client, "otto").get("/")["Location"] == "/env/staging/"
    assert client.post("/env/staging/logout")["Location"] == "/login"


def test_an_operation_of_the_api_needs_a_role_in_its_environment(staging: str) -> None:
    token = token_of("admin", environment="staging")
    body = {"limit": 9, "window_s": 60, "burst": 9, "expected_version": 1, "reason": "for a test"}
    path = "/api/v1/{}/tenants/acme-retail/quotas/requests"
    assert send(token, "PUT", path.format("production"), body).status_code == 403
    assert send(token, "PUT", path.format("staging"), body).status_code in (200, 201)


def test_without_postgres_a_page_displays_what_was_last_known_of_its_environment(
    client: Client, staging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_server("only-staging", environment=staging)
    as_person(client, "ada").get("/env/staging/servers")
    for environment in ("production", "staging"):
        known = read_facts(environment)
        monkeypatch.setattr(the_hub.of(environment), "facts", replace(known, as_of=known.as_of - 60))

    def unavailable(environment: str) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr("dashboard.views.page.read_facts", unavailable)
    for path, pod, other in (
        ("/servers", "web-1", "only-staging"),
        ("/env/staging/servers", "only-staging", "web-1"),
    ):
        page = client.get(path).content.decode()
        assert "Postgres is unavailable" in page
        assert pod in page
        assert other not in page


@pytest.mark.usefixtures("hub")
async def test_a_socket_sends_its_environment_only(staging: str) -> None:
    row: dict[str, Any] = {"environment": staging, "breakers": [breaker("search", "open")]}
    await sync_to_async(put_server)("only-staging", **row)
    async with (
        opened("otto", "page=servers&environment=staging") as there,
        opened("olga", "page=servers") as here,
    ):
        whole = await until(there, 'data-whole="1"')
        assert "only-staging" in whole
        assert "web-1" not in whole
        assert 'href="/env/staging/servers/only-staging"' in whole
        whole = await until(here, 'data-whole="1"')
        assert "only-staging" not in whole
        assert 'href="/servers/web-1"' in whole


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("name", "environment", "code"),
    [
        ("otto", "production", 4401),
        ("olga", "staging", 4401),
        ("ada", "nothing", 4404),
        ("ada", "%00", 4404),
    ],
)
async def test_a_socket_needs_a_role_in_an_environment_that_exists(
    staging: str, name: str, environment: str, code: int
) -> None:
    async with opened(name, f"page=overview&environment={environment}") as socket:
        assert await closing_code(socket) == code


@pytest.mark.usefixtures("hub")
async def test_the_hub_knows_environments_that_no_page_shows(staging: str) -> None:
    async with opened("otto", "page=overview&environment=staging") as socket:
        await until(socket, 'data-whole="1"')
    assert consumer.hub.environments == ("production", "staging")
    assert consumer.hub.of("production").facts is not None


def test_links_in_runbooks_and_the_503_page_stay_in_the_environment(
    client: Client, staging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = as_person(client, "ada").get("/env/staging/runbooks/quota-raised-by-mistake").content.decode()
    assert 'href="/env/staging/audit?kind=tenant"' in page
    assert 'href="/audit?kind=tenant"' in client.get("/runbooks/quota-raised-by-mistake").content.decode()

    def unreachable(*_: Any, **__: Any) -> Any:
        raise OperationalError("the connection is lost")

    monkeypatch.setattr("dashboard.views.tenants.tiers.context_of", unreachable)
    refused = client.get("/env/staging/tiers")
    assert refused.status_code == 503
    assert 'href="/env/staging/"' in refused.content.decode()


def test_the_form_of_a_token_begins_with_the_environment_of_its_page(client: Client, staging: str) -> None:
    as_person(client, "ada")
    for path, chosen in (("/env/staging/tokens", "staging"), ("/tokens", "production")):
        assert f'<option value="{chosen}" selected>' in client.get(path).content.decode()
    typed = {"act": "api", "environment": "", "name": ""}
    refused = client.post("/env/staging/tokens", typed)
    assert refused.status_code == 422
    assert '<option value="staging" selected>' not in refused.content.decode(), "the choice is kept"


def test_an_explanation_is_found_without_a_role_in_production(client: Client, staging: str) -> None:
    as_person(client, "otto")
    for path in ("/explain", "/people"):
        there = client.get(path)
        assert (there.status_code, there["Location"]) == (302, f"/env/staging{path}")
    assert client.get("/env/staging/explain").status_code == 200
    assert client.get("/env/staging/people").status_code == 403, "he is no admin of all environments"


def test_people_are_not_administered_from_an_environment_without_a_role(client: Client, staging: str) -> None:
    User.objects.filter(username="olga").update(role="admin", environment_roles={"staging": ""})
    as_person(client, "olga")
    assert client.get("/people").status_code == 200
    assert client.get("/env/staging/people").status_code == 403, "its frame would be of staging"


def test_readers_of_one_environment_see_no_entries_of_people(client: Client, staging: str) -> None:
    as_person(client, "ada").post(
        "/people", {"act": "invite", "username": "zoe", "role": "viewer", "reason": "joins the team"}
    )
    made = {"act": "agent", "environment": "staging", "name": "zed", "days": "7", "reason": "for a test"}
    assert client.post("/env/staging/tokens", made).status_code == 200
    everything = client.get("/env/staging/audit").content.decode()
    assert "zoe" in everything
    assert "zed" in everything
    assert "zed" not in client.get("/audit").content.decode()
    page = as_person(client, "otto").get("/env/staging/audit").content.decode()
    assert "zed" in page
    assert "zoe" not in page
    file = b"".join(client.get("/env/staging/audit/export?format=csv"))
    assert b"zed" in file
    assert b"zoe" not in file


def test_pages_of_a_login_have_no_environment(client: Client, staging: str) -> None:
    as_person(client, "otto")
    there = client.get("/env/staging/account/recovery-codes")
    assert (there.status_code, there["Location"]) == (307, "/account/recovery-codes")
    assert client.get("/env/staging/account").status_code == 200


def test_the_switch_begins_at_the_start_of_a_list(client: Client, staging: str) -> None:
    page = as_person(client, "ada").get("/tenants?state=suspended&after=zeta&act=x&own.suspended=yes")
    assert 'href="/env/staging/tenants?state=suspended"' in page.content.decode()


def test_a_file_names_its_environment(client: Client, staging: str) -> None:
    file = as_person(client, "ada").get("/env/staging/breakers?csv=h-b")
    assert 'filename="staging-breakers-b-' in file.get("Content-Disposition", "")


def test_a_tick_without_postgres_waits_for_one_connection_only(
    staging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def unreachable(what: str) -> Any:
        def read(*_: Any) -> Any:
            tried.append(what)
            raise OperationalError("timeout expired")

        return read

    own = Hub()
    own.of("production").facts = read_facts("production")
    topics = [Topic(page="breakers", role="viewer", environment=name) for name in ("production", "staging")]
    monkeypatch.setattr("dashboard.hub.read_environments", unreachable("environments"))
    monkeypatch.setattr("dashboard.hub.read_facts", unreachable("facts"))
    drawn = own._tick(topics)
    assert tried == ["environments"]
    assert [topic.environment for topic in drawn] == ["production"], "it knows nothing of staging yet"
