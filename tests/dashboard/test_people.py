"""The pages where admins give people and programs access; the first admin; single-use links."""

import re
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone
from shown import text_of, undo_of

from controlplane.accounts.models import AgentToken, ApiToken, Login, Ticket, User
from controlplane.accounts.permissions import may
from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.schedules.edits import schedule_change
from controlplane.schedules.models import Schedule
from dashboard.consumer import topic_of
from dashboard.live.frame import Frame
from dashboard.live.pages import frame_context
from dashboard.live.topics import fragments
from dashboard.reader import Reader
from dashboard.views.people import people
from tests.people import BOB, PASSWORD, SEED

WHY = {"reason": "olga asked for it"}
NEW = "a password of some length 7"


@pytest.fixture(autouse=True)
def _fast_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = [
        "django.contrib.auth.hashers.MD5PasswordHasher",
        "django.contrib.auth.hashers.Argon2PasswordHasher",
    ]


def shown(answer: Any) -> str:
    found = re.search(r'<code class="secret">([^<]+)</code>', answer.content.decode())
    assert found is not None, answer.content.decode()[:2000]
    return found[1]


def set_password(link: str, password: str = NEW) -> Any:
    path = re.sub(r"^https?://[^/]+", "", link)
    stranger = Client()
    assert stranger.get(path).status_code == 200, "opening it uses nothing up"
    return stranger.post(path, {"password": password, "again": password})


def can_log_in(name: str, password: str = NEW) -> bool:
    browser = Client()
    browser.post("/login", {"username": name, "password": password})
    return bool(browser.get("/account").status_code == 200)


def test_the_page_says_who_approves_and_who_applies(log_in: Any) -> None:
    """S2-26: it said that admins approve, and the roles are otherwise."""
    page = text_of(log_in("ada").get("/people").content.decode())
    assert "Operators also override and reset breakers, and approve changes that admins propose." in page
    assert "Admins also change quotas, tokens and people, and apply approved changes." in page
    for role, action, permitted in (
        ("viewer", "approve_change", False),
        ("operator", "override_breaker", True),
        ("operator", "approve_change", True),
        ("operator", "edit_quota", False),
        ("admin", "edit_quota", True),
        ("admin", "set_approvals", True),
    ):
        assert Reader(name="", role=role).may(action) is permitted, f"{role} {action}"


def first_admin(*arguments: str) -> str:
    said = StringIO()
    call_command("first_admin", *arguments, stdout=said, stderr=StringIO())
    return said.getvalue().strip()


def test_the_first_admin_gets_a_single_use_link(client: Any, transactional_db: Any) -> None:
    old, link = first_admin(), first_admin()
    assert not can_log_in("admin", ""), "no default password"
    assert Client().get(re.sub(r"^https?://[^/]+", "", old)).status_code == 404, "replaced by the newer one"
    saved = set_password(link)
    assert saved.status_code == 302
    assert "Password saved. Log in." in client.get(saved["Location"]).content.decode()
    assert "Password saved" not in client.get("/login").content.decode()
    assert can_log_in("admin")
    assert Client().post(re.sub(r"^https?://[^/]+", "", link), {}).status_code == 404
    with pytest.raises(CommandError, match="already an admin"):
        first_admin()
    with pytest.raises(CommandError, match="already an admin"):
        first_admin("--name", "mallory")
    actions = list(Entry.objects.order_by("id").values_list("action", flat=True))
    assert actions == ["user.invited", "user.link_made", "user.password_set"]


def test_a_link_expires_and_cannot_be_guessed(client: Any, transactional_db: Any) -> None:
    path = re.sub(r"^https?://[^/]+", "", first_admin())
    wrong = path[:-1] + ("0" if path[-1] != "0" else "1")
    assert client.get(wrong).status_code == 404
    Ticket.objects.update(expires_at=timezone.now())
    assert client.get(path).status_code == 404
    assert client.post(path, {"password": NEW, "again": NEW}).status_code == 404


def test_a_password_that_is_too_easy_leaves_the_link_usable(client: Any, transactional_db: Any) -> None:
    link = first_admin()
    answer = set_password(link, "password")
    assert answer.status_code == 422
    page = answer.content.decode()
    assert "at least 12 characters" in page
    assert "too common" in page
    assert set_password(link).status_code == 302


def test_an_admin_invites_a_person_who_then_logs_in(log_in: Any) -> None:
    ada = log_in("ada")
    answer = ada.post("/people", {"username": "otto", "role": "operator", **WHY})
    assert set_password(shown(answer)).status_code == 302
    assert can_log_in("otto")
    assert User.objects.get(username="otto").role == "operator"
    entry = Entry.objects.get(action="user.invited")
    assert (entry.actor, entry.target_name, entry.after["role"]) == ("ada", "otto", "operator")
    assert "otto" in ada.get("/people").content.decode()


