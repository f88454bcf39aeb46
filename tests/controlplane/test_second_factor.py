"""Second factors."""

import re
import time
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from django.core.management import call_command
from django.test import Client

from controlplane.accounts.mfa import Adapter
from controlplane.accounts.models import Kept, User
from controlplane.audit.models import Entry
from tests.people import PASSWORD, create_person

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _plainly(settings: Any) -> None:
    settings.SECURE_SSL_REDIRECT = False
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def ada() -> User:
    return create_person("ada")


def code_for(secret: str, *, ahead: int = 0) -> str:
    return format_hotp_value(hotp_value(secret, int(time.time()) // 30 + ahead))


def log_in(browser: Client) -> Any:
    return browser.post("/login", {"username": "ada", "password": PASSWORD})


def add_second_factor(browser: Client) -> str:
    """Sets one up as a person would; returns its secret."""
    browser.post("/account/again", {"password": PASSWORD})
    page = browser.get("/account/second-factor").content.decode()
    found = re.search(r'class="secret">([A-Z2-7]+)<', page)
    assert found is not None
    assert browser.get("/account/second-factor.svg")["Content-Type"] == "image/svg+xml"
    answer = browser.post("/account/second-factor", {"code": code_for(found[1])})
    assert (answer.status_code, answer["Location"]) == (302, "/account/recovery-codes")
    return found[1]


def test_every_login_needs_a_code_once_there_is_a_second_factor(ada: User) -> None:
    first, elsewhere = Client(), Client()
    log_in(first)
    log_in(elsewhere)
    secret = add_second_factor(first)
    assert elsewhere.get("/account").status_code == 302, "a login by password alone has ended"
    browser = Client()
    assert log_in(browser)["Location"] == "/login/code"
    assert browser.get("/account").status_code == 302
    assert browser.post("/login/code", {"code": "000000"}).status_code == 200
    assert browser.get("/account").status_code == 302
    code = code_for(secret)
    assert browser.post("/login/code", {"code": code}).status_code == 302
    assert browser.get("/account").status_code == 200
    again = Client()
    log_in(again)
    again.post("/login/code", {"code": code})
    assert again.get("/account").status_code == 302, "a code works once"
    used = Kept.objects.get(key__contains="totp.used")
    assert (used.expires_at - datetime.now(UTC)).total_seconds() > 90, "as long as it could be used again"
    assert Entry.objects.filter(action="user.second_factor_added").count() == 2  # the codes as well


def test_a_recovery_code_logs_in_once(ada: User) -> None:
    browser = Client()
    log_in(browser)
    add_second_factor(browser)
    codes = re.findall(r"<li><code>(\d+)</code>", browser.get("/account/recovery-codes").content.decode())
    assert len(codes) == 10
    for expected in (200, 302):
        lost = Client()
        log_in(lost)
        lost.post("/login/code", {"code": codes[0]})
        assert lost.get("/account").status_code == expected


def test_secrets_stay_readable_after_a_key_was_replaced(ada: User, settings: Any) -> None:
    browser = Client()
    log_in(browser)
    secret = add_second_factor(browser)
    stored = Authenticator.objects.get(type="totp").data["secret"]
    assert secret not in stored
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "the key that came after it, which is as long as it should be"
    assert Adapter().decrypt(stored) == secret
    assert browser.get("/account").status_code == 200, "sessions last through the change as well"
    call_command("renew_secrets", stdout=StringIO())
    settings.SECRET_KEY_FALLBACKS = []
    assert Adapter().decrypt(Authenticator.objects.get(type="totp").data["secret"]) == secret


def test_a_role_may_require_a_second_factor(ada: User, settings: Any) -> None:
    settings.MFA_ROLES = frozenset({"admin"})
    browser = Client()
    log_in(browser)
    assert browser.get("/tenants")["Location"] == "/account/second-factor"
    assert browser.get("/api/v1/production/tiers").status_code == 403
    add_second_factor(browser)
    assert browser.get("/tenants").status_code == 200


@pytest.mark.parametrize(
    ("role", "roles", "listed"),
    [
        ("viewer", {"production": "admin"}, {"operator", "admin"}),
        ("viewer", {"staging": "admin"}, {"admin"}),
        ("viewer", {"production": "", "staging": "operator"}, {"operator"}),
        ("admin", {"production": "viewer"}, {"admin"}),
    ],
)
def test_finding_2_a_listed_role_in_any_environment_requires_a_second_factor(
    production: str, settings: Any, role: str, roles: dict[str, str], listed: set[str]
) -> None:
    settings.MFA_ROLES = frozenset(listed)
    create_person("ada", role=role, environment_roles=roles)
    browser = Client()
    log_in(browser)
    for path in ("/tenants", "/people", "/audit", "/tokens"):
        assert browser.get(path)["Location"] == "/account/second-factor", path
    assert browser.get("/api/v1/production/tiers").status_code == 403
    assert browser.post("/breakers/openai", {"mode": "forced_open"})["Location"] == ("/account/second-factor")
    assert "claims" not in browser.session, "an outage of Postgres must not replace the factor"
    browser.post("/account/again", {"password": PASSWORD})
    assert "Add one to continue" in browser.get("/account/second-factor").content.decode()
    add_second_factor(browser)
    allowed = roles.get("production", role) != ""
    assert (browser.get("/tenants").status_code == 200) == allowed


def test_finding_2_a_role_given_to_an_open_session_requires_a_second_factor(
    ada: User, production: str, settings: Any
) -> None:
    settings.MFA_ROLES = frozenset({"admin"})
    ada.role = "viewer"
    ada.save()
    browser = Client()
    log_in(browser)
    assert browser.get("/tenants").status_code == 200
    assert browser.session["claims"]["role"] == "viewer"
    ada.environment_roles = {"production": "admin"}
    ada.save()
    assert browser.get("/tenants")["Location"] == "/account/second-factor"
    assert "claims" not in browser.session


def test_finding_2_people_who_must_add_a_second_factor_are_listed(ada: User, settings: Any) -> None:
    settings.MFA_ROLES = frozenset({"operator"})
    create_person("vera", environment_roles={"staging": "operator"})
    browser = Client()
    log_in(browser)
    assert browser.get("/people").content.decode().count("no, required") == 1
    assert "required at the next password login" in browser.get("/people/vera").content.decode()
