"""``FUSEBOARD_SECRET_KEY`` is lost: an alert, and a sentence wherever something cannot be read."""

import io
import re
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP
from django.core.management import CommandError, call_command
from django.test import Client

from controlplane.accounts.models import User
from controlplane.accounts.people import remove_second_factor
from controlplane.alerts.delivery.receivers import add_receiver, remove_receiver
from controlplane.alerts.rules.rule import Finding
from controlplane.alerts.state.evaluate import evaluate
from controlplane.editing import edits
from controlplane.policies.models import Environment
from controlplane.status.read_facts import read_facts
from controlplane.status.read_watched import forget
from controlplane.status.status import status_of
from fuseboard.contract import keys
from tests.controlplane.status.test_stored_figures import exported
from tests.people import ADA, PASSWORD

pytestmark = pytest.mark.django_db(transaction=True)

ANOTHER_KEY = "another key, which is as long as a key should be, and random"
PAGES = {"receivers": "/alerts/receivers", "people": "/people", "person": "/people/olga"}


def found() -> list[Finding]:
    forget()
    return [one for one in evaluate(status_of(read_facts("production"))) if one.key == "secret-key"]


def renew() -> str:
    out = io.StringIO()
    call_command("renew_secrets", stdout=out)
    return out.getvalue().strip()


@pytest.fixture
def lost(production: str, settings: Any) -> str:
    """A receiver and the second factor of Olga are encrypted with a key that no process has. Returns it."""
    settings.SECURE_SSL_REDIRECT = False
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    common: dict[str, Any] = {"environment": production, "reason": "the team has a chat", "actor": ADA}
    url = "https://pager.example.com/hook"
    add_receiver(name="pager", url=url, least_level=2, least_severity="warning", **common)
    olga = User.objects.get(username="olga")
    olga.set_password(PASSWORD)
    olga.save()
    TOTP.activate(olga, "A" * 32)
    RecoveryCodes.activate(olga)
    assert found() == []
    before: str = settings.SECRET_KEY
    settings.SECRET_KEY = ANOTHER_KEY
    return before


def test_an_alert_fires_until_the_key_is_back(lost: str, settings: Any) -> None:
    [one] = found()
    assert (one.severity, one.runbook) == ("critical", "secret-key-lost")
    assert "1 receiver of alerts cannot be read" in one.detail
    assert "1 person cannot log in with a password" in one.detail
    figures = exported()
    assert figures["unreadable_secrets", "production", "receiver"] == 1
    assert figures["unreadable_secrets", "production", "second_factor"] == 1
    with pytest.raises(CommandError, match="3 secrets cannot be read"):
        renew()
    settings.SECRET_KEY_FALLBACKS = [lost]
    assert found() == []
    assert renew().startswith("3 secrets renewed.\nKeep the keys in FUSEBOARD_SECRET_KEY_FALLBACKS")
    settings.SECRET_KEY_FALLBACKS = []
    assert found() == []


def test_an_alert_fires_until_what_is_lost_was_removed(lost: str, production: str) -> None:
    remove_second_factor(username="olga", reason="the key was lost", actor=ADA)
    assert not Authenticator.objects.exists()
    [one] = found()
    assert "log in" not in one.detail
    remove_receiver(environment=production, name="pager", reason="the key was lost", actor=ADA)
    assert found() == []


def test_edits_are_published_without_the_key(lost: str, production: str, limits: Any) -> None:
    edits.create_tenant(
        tenant="later", tier="pro", environment=production, reason="the key was lost", actor=ADA
    )
    revision = Environment.objects.get(pk=production).revision
    assert int(limits.hget(keys.config_head(production), "revision")) == revision


def test_pages_say_what_cannot_be_read(lost: str, log_in: Any) -> None:
    ada = log_in("ada")
    shown = {name: " ".join(ada.get(path).content.decode().split()) for name, path in PAGES.items()}
    assert "<code>FUSEBOARD_SECRET_KEY</code> was changed. It gets no message." in shown["receivers"]
    assert '<span class="st-open st-word">cannot be read</span>' in shown["people"]
    warning = (
        '<span class="st-open st-word">cannot be read, because <code>FUSEBOARD_SECRET_KEY</code> was changed'
    )
    assert f"second factor: {warning}" in shown["person"]
    assert "No message reached" not in ada.get("/alerts").content.decode()
    # A test message and the weekly summary would reach no person.
    acts = set(re.findall(r'name="act" value="([\w-]+)"', shown["receivers"]))
    assert ("remove" in acts, acts & {"test", "weekly", "secret"}) == (True, set())


def test_a_login_with_a_code_says_why_it_fails(lost: str) -> None:
    browser = Client()
    assert browser.post("/login", {"username": "olga", "password": PASSWORD})["Location"] == "/login/code"
    answer = browser.post("/login/code", {"code": "123456"})
    assert (answer.status_code, browser.get("/account").status_code) == (200, 302)
    assert "Ask an admin to remove it." in answer.content.decode()


def test_a_person_with_a_company_account_can_replace_codes_that_cannot_be_read(
    lost: str, log_in: Any
) -> None:
    olga = log_in("olga")
    assert olga.post("/account/again", {"password": PASSWORD}).status_code == 302
    for path in ("/account/recovery-codes", "/account/recovery-codes/new"):
        answer = olga.get(path)
        assert answer.status_code == 200
        shown = " ".join(answer.content.decode().split())
        assert "cannot be read, because <code>FUSEBOARD_SECRET_KEY</code> was changed. Remove" in shown
    assert olga.post("/account/second-factor/remove").status_code == 302
    assert not Authenticator.objects.exists()
    assert olga.get("/account/second-factor").status_code == 200