def test_a_person_who_has_not_logged_in_is_listed_as_invited(log_in: Any) -> None:
    ada = log_in("ada")
    ada.post("/people", {"username": "otto", "role": "operator", **WHY})
    page = ada.get("/people").content.decode()
    assert page.count(">invited<") == 1
    assert page.index("/people/otto") < page.index(">invited<")


def test_an_invitation_reports_every_mistake(log_in: Any) -> None:
    answer = log_in("ada").post("/people", {"username": "OLGA", "email": "no", "role": "root", "reason": ""})
    assert answer.status_code == 422
    page = answer.content.decode()
    for complaint in ("This username is taken", "Enter an email address", "Say why"):
        assert complaint in page


@pytest.mark.parametrize("who", ["vera", "olga"])
@pytest.mark.parametrize("path", ["/people", "/people/ada", "/tokens"])
def test_only_admins_see_people_and_tokens(log_in: Any, who: str, path: str) -> None:
    assert log_in(who).get(path).status_code == 403
    assert log_in(who).post(path, {"act": "off", **WHY}).status_code == 403
    assert Client().get(path).status_code == 302


def test_a_role_may_differ_from_environment_to_environment(log_in: Any) -> None:
    olga = Client()
    olga.force_login(User.objects.get(username="olga"))
    ada = log_in("ada")
    ada.post("/people/olga", {"act": "roles", "role": "operator", "in-production": "none", **WHY})
    assert User.objects.get(username="olga").environment_roles == {"production": ""}
    assert olga.get("/servers").status_code == 403
    ada.post("/people/olga", {"act": "roles", "role": "viewer", "in-production": "admin", **WHY})
    assert olga.get("/tokens").status_code == 200
    assert olga.get("/people").status_code == 403, "people belong to no environment"
    entry = Entry.objects.filter(action="user.role_changed").latest("id")
    assert entry.changes == {"role": ("operator", "viewer"), "role in production": ("none", "admin")}


def test_the_last_admin_stays_one(log_in: Any) -> None:
    ada = log_in("ada")
    assert ada.post("/people/bob", {"act": "off", **WHY}).status_code == 302
    for act in ({"act": "off"}, {"act": "roles", "role": "viewer"}):
        answer = ada.post("/people/ada", act | WHY)
        assert answer.status_code == 422
        assert "This is the only admin" in answer.content.decode()
    assert ada.get("/people").status_code == 200


def test_a_person_is_logged_out_or_deactivated_at_once(log_in: Any) -> None:
    olga = Client()
    ada = log_in("ada")
    for act in ("logout", "off"):
        olga.force_login(User.objects.get(username="olga"))
        assert olga.get("/servers").status_code == 200
        assert ada.post("/people/olga", {"act": act, **WHY}).status_code == 302
        assert olga.get("/servers").status_code == 302
    assert not can_log_in("olga", PASSWORD)
    ada.post("/people/olga", {"act": "on", **WHY})
    assert can_log_in("olga", PASSWORD)
    assert Login.objects.filter(user__username="olga", ended_at__isnull=True).count() == 1


def test_the_sessions_listed_are_those_that_deactivating_ends(log_in: Any) -> None:
    """Sessions that had expired were listed, and not counted."""
    Client().force_login(User.objects.get(username="olga"))
    ada = log_in("ada")
    assert "Deactivating ends 1 session " in text_of(ada.get("/people/olga").content.decode())
    Login.objects.filter(user__username="olga").update(expires_at=timezone.now() - timedelta(hours=1))
    page = text_of(ada.get("/people/olga").content.decode())
    assert "Deactivating ends 0 sessions " in page
    assert "No active sessions." in page


def scheduled_by_bob() -> Schedule:
    due_at, document = timezone.now() + timedelta(hours=1), {"tenants": {"later": {"tier": "free"}}}
    return schedule_change(environment="production", due_at=due_at, document=document, actor=BOB, **WHY)


