"""Second factors."""

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from io import StringIO
from itertools import count
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, format_hotp_value, generate_totp_secret, hotp_value
from django.core.management import call_command
from django.db import connection
from django.test import Client
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from controlplane.accounts import guesses
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
    out = StringIO()
    call_command("renew_secrets", stdout=out)
    assert "renewed.\nKeep the keys in FUSEBOARD_SECRET_KEY_FALLBACKS" in out.getvalue()
    settings.SECRET_KEY_FALLBACKS = []
    assert Adapter().decrypt(Authenticator.objects.get(type="totp").data["secret"]) == secret


def test_a_new_link_of_the_command_line_can_remove_a_lost_second_factor(ada: User) -> None:
    give_second_factor(ada)
    call_command("new_link", "ada", stdout=StringIO())
    assert Authenticator.objects.filter(user=ada).exists()
    out = StringIO()
    call_command("new_link", "ada", "--without-second-factor", stdout=out)
    assert "/welcome/" in out.getvalue()
    assert not Authenticator.objects.filter(user=ada).exists()


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


# Guesses of codes


@pytest.fixture
def one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine must not let a limit or a code expire during the test: each reading is 1 us later."""
    readings = count(int(time.time()) * 1_000_000)
    monkeypatch.setattr(time, "time", lambda: next(readings) / 1_000_000)


def give_second_factor(user: User) -> str:
    secret = generate_totp_secret()
    TOTP.activate(user, secret)
    return secret


def wrong_for(secret: str) -> str:
    valid = {code_for(secret, ahead=periods) for periods in (-1, 0, 1)}
    return next(code for code in ("000000", "000001", "000002", "000003") if code not in valid)


def at_the_code(name: str, *, address: str) -> Client:
    """A new browser in which the correct password was typed."""
    browser = Client(REMOTE_ADDR=address)
    assert browser.post("/login", {"username": name, "password": PASSWORD})["Location"] == "/login/code"
    return browser


def guess(name: str, code: str, *, address: str) -> bool:
    browser = at_the_code(name, address=address)
    browser.post("/login/code", {"code": code})
    return bool(browser.get("/account").status_code == 200)


def together(browsers: list[Client], code: str) -> int:
    """Sends one code from all browsers at the same time; returns how many are logged in then."""

    def send(browser: Client) -> int:
        try:
            browser.post("/login/code", {"code": code})
            return int(browser.get("/account").status_code == 200)
        finally:
            connection.close()

    with ThreadPoolExecutor(len(browsers)) as pool:
        return sum(pool.map(send, browsers))


def test_item_7_guesses_of_codes_are_limited_for_each_account(ada: User, one_moment: None) -> None:
    secret = give_second_factor(ada)
    before = REGISTRY.get_sample_value("fuseboard_wrong_codes_total") or 0
    with capture_logs() as logs:
        for number in range(5):
            assert not guess("ada", wrong_for(secret), address=f"192.0.2.{number}")
    correct = guess("ada", code_for(secret), address="192.0.2.99")
    assert not correct, "from any address, and with a correct code"
    entries = Entry.objects.filter(action="user.second_factor_failed", target_name="ada").order_by("id")
    addresses = [f"192.0.2.{number}" for number in range(5)]
    assert [entry.address for entry in entries] == addresses
    refused = [line for line in logs if line["event"] == "login.code_refused"]
    assert [line["address"] for line in refused] == addresses
    assert REGISTRY.get_sample_value("fuseboard_wrong_codes_total") == before + 5
    Kept.objects.filter(key__contains="login_failed").delete()  # five minutes later
    assert guess("ada", code_for(secret), address="192.0.2.99")


def test_a_wrong_code_in_a_session_is_recorded_as_that_of_a_person_who_is_logged_in(
    ada: User, one_moment: None
) -> None:
    secret = give_second_factor(ada)
    browser = Client(REMOTE_ADDR="192.0.2.7")
    browser.force_login(ada)
    with capture_logs() as logs:
        assert browser.post("/account/again/code", {"code": wrong_for(secret)}).status_code == 200
    entry = Entry.objects.get(action="user.second_factor_failed")
    assert (entry.actor, entry.role, entry.reason) == ("ada", ada.role, "A wrong code in a session.")
    [line] = [line for line in logs if line["event"] == "login.code_refused"]
    assert line["in_session"]
    assert not guess("ada", wrong_for(secret), address="192.0.2.8")
    entry = Entry.objects.filter(action="user.second_factor_failed").latest("id")
    assert (entry.role, entry.reason) == ("", "A wrong code after a correct password.")


def test_item_7_guesses_of_codes_are_limited_for_each_address(one_moment: None) -> None:
    of_bob = give_second_factor(create_person("bob"))
    waiting = at_the_code("bob", address="192.0.2.7")
    for name in ("vera", "olga", "otto", "ada"):
        secret = give_second_factor(create_person(name))
        for _ in range(5):
            assert not guess(name, wrong_for(secret), address="192.0.2.7")
    page = waiting.post("/login/code", {"code": code_for(of_bob)}).content.decode()
    assert "Too many failed attempts" in page
    assert waiting.get("/account").status_code == 302
    assert guess("bob", code_for(of_bob), address="192.0.2.8")


def password_guess(number: int) -> str:
    """The page after a wrong password for yet another account."""
    form = {"username": f"person-{number}", "password": "a guess"}
    return Client(REMOTE_ADDR="192.0.2.7").post("/login", form).content.decode()


def by_login(name: str, secret: str) -> None:
    assert guess(name, code_for(secret), address="192.0.2.7")


def by_page(name: str, secret: str) -> None:
    """With the code that a session asks for again."""
    browser = Client(REMOTE_ADDR="192.0.2.7")
    browser.force_login(User.objects.get(username=name))
    assert browser.post("/account/again/code", {"code": code_for(secret)}).status_code == 302


@pytest.mark.parametrize("succeed", [by_login, by_page])
def test_item_7_a_correct_code_resets_no_failures_of_its_address(
    one_moment: None, succeed: Callable[[str, str], None]
) -> None:
    """allauth then forgets all failures of the address, so one account was enough to guess for ever."""
    secret = give_second_factor(create_person("mallory"))
    for number in range(19):
        assert "No account has this name" in password_guess(number)
    succeed("mallory", secret)
    assert "No account has this name" in password_guess(19)
    with capture_logs() as logs:
        assert "Too many failed attempts" in password_guess(20)
    [line] = [line for line in logs if line["event"] == "login.too_many_failures"]
    assert line["address"] == "192.0.2.7"
    Kept.objects.filter(key__contains="login_failed").delete()  # a minute later
    assert "No account has this name" in password_guess(21)


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.7", "192.0.2.8", False),
    ],
)
def test_item_7_an_ipv6_network_counts_as_one_address(first: str, second: str, together: bool) -> None:
    for _ in range(guesses.MAX_FAILED_ATTEMPTS):
        assert guesses.take(first)
    assert guesses.take(first) is None
    assert (guesses.take(second) is None) == together


def test_item_7_guesses_at_the_same_time_are_limited_too(ada: User, one_moment: None) -> None:
    secret = give_second_factor(ada)
    browsers = [at_the_code("ada", address=f"192.0.2.{number}") for number in range(10)]
    assert together(browsers, wrong_for(secret)) == 0
    assert Entry.objects.filter(action="user.second_factor_failed").count() <= 5


def test_item_7_one_code_at_the_same_time_logs_in_once(ada: User, one_moment: None) -> None:
    secret = give_second_factor(ada)
    browsers = [at_the_code("ada", address=f"192.0.2.{number}") for number in range(5)]
    assert together(browsers, code_for(secret)) == 1


def test_one_recovery_code_at_the_same_time_logs_in_once(ada: User, one_moment: None) -> None:
    give_second_factor(ada)
    code = RecoveryCodes.activate(ada).get_unused_codes()[0]
    browsers = [at_the_code("ada", address=f"192.0.2.{number}") for number in range(5)]
    assert together(browsers, code) == 1
    assert len(RecoveryCodes(Authenticator.objects.get(type="recovery_codes")).get_unused_codes()) == 9


def test_guesses_of_recovery_codes_are_limited_for_each_account(ada: User, one_moment: None) -> None:
    give_second_factor(ada)
    codes = RecoveryCodes.activate(ada).get_unused_codes()
    wrong = next(f"{number:08}" for number in range(11) if f"{number:08}" not in codes)
    for number in range(5):
        assert not guess("ada", wrong, address=f"192.0.2.{number}")
    assert not guess("ada", codes[0], address="192.0.2.99"), "from any address, and with a correct code"


def test_item_7_an_old_and_a_future_code_are_refused(ada: User, one_moment: None) -> None:
    secret = give_second_factor(ada)
    for ahead in (-2, 2):
        assert not guess("ada", code_for(secret, ahead=ahead), address="192.0.2.7")
    assert guess("ada", code_for(secret, ahead=-1), address="192.0.2.7")


def test_item_7_a_code_cannot_be_guessed_without_the_password(ada: User) -> None:
    secret = give_second_factor(ada)
    browser = Client()
    assert browser.post("/login/code", {"code": code_for(secret)})["Location"].startswith("/login")
    assert browser.get("/account").status_code == 302


def test_item_7_the_audit_page_shows_wrong_codes(ada: User) -> None:
    secret = give_second_factor(create_person("bob"))
    guess("bob", wrong_for(secret), address="192.0.2.7")
    browser = Client()
    log_in(browser)
    assert "Wrong code of second factor" in browser.get("/audit").content.decode()
