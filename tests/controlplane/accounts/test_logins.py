"""Sessions end when they should, and password guesses are throttled."""

from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client

from controlplane.accounts import logins
from controlplane.accounts.models import Login, User
from controlplane.audit.models import Entry
from tests.people import PASSWORD, create_person

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _plainly(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.SECURE_SSL_REDIRECT = False
    # Argon2 is slow on purpose, and not tested here.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    monkeypatch.setattr(logins, "_ended", {})


@pytest.fixture
def olga() -> User:
    return create_person("olga")


def log_in(
    name: str = "olga", password: str = PASSWORD, *, browser: Client | None = None, **where: str
) -> Any:
    browser = browser or Client()
    answer = browser.post("/login", {"username": name, "password": password}, **where)
    return browser, answer


def copied(browser: Client) -> Client:
    thief = Client()
    thief.cookies.load({name: morsel.value for name, morsel in browser.cookies.items()})
    return thief


def is_in(browser: Client) -> bool:
    return browser.get("/account").status_code == 200


@pytest.fixture
def stop_postgres(monkeypatch: pytest.MonkeyPatch) -> Any:
    def refuse(*_: Any, **__: Any) -> None:
        raise OperationalError("connection refused")

    def stop() -> None:
        connection.close()
        monkeypatch.setattr(connection, "connect", refuse)

    yield stop
    monkeypatch.undo()


def test_a_login_opens_a_session_with_an_end(olga: User) -> None:
    browser, answer = log_in()
    assert (answer.status_code, answer["Location"]) == (302, "/")
    row = Login.objects.get(user=olga)
    assert (row.expires_at - row.created_at).total_seconds() == pytest.approx(12 * 3600, abs=5)
    assert is_in(browser)


def test_every_login_is_a_separate_session(olga: User) -> None:
    browser, _ = log_in()
    first = browser.session["login"]
    browser.post("/logout")
    log_in(browser=browser)
    assert browser.session["login"] != first


def test_a_wrong_password_is_answered_422_and_says_no_more(olga: User) -> None:
    _, known = log_in(password="wrong")
    _, unknown = log_in("mallory", password="wrong")
    assert known.status_code == unknown.status_code == 422
    assert "No account has this name and password" in known.content.decode()
    assert "No account has this name and password" in unknown.content.decode()


def test_a_copied_cookie_is_invalid_after_logout(olga: User) -> None:
    browser, _ = log_in()
    thief = copied(browser)
    assert is_in(thief)
    assert browser.post("/logout").status_code == 302
    assert not is_in(thief)
    assert not is_in(copied(thief))


def test_a_copied_cookie_stays_invalid_when_postgres_goes_down(olga: User, stop_postgres: Any) -> None:
    browser, _ = log_in()
    assert browser.get("/api/v1/docs").status_code == 200  # stores the claims
    thief = copied(browser)
    browser.post("/logout")
    stop_postgres()
    assert thief.get("/api/v1/docs").status_code == 302


def test_a_logout_while_postgres_is_down_is_written_later(
    olga: User, stop_postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, _ = log_in()
    assert browser.get("/api/v1/docs").status_code == 200
    thief, other = copied(browser), log_in()[0]
    with monkeypatch.context() as outage:
        connection.close()
        outage.setattr(connection, "connect", _refuse)
        assert browser.post("/logout").status_code == 302
        assert thief.get("/api/v1/docs").status_code == 302
    assert is_in(other)
    assert Login.objects.filter(ended_at__isnull=True).count() == 1
    assert not is_in(thief)


def _refuse(*_: Any, **__: Any) -> None:
    raise OperationalError("connection refused")


def test_a_new_password_ends_every_other_session(olga: User) -> None:
    browser, elsewhere = log_in()[0], log_in()[0]
    thief = copied(browser)
    new = "another horse altogether 9"
    answer = browser.post("/account/password", {"oldpassword": PASSWORD, "password1": new, "password2": new})
    assert answer.status_code == 302, answer.content
    assert is_in(browser)
    assert not is_in(elsewhere)
    assert not is_in(thief)
    assert Entry.objects.get(action="user.password_changed").actor == "olga"


def test_a_deactivated_user_is_logged_out_at_once(olga: User) -> None:
    browser, _ = log_in()
    User.objects.update(is_active=False)
    assert not is_in(browser)
    _, again = log_in()
    assert "fuseboard" not in again.cookies or not is_in(Client())


def test_a_session_ends_after_twelve_hours_however_much_it_is_used(olga: User) -> None:
    browser, _ = log_in()
    Login.objects.update(expires_at="2020-01-01T00:00:00Z")
    assert not is_in(browser)


def test_an_account_under_attack_stays_open_in_its_owners_browser(olga: User) -> None:
    mine, _ = log_in(REMOTE_ADDR="10.0.0.1")
    mine.post("/logout")
    for attempt in range(6):
        _, answer = log_in(password=f"guess {attempt}", REMOTE_ADDR=f"10.0.1.{attempt}")
    assert "Too many failed attempts" in answer.content.decode()
    # Also with the right password, from an unknown browser.
    assert log_in(REMOTE_ADDR="10.0.2.1")[1].status_code == 422
    assert log_in(browser=mine, REMOTE_ADDR="10.0.0.1")[1].status_code == 302


def test_one_address_cannot_try_account_after_account(olga: User) -> None:
    for attempt in range(21):
        _, answer = log_in(f"person-{attempt}", "guess", REMOTE_ADDR="10.0.0.9")
    assert "Too many failed attempts" in answer.content.decode()
    assert log_in(REMOTE_ADDR="10.0.0.8")[1].status_code == 302


def test_the_mark_of_a_known_browser_cannot_be_forged(olga: User) -> None:
    forger = Client()
    forger.cookies["__Host-fuseboard-known"] = "olga:1abc:forged"
    for attempt in range(5):
        log_in(password=f"guess {attempt}", REMOTE_ADDR=f"10.0.1.{attempt}")
    assert log_in(browser=forger, REMOTE_ADDR="10.0.3.1")[1].status_code == 422


def test_sign_up_is_closed(client: Client) -> None:
    assert "Ask an admin for an invitation" in client.get("/login/closed").content.decode()
    assert client.get("/signup").status_code == 404


def test_an_empty_field_of_an_account_is_named(olga: User) -> None:
    browser, _ = log_in()
    page = browser.post("/account/password", {"oldpassword": PASSWORD}).content.decode()
    assert "Fill in \u201cNew password\u201d." in page
    assert "This field is required." not in page


@pytest.mark.parametrize("path", ["/login", "/account", "/account/password", "/account/second-factor"])
def test_account_pages_need_no_inline_code(olga: User, path: str) -> None:
    browser = Client()
    if path != "/login":
        log_in(browser=browser)
    if path.endswith("second-factor"):
        browser.post("/account/again", {"password": PASSWORD})
    answer = browser.get(path)
    assert answer.status_code == 200
    policy = answer["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer["Cache-Control"].startswith(("no-store", "max-age=0"))
    text = answer.content.decode()
    assert "<script>" not in text
    assert "style=" not in text
    assert "data:" not in text
