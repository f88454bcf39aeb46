"""Second factors, and login through an identity provider."""

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from io import StringIO
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value
from django.core.management import call_command
from django.test import Client
from oidc_provider import Provider, provider

from controlplane.accounts import settings as account_settings
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


# Login through an identity provider


@pytest.fixture
def company(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    with provider() as running:
        monkeypatch.setenv("FUSEBOARD_OIDC_URL", running.url)
        monkeypatch.setenv("FUSEBOARD_OIDC_CLIENT_ID", "fuseboard")
        monkeypatch.setenv("FUSEBOARD_OIDC_CLIENT_SECRET", "its secret")
        monkeypatch.setenv("FUSEBOARD_OIDC_ROLES", "fuseboard-admins=admin,on-call=operator")
        settings.SOCIALACCOUNT_PROVIDERS = account_settings.oidc()
        settings.OIDC_NAME = account_settings.oidc_name()
        settings.OIDC_ROLES = account_settings.oidc_roles()
        running.person = {"sub": "1", "preferred_username": "otto", "email": "otto@example.com"}
        yield running


def come_in(browser: Client, company: Provider, **changed: str) -> Any:
    """From the button on the login page to the answer of the callback."""
    page = browser.get("/login?next=/servers").content.decode()
    link = re.search(r'href="(/login/oidc/company[^"]*)"', page)
    assert link is not None
    leaving = browser.get(link[1].replace("&amp;", "&"))
    assert leaving["Location"].startswith(f"{company.url}/authorize?")
    sent = {name: values[0] for name, values in parse_qs(urlsplit(leaving["Location"]).query).items()}
    assert sent["code_challenge_method"] == "S256"
    callback = urlsplit(sent["redirect_uri"]).path
    assert callback == "/login/oidc/company/callback"
    return browser.get(callback, {"code": "c", "state": sent["state"]} | changed)


def test_a_member_of_a_group_logs_in_with_its_role(company: Provider) -> None:
    company.person["groups"] = ["staff", "on-call"]
    browser = Client()
    answer = come_in(browser, company)
    assert (answer.status_code, answer["Location"]) == (302, "/servers")
    user = User.objects.get(username="otto")
    assert (user.role, user.has_usable_password()) == ("operator", False)
    assert company.asked[0]["client_secret"] == "its secret"
    assert "code_verifier" in company.asked[0]
    company.person["groups"] = ["fuseboard-admins"]
    come_in(Client(), company)
    user.refresh_from_db()
    assert user.role == "admin"
    assert [entry.action for entry in Entry.objects.order_by("id")] == ["user.created", "user.role_changed"]


def test_an_invited_person_keeps_their_account(company: Provider) -> None:
    User.objects.create_user("otto.b", email="Otto@example.com", role="operator")
    company.person["email_verified"] = True
    browser = Client()
    assert come_in(browser, company).status_code == 302
    assert "otto.b" in browser.get("/account").content.decode()
    assert User.objects.count() == 1


@pytest.mark.parametrize("verified", [False, None, "true"])
def test_an_unverified_address_opens_no_account(company: Provider, verified: Any) -> None:
    create_person("ada", email="ada@example.com")
    company.person |= {
        "preferred_username": "mallory",
        "email": "ada@example.com",
        "email_verified": verified,
    }
    browser = Client()
    assert come_in(browser, company).status_code == 403
    assert browser.get("/account").status_code == 302


def test_a_person_without_invitation_or_group_is_refused(company: Provider) -> None:
    answer = come_in(Client(), company)
    assert answer.status_code == 403
    assert "Ask an admin for an invitation" in answer.content.decode()
    assert not User.objects.exists()


def test_an_unrequested_response_is_refused(company: Provider) -> None:
    company.person["groups"] = ["fuseboard-admins"]
    browser = Client()
    assert come_in(browser, company, state="forged").status_code == 502
    assert browser.get("/account").status_code == 302


def test_a_failing_provider_is_reported(company: Provider) -> None:
    company.broken = True
    assert come_in(Client(), company).status_code == 502


def test_a_provider_login_counts_as_a_second_factor(company: Provider, settings: Any) -> None:
    settings.MFA_ROLES = frozenset({"operator"})
    company.person["groups"] = ["on-call"]
    browser = Client()
    come_in(browser, company)
    assert browser.get("/servers").status_code == 200
