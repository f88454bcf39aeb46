"""Login through the identity provider of a company, with a real provider."""

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from controlplane.accounts import people
from controlplane.accounts import settings as account_settings
from controlplane.accounts.models import User
from controlplane.audit.models import Entry
from tests.controlplane.accounts.oidc_provider import CALLBACK, Provider, parameters, provider
from tests.people import ADA, create_person

pytestmark = pytest.mark.django_db(transaction=True)

SOME_CLIENT = {"client_id": "another", "redirect_uri": "http://another.example/callback"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with provider(tmp_path_factory.mktemp("provider")) as started:
        yield started.url


@pytest.fixture
def company(running: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Provider:
    settings.SECURE_SSL_REDIRECT = False
    settings.ACCOUNT_DEFAULT_HTTP_PROTOCOL = "http"
    monkeypatch.setenv("FUSEBOARD_OIDC_URL", running)
    monkeypatch.setenv("FUSEBOARD_OIDC_CLIENT_ID", "fuseboard")
    monkeypatch.setenv("FUSEBOARD_OIDC_CLIENT_SECRET", "its secret")
    monkeypatch.setenv("FUSEBOARD_OIDC_ROLES", "fuseboard-admins=admin,on-call=operator,staff=viewer")
    settings.SOCIALACCOUNT_PROVIDERS = account_settings.oidc()
    settings.OIDC_NAME = account_settings.oidc_name()
    settings.OIDC_ROLES = account_settings.oidc_roles()
    person = {"sub": "1", "preferred_username": "otto", "email": "otto@example.com"}
    return Provider(running, person=person)


def is_in(browser: Client) -> bool:
    return browser.get("/account").status_code == 200


def refused(company: Provider, **changed: str) -> str:
    """The reason in the log of a login that the provider's answer must not open."""
    browser = Client()
    count = "fuseboard_provider_logins_failed_total"
    before = REGISTRY.get_sample_value(count) or 0
    with capture_logs() as logs:
        answer = company.log_in(browser, **changed)
    assert REGISTRY.get_sample_value(count) == before + 1
    assert answer.status_code == 502
    assert "Login with the identity provider failed" in answer.content.decode()
    assert not is_in(browser)
    assert not User.objects.exists()
    [line] = [line for line in logs if line["event"] == "login.provider_failed"]
    return str(line["cause"])


# Roles and accounts


def test_a_member_of_a_group_logs_in_with_its_role(company: Provider) -> None:
    company.person["groups"] = ["staff", "on-call"]
    browser = Client()
    answer = company.log_in(browser)
    assert (answer.status_code, answer["Location"]) == (302, "/servers")
    user = User.objects.get(username="otto")
    assert (user.role, user.has_usable_password()) == ("operator", False)
    company.person["groups"] = ["fuseboard-admins"]
    company.log_in(Client())
    user.refresh_from_db()
    assert user.role == "admin"
    assert [entry.action for entry in Entry.objects.order_by("id")] == ["user.created", "user.role_changed"]


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        (["staff"], "viewer"),
        (["on-call", "fuseboard-admins", "staff"], "admin"),
        (["unknown", "on-call"], "operator"),
        (["Fuseboard-Admins", "staff"], "viewer"),
        (["fuseboard-admins ", "staff", 7, None], "viewer"),
    ],
)
def test_the_highest_role_of_the_groups_applies(company: Provider, groups: list[Any], role: str) -> None:
    company.person["groups"] = groups
    assert company.log_in(Client()).status_code == 302
    assert User.objects.get(username="otto").role == role


@pytest.mark.parametrize("groups", [None, [], ["unknown"], "fuseboard-admins", {"fuseboard-admins": True}])
def test_a_person_without_invitation_or_group_is_refused(company: Provider, groups: Any) -> None:
    company.person["groups"] = groups
    answer = company.log_in(Client())
    assert answer.status_code == 403
    assert "Ask an admin for an invitation" in answer.content.decode()
    assert not User.objects.exists()


def test_an_invited_person_keeps_their_account(company: Provider) -> None:
    User.objects.create_user("otto.b", email="Otto@example.com", role="operator")
    company.person["email_verified"] = True
    browser = Client()
    assert company.log_in(browser).status_code == 302
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
    assert company.log_in(browser).status_code == 403
    assert not is_in(browser)


