"""Pages for a person with a role for one service: they offer and accept what it covers, and nothing else."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from browsing import is_live

from controlplane.accounts import people
from controlplane.accounts.models import User
from controlplane.audit.models import Entry
from controlplane.breakers.models import Override
from controlplane.breakers.overrides import override_breaker
from controlplane.editing import edits
from controlplane.editing.plans import apply_plan, plan_from_document
from controlplane.fleet.models import Server
from controlplane.policies.models import Dependency, Revision, Tier
from controlplane.schedules.models import Schedule
from dashboard.views.breakers.dependency_form import values_of
from fuseboard.contract.words import OverrideMode
from tests.people import ADA, OLGA

pytestmark = pytest.mark.django_db(transaction=True)

WHY = {"reason": "CHG-4821 vendor maintenance"}
OPEN = {"act": "forced_open", "lasts": "5", **WHY}


@pytest.fixture
def owned(production: str) -> None:
    """``payments-api`` is of service shop, ``search`` of service routes; vera is an admin for shop."""
    for name, owner in (("payments-api", "shop"), ("search", "routes")):
        edits.describe_dependency(
            environment="production",
            dependency=name,
            title="",
            owner=owner,
            fallback_note="",
            runbook=None,
            expected_version=None,
            actor=ADA,
            **WHY,
        )
    User.objects.filter(username="vera").update(service_roles={"production": {"shop": "admin"}})
    Server.objects.filter(name="web-1").update(service="shop")
    Server.objects.filter(name="web-2").update(service="routes")


def text(answer: Any) -> str:
    return " ".join(answer.content.decode().split())


def test_only_own_breakers_have_their_buttons(log_in: Any, owned: None) -> None:
    client = log_in("vera")
    listed = text(client.get("/breakers"))
    assert 'id="sel-payments-api"' in listed
    assert 'id="sel-search"' not in listed
    own, other = text(client.get("/breakers/payments-api")), text(client.get("/breakers/search"))
    assert 'id="override-form"' in own
    assert "/breakers/payments-api/settings" in own
    assert 'id="override-form"' not in other
    assert "/breakers/search/settings" not in other
    assert "Operators can override or reset this breaker" in other
    assert "admin for shop" in own
    # Nothing of other admins appears: the role is a viewer's elsewhere.
    assert 'href="/people"' not in own


def test_a_breaker_of_another_service_is_refused(log_in: Any, owned: None) -> None:
    client = log_in("vera")
    assert client.post("/breakers/payments-api/preview", {"act": "reset"}).status_code == 200
    assert client.post("/breakers/search/preview", {"act": "reset"}).status_code == 403
    for act in ("forced_open", "extend", "automatic", "reset"):
        assert client.post("/breakers/search", {**OPEN, "act": act}).status_code == 403
    assert client.post("/breakers/payments-api", OPEN).status_code == 302
    assert [row.dependency.name for row in Override.objects.all()] == ["payments-api"]


def test_settings_of_another_service_are_refused(log_in: Any, owned: None) -> None:
    client = log_in("vera")
    for path in ("/breakers/{}/settings", "/edit/dependency?key={}"):
        assert client.get(path.format("payments-api")).status_code == 200
        assert client.get(path.format("search")).status_code == 403
        assert client.get(path.format("none")).status_code == 403
        assert client.post(path.format("search"), {"version": "1", **WHY}).status_code == 403
    assert client.post("/breakers/search/settings/preview", {"version": "1"}).status_code == 403
    assert 'name="starts"' not in text(client.get("/breakers/payments-api/settings"))
    row = Dependency.objects.get(name="payments-api")
    later = {
        "version": str(row.version),
        "starts": f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%dT%H:%M}",
        **WHY,
    }
    form = values_of(row, {}) | {"breaker.open_ms": "45000"} | later
    assert client.post("/breakers/payments-api/settings", form).status_code == 403
    assert not Schedule.objects.exists()
    assert client.post("/edit/dependency/preview?key=search", {"base": "1"}).status_code == 403


def edit(client: Any, **typed: str) -> Any:
    base = client.get("/edit/dependency?key=payments-api").context["base"]
    return client.post(
        "/edit/dependency?key=payments-api", {"base": str(base), "act": "save", **WHY, **typed}
    )


def test_an_own_dependency_is_edited_but_not_given_away_removed_or_scheduled(
    log_in: Any, owned: None
) -> None:
    client = log_in("vera")
    page = client.get("/edit/dependency?key=payments-api")
    assert not page.context["removable"]
    assert 'name="starts"' not in text(page)
    given = edit(client, **{"own.owner": "routes", "own.title": "Payments"})
    assert given.status_code == 422
    assert "It decides who may edit" in text(given)
    # What was typed is kept.
    assert 'value="Payments"' in text(given)
    assert edit(client, **{"own.owner": "shop", "own.title": "Payments"}).status_code == 302
    assert Dependency.objects.get(name="payments-api").title == "Payments"
    later = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%dT%H:%M}"
    assert edit(client, **{"own.owner": "shop", "own.title": "B", "starts": later}).status_code == 403
    assert not Schedule.objects.exists()
    assert edit(client, act="remove", confirm="payments-api").status_code == 403
    assert client.get("/edit/dependency?new").status_code == 403
    assert client.post("/edit/dependency?new", {"name": "own", "own.owner": "shop", **WHY}).status_code == 403
    for kind in ("tenant?key=acme-retail", "tier?key=pro", "environment"):
        assert client.get(f"/edit/{kind}").status_code == 403


def timeout(dependency: str, timeout_ms: int, **more: Any) -> int:
    plan = plan_from_document({"dependencies": {dependency: {"timeout_ms": timeout_ms}}, **more})
    return apply_plan(environment="production", plan=plan, expected_revision=None, actor=ADA, **WHY)


def test_an_own_edit_is_undone_and_reverted(log_in: Any, owned: None) -> None:
    client = log_in("vera")
    saved = edit(client, **{"own.owner": "shop", "own.title": "Payments"})
    number = Revision.objects.latest("number").number
    assert f'action="/revisions/{number}/undo"' in text(client.get(saved["Location"]))
    assert client.post(f"/revisions/{number}/undo", {"back": "/"}).status_code == 302
    assert Dependency.objects.get(name="payments-api").title == ""
    entry = Entry.objects.latest("id")
    assert (entry.actor, entry.role) == ("vera", "admin")
    number = edits.set_breaker_policy(
        environment="production",
        dependency="payments-api",
        breaker={"probes": 9},
        expected_version=None,
        actor=ADA,
        **WHY,
    )
    link = f"/revisions/{number}/revert?kind=dependency&amp;name=payments-api"
    for path in ("/audit", "/changes", f"/revisions/{number}"):
        assert link in text(client.get(path)), path
    page = client.get(f"/revisions/{number}/revert")
    form = {"seen": str(page.context["found"].revision), **WHY}
    assert client.post(f"/revisions/{number}/revert", form).status_code == 302
    assert Dependency.objects.get(name="payments-api").probes != 9


def test_what_others_own_is_not_undone_or_reverted(log_in: Any, owned: None) -> None:
    client = log_in("vera")
    form = {"seen": "0", "back": "/", **WHY}
    other, quota = timeout("search", 7_000), timeout("search", 8_000, tiers={"pro": {"priority": 7}})
    for number in (other, quota, 999_999):
        assert client.get(f"/revisions/{number}/revert").status_code == 403
        assert client.post(f"/revisions/{number}/revert", form).status_code == 403
        assert client.post(f"/revisions/{number}/undo", form).status_code == 403
        assert f"/{number}/revert" not in text(client.get("/changes")) + text(client.get("/audit"))
    assert Dependency.objects.get(name="search").timeout_ms == 8_000
    # Only together with others: refused as a whole, with a way to revert the own part.
    both = timeout("payments-api", 6_000, tiers={"pro": {"priority": 8}})
    alone = f"/revisions/{both}/revert?kind=dependency&name=payments-api"
    page = client.get(f"/revisions/{both}/revert")
    assert page.status_code == 403
    assert alone.replace("&", "&amp;") in text(page)
    assert "It also changes tier pro, which needs the role admin." in text(page)
    assert client.post(f"/revisions/{both}/revert", {**form, "seen": str(both)}).status_code == 403
    assert client.post(f"/revisions/{both}/undo", form)["Location"] == f"/revisions/{both}/revert"
    assert Dependency.objects.get(name="payments-api").timeout_ms == 6_000
    assert client.get(f"/revisions/{both}/revert?kind=tier&name=pro").status_code == 403
    assert client.post(alone, {**form, "seen": str(both)}).status_code == 302
    assert Dependency.objects.get(name="payments-api").timeout_ms != 6_000
    assert Tier.objects.get(name="pro").priority == 8


def test_a_revert_never_decides_who_owns_a_dependency(log_in: Any, owned: None) -> None:
    """``payments-api`` had no owner before, and belonged to another service in between."""
    client = log_in("vera")
    given = Revision.objects.filter(target="payments-api").latest("number").number
    page = client.get(f"/revisions/{given}/revert")
    assert page.status_code == 403
    assert "It also decides who owns payments-api" in text(page)
    number = timeout("payments-api", 7_000)
    Dependency.objects.filter(name="payments-api").update(owner="routes")
    assert client.post(f"/revisions/{number}/undo", {"back": "/"}).status_code == 403
    User.objects.filter(username="vera").update(service_roles={"production": {"shop": "operator"}})
    Dependency.objects.filter(name="payments-api").update(owner="shop")
    assert log_in("vera").post(f"/revisions/{number}/undo", {"back": "/"}).status_code == 403
    assert Dependency.objects.get(name="payments-api").timeout_ms == 7_000


def test_a_selection_opens_only_own_breakers(log_in: Any, owned: None) -> None:
    client = log_in("vera")
    both = {"b": ["payments-api", "search"]}
    page = client.get("/overrides/open", both)
    assert [breaker.name for breaker in page.context["chosen"]] == ["payments-api"]
    assert "Your role does not cover search." in text(page)
    seen = {"seen-payments-api": "0", "seen-search": "0"}
    done = client.post("/overrides/open", {**both, **seen, "lasts": "5", **WHY})
    assert done.status_code == 409
    assert {one.name: one.done for one in done.context["results"]} == {"search": False, "payments-api": True}
    assert [row.dependency.name for row in Override.objects.all()] == ["payments-api"]
    User.objects.filter(username="vera").update(service_roles={})
    assert log_in("vera").post("/overrides/open", {**both, **seen, "lasts": "5", **WHY}).status_code == 403


def test_the_palette_offers_only_what_the_role_covers(log_in: Any, owned: None) -> None:
    override_breaker(
        environment="production",
        dependency="search",
        mode=OverrideMode.FORCED_OPEN,
        expires_at=datetime.now(UTC) + timedelta(hours=1),
        actor=OLGA,
        **WHY,
    )
    answer = log_in("vera").get("/palette").json()
    breakers = {one["object"]: one for one in answer["entries"] if "object" in one}
    offered = {
        (verb["id"], name) for verb in answer["verbs"] for name, one in breakers.items() if one[verb["needs"]]
    }
    assert offered == {(act, "payments-api") for act in ("forced_open", "forced_closed", "reset", "settings")}
    ids = {one["id"] for one in answer["entries"]}
    assert not ids & {"form:tenant", "form:dependency", "page:drills", "page:pod_protection", "tier:pro"}
    answer = log_in("ada").get("/palette").json()
    assert all(verb["needs"] for verb in answer["verbs"])
    assert all(one["operated"] and one["edited"] for one in answer["entries"] if "object" in one)


def test_only_own_pods_are_forgotten(log_in: Any, owned: None) -> None:
    client = log_in("vera")
    assert client.get("/servers/web-1").context["may_forget"]
    assert not client.get("/servers/web-2").context["may_forget"]
    assert client.post("/servers/web-2/forget", WHY).status_code == 403
    assert client.post("/servers/none/forget", WHY).status_code == 403
    assert client.post("/servers/web-1/forget", WHY).status_code == 302
    assert not Server.objects.filter(name="web-1").exists()


def test_an_admin_gives_roles_for_services_on_the_page_of_a_person(log_in: Any, owned: None) -> None:
    client = log_in("ada")
    page = text(client.get("/people/vera"))
    assert 'value="shop"' in page
    rows = {
        "act": "roles",
        "role": "viewer",
        "service-environment": ["production", "production"],
        "service": ["shop", " routes "],
        "service-role": ["", "operator"],
        **WHY,
    }
    wrong = client.post("/people/vera", {**rows, "service": ["shop", "not a name"]})
    assert wrong.status_code == 422
    assert 'value="not a name"' in text(wrong)
    assert "the name that pods of the service report" in text(wrong)
    assert client.post("/people/vera", rows).status_code == 302
    assert User.objects.get(username="vera").service_roles == {"production": {"routes": "operator"}}
    assert "operator for routes in production" in text(client.get("/people"))


@pytest.mark.browser
def test_open_pages_draw_own_buttons_and_follow_a_lost_role(sign_in: Any, owned: None) -> None:
    for name in ("payments-api", "search"):
        override_breaker(
            environment="production",
            dependency=name,
            mode=OverrideMode.FORCED_OPEN,
            expires_at=datetime.now(UTC) + timedelta(minutes=4),
            actor=OLGA,
            **WHY,
        )
    Override.objects.update(created_at=datetime.now(UTC) - timedelta(minutes=20))
    page = sign_in("vera")
    page.goto("/breakers")
    # From here on, the live socket has drawn the page: only the own override can be extended.
    is_live(page)
    page.wait_for_selector("#ending-payments-api a.btn")
    page.wait_for_selector("#ending-search")
    assert not page.is_visible("#ending-search a.btn")
    assert page.is_visible("#sel-payments-api")
    assert not page.is_visible("#sel-search")
    people.change_roles(
        username="vera", role="viewer", environment_roles={}, service_roles={}, actor=ADA, **WHY
    )
    page.wait_for_selector("#sel-payments-api", state="detached")
    page.wait_for_selector("#ending-payments-api")
    assert not page.is_visible("#ending-payments-api a.btn")
