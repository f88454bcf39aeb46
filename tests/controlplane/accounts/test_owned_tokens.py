"""An API token never has more rights than its owner, and ends with the owner."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from prometheus_client import REGISTRY

from controlplane.accounts import people, tokens
from controlplane.accounts.models import ApiToken, User
from controlplane.accounts.owned_tokens import rights_of
from controlplane.audit.actor import Actor
from controlplane.audit.models import Entry
from controlplane.editing import edits
from tests.controlplane.calling import API, problem, send
from tests.people import ADA, BOB, SEED, create_people, create_person

WHY = {"reason": "for a test"}
TOKENS = f"{API}/api-tokens"
TIERS = f"{API}/tiers"
STAGING = "/api/v1/staging/tiers"


@pytest.fixture
def admins(production: str) -> None:
    create_people("ada", "bob")
    edits.create_environment(environment="staging", actor=SEED, **WHY)


def token(role: str = "admin", *, owner: Any = ADA, name: str = "pipeline", environment: str = "") -> str:
    return tokens.create_api_token(
        name=name,
        role=role,
        environment=environment,
        expires_at=timezone.now() + timedelta(hours=1),
        actor=owner,
        **WHY,
    )


def status(text: str, path: str = TIERS) -> int:
    return int(send(text, "GET", path).status_code)


def may_make_tokens(text: str, name: str = "another") -> bool:
    body = {"name": name, "scope": "admin", "expires_in_s": 3600, **WHY}
    return bool(send(text, "POST", TOKENS, body).status_code == 201)


def change(role: str, **there: str) -> None:
    people.change_roles(username="ada", role=role, environment_roles=there, actor=BOB, **WHY)


def counted(reason: str) -> float:
    return REGISTRY.get_sample_value("fuseboard_api_tokens_refused_total", {"reason": reason}) or 0


def test_finding_3_a_token_has_no_more_rights_than_its_demoted_owner(admins: None) -> None:
    text = token()
    assert may_make_tokens(text)
    change("viewer")
    before = counted("owner_role")
    refusal = problem(send(text, "GET", TOKENS), 403)
    assert refusal["detail"].startswith(
        "This token may not do this: it has no more rights than its owner, ada"
    )
    assert counted("owner_role") == before + 1
    assert not may_make_tokens(text, "a third")
    assert status(text) == 200, "it may still read, as its owner does"
    change("admin")
    assert may_make_tokens(text, "a third")


def test_finding_3_a_token_follows_its_owner_in_each_environment(admins: None) -> None:
    everywhere, there = token(), token(environment="production", name="one place")
    change("admin", production="")
    assert (status(everywhere), status(there)) == (403, 403)
    assert (status(everywhere, STAGING), status(there, STAGING)) == (200, 403)
    change("viewer", production="admin")
    assert may_make_tokens(there, "b")
    assert may_make_tokens(everywhere, "c")
    assert send(everywhere, "GET", "/api/v1/staging/api-tokens").status_code == 403
    assert send(everywhere, "GET", "/api/v1/people").status_code == 403


def test_finding_3_a_token_gives_no_more_than_its_own_role(admins: None) -> None:
    text = token("viewer")
    assert status(text) == 200
    assert not may_make_tokens(text)
    change("viewer", production="admin")
    assert not may_make_tokens(text)


def test_finding_3_deactivating_a_person_revokes_their_tokens(admins: None) -> None:
    text, other = token(), token(name="of bob", owner=BOB)
    people.switch_person(username="ada", active=False, actor=BOB, **WHY)
    assert status(text) == 401
    assert status(other) == 200
    entry = Entry.objects.get(action="token.revoked")
    assert (entry.target_name, entry.after["owner"]) == ("pipeline", "ada")
    people.switch_person(username="ada", active=True, actor=BOB, **WHY)
    assert status(text) == 401, "it does not come back"


def test_finding_3_a_token_of_a_person_deactivated_with_sql_is_refused(admins: None) -> None:
    text, before = token(), counted("owner_deactivated")
    User.objects.filter(username="ada").update(is_active=False)
    refusal = problem(send(text, "GET", TIERS), 401)
    assert refusal["detail"].startswith("Its owner, ada, is deactivated.")
    assert "Ask an admin to create or rotate one." in refusal["detail"]
    assert counted("owner_deactivated") == before + 1


def test_a_token_that_ended_is_limited_and_logged_once_a_minute(
    admins: None, settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text, now = token(), 1_000.0
    User.objects.filter(username="ada").update(is_active=False)
    settings.API_RATE_PER_S, settings.API_BURST = 0.001, 3
    monkeypatch.setattr("controlplane.accounts.owned_tokens.monotonic", lambda: now)
    assert [status(text) for _ in range(6)] == [401, 401, 401, 429, 429, 429]
    assert caplog.text.count("token.refused") == 1
    now += 61.0
    status(text)
    assert caplog.text.count("token.refused") == 2


def test_activating_a_person_who_was_deactivated_with_sql_brings_no_token_back(admins: None) -> None:
    text = token()
    people.switch_person(username="ada", active=True, actor=BOB, **WHY)
    assert status(text) == 200, "she was active, so nothing changes"
    User.objects.filter(username="ada").update(is_active=False)
    people.switch_person(username="ada", active=True, actor=BOB, **WHY)
    assert status(text) == 401
    assert Entry.objects.filter(action="token.revoked", target_name="pipeline").count() == 1


def test_finding_3_a_token_ends_with_the_account_of_its_owner(admins: None) -> None:
    text = token()
    ada = User.objects.get(username="ada")
    ada.first_name = "Ada"
    ada.save()
    assert status(text) == 200, "saving an account ends nothing"
    ada.delete()
    assert "does not exist any more" in problem(send(text, "GET", TIERS), 401)["detail"]
    create_person("ada")
    assert status(text) == 401, "another account of the same name does not inherit it"


def test_finding_3_a_token_does_not_pass_to_an_account_that_takes_the_name(admins: None) -> None:
    text = token()
    User.objects.filter(username="ada").update(username="olga")
    assert status(text) == 401
    User.objects.filter(username="bob").update(username="ada")
    assert status(text) == 401


def test_finding_3_a_rotated_token_belongs_to_the_person_who_rotates_it(admins: None) -> None:
    token()
    row = ApiToken.objects.get(name="pipeline")
    text = tokens.rotate_token(
        model=ApiToken,
        environments=[""],
        selector=row.selector,
        overlap=timedelta(hours=1),
        expires_at=timezone.now() + timedelta(hours=1),
        actor=BOB,
        **WHY,
    )
    people.switch_person(username="ada", active=False, actor=BOB, **WHY)
    assert status(text) == 200


def test_finding_3_a_token_without_an_owner_keeps_its_role(admins: None) -> None:
    command_line = Actor(name="command line", role="admin", origin="command")
    text = token(owner=command_line)
    assert ApiToken.objects.get(name="pipeline").owner == ""
    change("viewer")
    assert may_make_tokens(text)


def test_a_superuser_is_an_admin_whatever_the_roles_say() -> None:
    row = ApiToken(role="admin", owner="ada")
    owner = User(username="ada", role="viewer", is_superuser=True, environment_roles={"production": ""})
    rights = rights_of(row, owner)
    assert (rights.everywhere, rights.there, rights.reduced) == ("admin", {}, False)


def test_finding_3_the_pages_list_tokens_with_their_state(admins: None, settings: Any) -> None:
    settings.SECURE_SSL_REDIRECT = False
    token(environment="production")
    token(name="exporter", role="viewer")
    browser = Client()
    browser.force_login(User.objects.get(username="bob"))
    page = browser.get("/people/ada").content.decode()
    assert "revokes\n            2 API tokens" in page
    assert "exporter" in page
    assert "limited" not in page
    change("operator")
    page = browser.get("/people/ada").content.decode()
    assert "limited by its owner" in page or "limited to operator" in page
    assert "limited to operator" in browser.get("/tokens").content.decode()
    of_bob = token(name="of bob", owner=BOB)
    listed = {row["username"]: row for row in send(of_bob, "GET", "/api/v1/people").json()}
    assert (listed["ada"]["api_tokens"], listed["bob"]["api_tokens"]) == (2, 1)
    found = send(of_bob, "GET", TOKENS).json()
    states = {row["name"]: (row["owner"], row["state"]) for row in found}
    assert states["pipeline"] == ("ada", "limited")
    assert states["exporter"] == ("ada", "works")
    said = browser.post("/people/ada", {"act": "off", **WHY}, follow=True).content.decode()
    assert "API tokens of ada are revoked" in said
    assert "ended with its owner" not in said
    assert said.count("revoked</span>") >= 2