@pytest.mark.parametrize("email", ["m\u0131ke@example.com", "\u017fam@example.com", "mike@\u0131example.com"])
def test_an_address_with_another_letter_of_the_same_capital_opens_no_account(
    company: Provider, email: str
) -> None:
    for owned in ("mike@example.com", "sam@example.com", "mike@iexample.com"):
        User.objects.create_user(owned.replace("@", "."), email=owned, role="admin")
    company.person |= {"preferred_username": "mallory", "email": email, "email_verified": True}
    browser = Client()
    assert company.log_in(browser).status_code == 403
    assert not is_in(browser)


def test_the_account_of_an_invited_person_is_not_given_to_a_successor_with_the_same_address(
    company: Provider,
) -> None:
    User.objects.create_user("otto.b", email="otto@example.com", role="admin")
    company.person["email_verified"] = True
    assert company.log_in(Client()).status_code == 302
    company.person["sub"] = "2"
    successor = Client()
    assert company.log_in(successor).status_code == 403
    assert not is_in(successor)
    people.send_new_link(username="otto.b", reason="The provider was set up again", actor=ADA)
    assert company.log_in(successor).status_code == 302
    assert "otto.b" in successor.get("/account").content.decode()


def test_an_unverified_address_is_not_stored_so_its_owner_gets_no_account_of_another(
    company: Provider,
) -> None:
    company.person |= {"preferred_username": "mallory", "email": "ada@example.com", "groups": ["staff"]}
    mallory = Client()
    assert company.log_in(mallory).status_code == 302
    assert User.objects.get(username="mallory").email == ""
    company.person |= {"sub": "2", "preferred_username": "ada", "email_verified": True}
    company.person["groups"] = ["fuseboard-admins"]
    ada = Client()
    assert company.log_in(ada).status_code == 302
    assert "mallory" not in ada.get("/account").content.decode()
    assert User.objects.get(username="mallory").role == "viewer"


def test_groups_open_no_second_account_for_the_address_of_a_deactivated_person(company: Provider) -> None:
    create_person("ada", email="otto@example.com", is_active=False)
    company.person |= {"email_verified": True, "groups": ["fuseboard-admins"]}
    assert company.log_in(Client()).status_code == 403
    assert User.objects.count() == 1


@pytest.mark.parametrize("claim", ["preferred_username", "name", "given_name", "email", "locale", "groups"])
@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"])
def test_an_answer_with_a_text_that_postgres_refuses_is_no_error_of_the_server(
    admin: Provider, claim: str, text: str
) -> None:
    admin.faults["userinfo"] = {claim: ["fuseboard-admins", text] if claim == "groups" else text}
    assert "NUL" in refused(admin)


@pytest.mark.parametrize(
    "where",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "https:evil.example",
        "javascript:alert(1)",
    ],
)
def test_a_link_to_the_login_leads_to_no_other_site(admin: Provider, where: str) -> None:
    browser = Client()
    started = browser.get("/login/oidc/company", {"next": where})
    answer = browser.get(CALLBACK, admin.authorize(started["Location"]))
    assert (answer.status_code, answer["Location"]) == (302, "/")


def test_item_7_a_person_who_left_all_groups_can_no_longer_log_in(company: Provider) -> None:
    company.person["groups"] = ["fuseboard-admins"]
    earlier = Client()
    company.log_in(earlier)
    assert is_in(earlier)
    company.person["groups"] = []
    browser = Client()
    assert company.log_in(browser).status_code == 403
    assert not is_in(browser)
    assert not is_in(earlier), "earlier sessions end"
    assert User.objects.get(username="otto").role == "viewer", "so tokens of this person can only read"
    company.person["groups"] = ["on-call"]
    assert company.log_in(browser).status_code == 302
    assert User.objects.get(username="otto").role == "operator"


def test_item_7_an_invited_person_who_left_all_groups_has_the_role_from_before(company: Provider) -> None:
    people.invite_person(
        username="otto.b", email="otto@example.com", role="operator", reason="for a test", actor=ADA
    )
    company.person |= {"email_verified": True, "groups": ["fuseboard-admins"]}
    user = User.objects.get(username="otto.b")
    for groups, role in (
        (["fuseboard-admins"], "admin"),
        (["staff"], "viewer"),
        ([], "operator"),
        ([], "operator"),
    ):
        company.person["groups"] = groups
        assert company.log_in(Client()).status_code == 302
        user.refresh_from_db()
        assert user.role == role