def test_the_page_of_a_person_lists_what_waits_and_offers_to_cancel_it(log_in: Any) -> None:
    row, ada = scheduled_by_bob(), log_in("ada")
    page = text_of(ada.get("/people/bob").content.decode())
    assert "Waiting changes 1" in page
    assert "Scheduled change in production: tenant later" in page
    assert "Cancel the waiting changes that bob may not make any more (1 waits)" in page
    page = text_of(ada.post("/people/bob", {"act": "off", **WHY}, follow=True).content.decode())
    assert "1 waiting change will fail: see below." in page
    assert "bob scheduled it, and is deactivated now." in page
    assert "Will fail: bob scheduled it, and is deactivated now." in text_of(
        ada.get("/schedules").content.decode()
    )
    page = text_of(ada.post("/people/bob", {"act": "cancel", **WHY}, follow=True).content.decode())
    assert "Cancelled: 1 waiting change of bob." in page
    row.refresh_from_db()
    assert (row.state, row.ended_by) == ("cancelled", "ada")


def test_a_lower_role_cancels_what_it_does_not_permit_when_asked(log_in: Any) -> None:
    row, ada = scheduled_by_bob(), log_in("ada")
    ada.post("/people/bob", {"act": "roles", "role": "operator", "cancel": "1", **WHY})
    row.refresh_from_db()
    assert row.state == "cancelled"


def test_a_new_link_replaces_a_forgotten_password(log_in: Any) -> None:
    link = shown(log_in("ada").post("/people/olga", {"act": "link", **WHY}))
    assert can_log_in("olga", PASSWORD), "until it is used"
    set_password(link)
    assert not can_log_in("olga", PASSWORD)
    assert can_log_in("olga")


# Tokens


def test_a_token_is_displayed_once_and_only_its_hash_is_stored(log_in: Any) -> None:
    ada = log_in("ada")
    asked = {"act": "agent", "name": "shop", "environment": "production", "days": "90", **WHY}
    text = shown(ada.post("/tokens", asked))
    row = AgentToken.objects.get(name="shop")
    assert text.startswith(f"fb_{row.selector}_")
    page = ada.get("/tokens").content.decode()
    assert row.selector in page
    assert text not in page
    assert not any(text.split("_")[2] in str(entry.after) for entry in Entry.objects.all())
    again = ada.post("/tokens", asked)
    assert again.status_code == 422
    assert "A token with this name exists" in again.content.decode()
    assert AgentToken.objects.filter(name="shop").count() == 1


def test_a_rotated_token_stays_valid_for_its_overlap(log_in: Any) -> None:
    ada = log_in("ada")
    asked = {"act": "api", "name": "deploy", "environment": "", "role": "admin", "days": "30", **WHY}
    old = shown(ada.post("/tokens", asked))
    change = {"act": "rotate", "selector": old.split("_")[1], "overlap": "1", "name": "deploy", **WHY}
    new = shown(ada.post("/tokens", change))
    api = Client()
    for text in (old, new):
        answer = api.get("/api/v1/production/tiers", headers={"Authorization": f"Bearer {text}"})
        assert answer.status_code == 200
    left = ApiToken.objects.get(selector=old.split("_")[1]).expires_at - timezone.now()
    assert 3500 < left.total_seconds() <= 3600
    ada.post("/tokens", {"act": "revoke", "selector": old.split("_")[1], **WHY})
    answer = api.get("/api/v1/production/tiers", headers={"Authorization": f"Bearer {old}"})
    assert answer.status_code == 401


def test_an_admin_of_one_environment_makes_no_tokens_for_another(log_in: Any) -> None:
    edits.create_environment(environment="staging", reason="for a test", actor=SEED)
    User.objects.filter(username="olga").update(environment_roles={"production": "admin"})
    olga = log_in("olga")
    asked = {"act": "api", "name": "x", "role": "admin", "days": "30", **WHY}
    for environment in ("staging", ""):
        assert olga.post("/tokens", asked | {"environment": environment}).status_code == 422
    assert shown(olga.post("/tokens", asked | {"environment": "production"}))
    assert 'value="staging"' not in olga.get("/tokens").content.decode()


def test_a_person_whose_role_is_too_low_keeps_the_navigation(log_in: Any) -> None:
    vera = log_in("vera")
    answer = vera.get("/alerts/receivers")
    page = answer.content.decode()
    assert answer.status_code == 403
    assert 'id="nav"' in page
    assert "This needs the role admin. You have the role viewer in production." in page
    assert "An admin of all environments can give you a higher role: ada" in page
    assert "Nothing was changed." not in page
    refused = vera.post("/alerts/mutes", {"act": "add"}).content.decode()
    assert "This needs the role operator. Nothing was changed. You have the role viewer" in refused
    User.objects.filter(username="vera").update(environment_roles={"staging": ""})
    assert "higher role." in vera.get("/alerts/receivers").content.decode(), "she reads nothing of people"