def test_item_7_a_role_that_an_admin_gave_stays_without_groups(company: Provider) -> None:
    create_person("ada")
    company.person["groups"] = ["staff"]
    company.log_in(Client())
    people.change_roles(
        username="otto", role="operator", environment_roles={}, reason="for a test", actor=ADA
    )
    company.person["groups"] = []
    assert company.log_in(Client()).status_code == 302
    assert User.objects.get(username="otto").role == "operator"


def test_a_role_of_a_group_ends_although_an_admin_gave_a_role_in_an_environment(
    company: Provider, production: str
) -> None:
    create_person("ada")
    company.person["groups"] = ["fuseboard-admins"]
    company.log_in(Client())
    change: dict[str, Any] = {"username": "otto", "role": "admin", "reason": "for a test", "actor": ADA}
    people.change_roles(environment_roles={production: "operator"}, **change)
    people.change_roles(environment_roles={production: "operator"}, **change)
    company.person["groups"] = []
    browser = Client()
    assert company.log_in(browser).status_code == 403
    assert not is_in(browser)
    user = User.objects.get(username="otto")
    assert (user.role, user.environment_roles) == ("viewer", {production: "operator"})


def test_the_role_before_the_groups_comes_back_although_an_admin_confirmed_that_of_the_groups(
    company: Provider,
) -> None:
    create_person("ada")
    person = {"username": "otto.b", "email": "otto@example.com", "role": "operator"}
    people.invite_person(**person, reason="for a test", actor=ADA)
    company.person |= {"email_verified": True, "groups": ["fuseboard-admins"]}
    company.log_in(Client())
    people.change_roles(username="otto.b", role="admin", environment_roles={}, reason="for a test", actor=ADA)
    company.person["groups"] = []
    assert company.log_in(Client()).status_code == 302
    assert User.objects.get(username="otto.b").role == "operator"


def test_item_7_a_member_of_a_group_does_not_get_the_account_with_the_same_name(company: Provider) -> None:
    create_person("ada")
    company.person |= {"preferred_username": "ada", "groups": ["staff"]}
    browser = Client()
    assert company.log_in(browser).status_code == 302
    assert User.objects.get(username="ada").role == "admin"
    assert User.objects.get(role="viewer").username != "ada"


def test_a_provider_login_counts_as_a_second_factor(company: Provider, settings: Any) -> None:
    settings.MFA_ROLES = frozenset({"operator"})
    company.person["groups"] = ["on-call"]
    browser = Client()
    company.log_in(browser)
    assert browser.get("/servers").status_code == 200


# Answers that Fuseboard must not believe


@pytest.fixture
def admin(company: Provider) -> Provider:
    company.person["groups"] = ["fuseboard-admins"]
    return company


def test_item_7_an_id_token_for_another_audience_is_refused(admin: Provider) -> None:
    admin.faults["id_token"] = {"aud": "another"}
    assert "id_token" in refused(admin)


def test_item_7_an_id_token_that_another_client_obtained_is_refused(admin: Provider) -> None:
    admin.faults["id_token"] = {"aud": ["another", "fuseboard"], "azp": "another"}
    assert "azp" in refused(admin)


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://login.example.com"},
        {"exp": int(time.time()) - 3600},
    ],
    ids=["issuer", "expired"],
)
def test_item_7_an_id_token_with_wrong_claims_is_refused(admin: Provider, claims: dict[str, Any]) -> None:
    admin.faults["id_token"] = claims
    assert "id_token" in refused(admin)


def test_item_7_a_wrong_nonce_is_refused(admin: Provider) -> None:
    admin.faults["id_token"] = {"nonce": "of another login"}
    assert "nonce" in refused(admin)


def test_item_7_a_missing_nonce_is_refused(admin: Provider) -> None:
    admin.faults["without"] = ["nonce"]
    assert "nonce" in refused(admin)


@pytest.mark.parametrize("claim", ["aud", "exp", "iat", "iss", "sub"])
def test_item_7_an_id_token_without_a_claim_is_refused(admin: Provider, claim: str) -> None:
    admin.faults["without"] = [claim]
    assert "id_token" in refused(admin)


def test_item_7_an_answer_without_id_token_is_refused(admin: Provider) -> None:
    admin.faults["no_id_token"] = True
    assert "id_token" in refused(admin)


def test_item_7_userinfo_about_another_person_is_refused(admin: Provider) -> None:
    admin.faults["userinfo"] = {"sub": "2"}
    assert "sub" in refused(admin)


def test_item_7_each_login_sends_a_new_nonce_and_a_new_challenge(company: Provider) -> None:
    browser = Client()
    first, second = (parameters(company.leave(browser)) for _ in range(2))
    for name in ("nonce", "state", "code_challenge"):
        assert first[name] != second[name], name
        assert len(first[name]) >= 16, name
    assert (first["code_challenge_method"], first["response_type"]) == ("S256", "code")


# Codes


def test_item_7_a_replayed_code_is_refused(admin: Provider) -> None:
    browser = Client()
    answer = admin.authorize(admin.leave(browser))
    assert browser.get(CALLBACK, answer).status_code == 302
    browser.post("/logout")
    assert browser.get(CALLBACK, answer).status_code == 502, "its state was used"
    assert not is_in(browser)
    state = parameters(admin.leave(browser))["state"]
    with capture_logs() as logs:
        assert browser.get(CALLBACK, answer | {"state": state}).status_code == 502
    assert "invalid_grant" in str(logs)
    assert not is_in(browser)


def test_item_7_the_code_of_another_browser_is_refused(admin: Provider) -> None:
    stolen = admin.authorize(admin.leave(Client()))["code"]
    assert "invalid_grant" in refused(admin, code=stolen), "its PKCE challenge differs"


def test_item_7_the_code_of_another_browser_is_refused_by_its_nonce(admin: Provider) -> None:
    admin.faults["any_verifier"] = True
    stolen = admin.authorize(admin.leave(Client()))["code"]
    assert "nonce" in refused(admin, code=stolen), "also by a provider that does not check PKCE"


def test_item_7_the_code_of_another_client_is_refused(admin: Provider) -> None:
    where = f"{admin.url}/authorize/?" + urlencode(
        {**parameters(admin.leave(Client())), **SOME_CLIENT, "state": "s"}
    )
    assert "invalid_grant" in refused(admin, code=admin.authorize(where)["code"])


@pytest.mark.parametrize("state", ["forged", ""])
def test_item_7_an_unrequested_response_is_refused(admin: Provider, state: str) -> None:
    browser = Client()
    assert admin.log_in(browser, state=state).status_code == 502
    assert not is_in(browser)


def test_item_7_the_response_for_another_browser_is_refused(admin: Provider) -> None:
    answer = admin.authorize(admin.leave(Client()))
    victim = Client()
    admin.leave(victim)
    assert victim.get(CALLBACK, answer).status_code == 502
    assert not is_in(victim)


def test_item_7_a_link_cannot_change_what_the_provider_is_asked(company: Provider) -> None:
    sent = parameters(
        Client().get(
            "/login/oidc/company",
            {"auth_params": "state=mine&nonce=mine&redirect_uri=http://mine.example", "scope": "all"},
        )["Location"]
    )
    assert "mine" not in str(sent)
    assert set(sent["scope"].split()) == {"openid", "profile", "email"}


def test_item_7_a_link_cannot_connect_an_identity_to_an_account(admin: Provider) -> None:
    create_person("vera")
    victim = Client()
    victim.force_login(User.objects.get(username="vera"))
    where = victim.get("/login/oidc/company", {"process": "connect"})["Location"]
    answer = victim.get(CALLBACK, admin.authorize(where))
    assert (answer.status_code, answer["Location"]) == (302, "/")
    assert not User.objects.get(username="vera").socialaccount_set.exists()
    # It is a login like any other, as the person of the provider.
    assert victim.session["_auth_user_id"] == str(User.objects.get(username="otto").pk)


def test_a_wrong_client_secret_is_reported(company: Provider, settings: Any) -> None:
    company.person["groups"] = ["fuseboard-admins"]
    settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"][0]["secret"] = "another secret"
    assert "invalid_client" in refused(company)