def test_a_change_of_roles_has_an_undo(log_in: Any) -> None:
    ada = log_in("ada")
    roles = {"environment_roles": {"production": ""}, "service_roles": {"production": {"shop": "operator"}}}
    User.objects.filter(username="olga").update(role="operator", **roles)
    typed = {"act": "roles", "role": "viewer", "in-production": "admin", "service": "", **WHY}
    typed |= {"service-environment": "production", "service-role": ""}

    def change() -> dict[str, Any]:
        html = ada.post("/people/olga", typed, follow=True).content.decode()
        assert "The roles of olga were changed." in text_of(html)
        row = User.objects.get(username="olga")
        assert (row.role, row.environment_roles, row.service_roles) == ("viewer", {"production": "admin"}, {})
        return undo_of(html)

    undo = change()
    assert ada.post("/people/olga", undo).status_code == 302
    row = User.objects.get(username="olga")
    assert (row.role, row.environment_roles, row.service_roles) == ("operator", *roles.values())
    assert Entry.objects.latest("pk").reason == "Undo of a change of the roles of olga"
    undo = change()
    User.objects.filter(username="olga").update(role="admin")
    late = ada.post("/people/olga", undo)
    assert late.status_code == 422
    assert "Another person has changed these roles since. Nothing was undone." in text_of(
        late.content.decode()
    )
    assert User.objects.get(username="olga").role == "admin"
    # Its page has the roles of now, so that Save does not take back what the other person has changed.
    shown = re.search(r'<select[^>]* name="role".*?</select>', late.content.decode(), re.DOTALL)
    assert shown is not None
    assert re.findall(r'value="(\w+)" selected', shown[0]) == ["admin"]
    assert "Undo of a change" not in late.content.decode()


def test_an_undo_keeps_what_another_person_changes_right_after_the_commit(
    log_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada = log_in("ada")
    User.objects.filter(username="olga").update(role="operator")
    stored = people._stored_services

    def change_then_read(user: User) -> Any:
        """The form of Undo is written after the commit: another person is as fast."""
        User.objects.filter(username="olga").update(role="admin")
        return stored(user)

    monkeypatch.setattr(people, "_stored_services", change_then_read)
    typed = {"act": "roles", "role": "viewer", **WHY}
    html = ada.post("/people/olga", typed, follow=True).content.decode()
    assert ada.post("/people/olga", undo_of(html)).status_code == 422
    assert User.objects.get(username="olga").role == "admin"


def test_a_form_that_is_outdated_keeps_the_navigation(log_in: Any) -> None:
    """It was a card without a way back, also for a person who is logged in."""
    strict = Client(enforce_csrf_checks=True)
    bare = strict.post("/login", {"username": "ada", "password": "x"})
    assert (bare.status_code, 'id="nav"' in bare.content.decode()) == (403, False)
    strict.cookies = log_in("ada").cookies
    answer = strict.post("/alerts/mutes", {"act": "add"})
    page = answer.content.decode()
    assert answer.status_code == 403
    for words in ('id="nav"', "<h1>Form not accepted</h1>", "Nothing was changed. Go back, reload the page"):
        assert words in page


def test_the_page_of_people_says_what_each_role_may_do(log_in: Any) -> None:
    """It said that only admins change quotas, while operators approved changes of them."""
    page = text_of(log_in("ada").get("/people").content.decode())
    for words in (
        "Operators also override and reset breakers, and approve changes that admins propose.",
        "Admins also change quotas, tokens and people, and apply approved changes.",
    ):
        assert words in page
    assert may(Reader(name="", role="operator"), "approve_change")
    assert not may(Reader(name="", role="operator"), "edit_quota")


def test_an_admin_of_one_environment_is_not_offered_the_page_of_people(log_in: Any) -> None:
    """The side bar led to "Not allowed"."""
    User.objects.filter(username="olga").update(environment_roles={"production": "admin"})
    for name, offered in (("olga", False), ("ada", True)):
        client = log_in(name)
        entries = client.get("/palette").json()["entries"]
        assert ("page:people" in {entry["id"] for entry in entries}) is offered
        page = client.get("/").content.decode()
        assert 'href="/tokens"' in page
        assert ('href="/people"' in page) is offered
        assert client.get("/people").status_code == (200 if offered else 403)
    for offered in (False, True):
        topic = topic_of("page=tokens", "admin", everywhere=offered)
        [nav] = (one for one in fragments(topic, {}) if one.target == "nav")
        drawn = nav.html(frame_context(topic, Frame(now=0.0)))
        assert ('href="/people"' in drawn) is offered, "the socket draws the side bar again"
