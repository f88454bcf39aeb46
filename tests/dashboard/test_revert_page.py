"""The page that reverts one revision, or one thing that it changed."""

import re
from typing import Any

import pytest

from controlplane.editing import edits
from controlplane.editing.edits import TenantChange, TenantFilter
from controlplane.editing.plans import apply_plan, plan_from_document
from controlplane.one_at_a_time import alone
from controlplane.policies.models import Change, Environment, Revision, Tenant
from controlplane.policies.undone import _stayed, undone
from dashboard.views.history import revert as revert_views
from tests.people import ADA, BOB

pytestmark = pytest.mark.django_db(transaction=True)

WHY = "CHG-77 asked for by sales"
COMMON: dict[str, Any] = {"environment": "production", "tenant": "acme-retail", "expected_version": None}


def page(answer: Any, status: int = 200) -> str:
    assert answer.status_code == status, answer.content.decode()[:3000]
    return answer.content.decode()


def tier() -> str:
    return Tenant.objects.select_related("tier").get(key="acme-retail").tier.name


def seen_in(shown: str) -> str:
    found = re.search(r'name="seen" value="(\d+)"', shown)
    assert found
    return found[1]


def revert_of(number: int, thing: tuple[str, str] = ("tenant", "acme-retail"), units: Any = ()) -> int:
    common = {"environment": "production", "reason": WHY, "actor": BOB, "expected_revision": None}
    return edits.revert(number=number, things={thing: units}, **common).revision


def changed(**fields: str) -> int:
    plan = plan_from_document({"tenants": {"acme-retail": fields}})
    return apply_plan(environment="production", plan=plan, expected_revision=None, reason=WHY, actor=ADA)


@pytest.fixture
def moved(production: str) -> int:
    return edits.change_tier(**COMMON, tier="free", reason=WHY, actor=ADA)


def test_an_admin_reverts_one_edit_from_the_page_of_the_tenant(log_in: Any, moved: int) -> None:
    client = log_in("ada")
    edits.suspend_tenant(environment="production", tenant="acme-retail", reason=WHY, actor=BOB)
    link = f"/revisions/{moved}/revert?kind=tenant&amp;name=acme-retail"
    assert link in page(client.get("/tenant?key=acme-retail"))
    path = link.replace("&amp;", "&")
    shown = page(client.get(path))
    assert "Revert as a new revision" in shown
    answer = client.post(path, {"seen": seen_in(shown), "reason": WHY})
    made = Revision.objects.latest("number")
    assert answer["Location"] == f"/tenant?key=acme-retail&saved={made.number}"
    shown = page(client.get(answer["Location"]))
    assert f'hx-get="/revisions/{made.number}/rollout"' in shown
    assert f'action="/revisions/{made.number}/undo"' in shown
    assert tier() == "pro"
    assert Tenant.objects.get(key="acme-retail").suspended
    assert made.reverts == moved
    assert f'reverted by <a href="/revisions/{made.number}">' in page(client.get(f"/revisions/{moved}"))
    listed = page(client.get("/revisions"))
    assert f'Reverted by <a href="/revisions/{made.number}">' in listed
    assert f'href="/revisions/{moved}/revert"' not in listed


def test_a_revision_of_which_one_tenant_was_reverted_is_partly_reverted(log_in: Any, production: str) -> None:
    """It was called reverted, without a link to revert the rest."""
    client = log_in("ada")
    edits.create_tenant(environment="production", tenant="globex", tier="pro", reason=WHY, actor=ADA)
    made = edits.bulk_edit(
        environment="production",
        filter=TenantFilter(tier="pro"),
        change=TenantChange(quotas={"requests": {"limit": 7}}),
        reason=WHY,
        actor=ADA,
        expected_revision=None,
    )
    first = revert_of(made, ("tenant", "globex"))
    link = f'href="/revisions/{made}/revert"'
    partly = f'artly reverted by <a href="/revisions/{first}">{first}</a> (globex)'
    for path in ("/changes", "/revisions", f"/revisions/{made}"):
        shown = page(client.get(path))
        assert partly in shown, path
        assert link in shown, path
    second = revert_of(made, ("tenant", "acme-retail"))
    for path in ("/changes", "/revisions", f"/revisions/{made}"):
        shown = page(client.get(path))
        assert "artly reverted" not in shown, path
        assert f"{first}</a>, <a" in shown, path
        assert f"/revisions/{second}" in shown, path
    assert link not in page(client.get("/changes"))


def test_a_revision_is_reverted_once_none_of_its_values_stays(log_in: Any, production: str) -> None:
    """What another edit has changed since is no effect of the revision any more."""
    made = changed(tier="free", title="Acme")
    one_value = revert_of(made, units=("tier",))
    found = undone("production", [made])[made]
    assert (found.whole, [each.number for each in found.reverts]) == (False, [one_value])
    changed(title="Acme Retail")
    rest = revert_of(changed(tier="free"))
    assert undone("production", [rest - 1])[rest - 1].whole
    again = changed(tier="enterprise", title="A")
    changed(title="B")
    revert_of(again)
    assert undone("production", [again])[again].whole, "its title was changed by another edit"


def test_nothing_of_a_revision_stays_in_a_thing_that_was_deleted_since() -> None:
    """A quota that the revision removed is not there either."""
    edit = Change(kind="tenant", name="a", before={"title": "A", "quotas.q.limit": 5}, after={"title": "B"})
    assert not _stayed(edit, {("tenant", "a"): {}})
    assert _stayed(edit, {("tenant", "a"): {"title": "B"}})
    assert _stayed(edit, {})
    deletion = Change(kind="tenant", name="a", before={"title": "A"}, after=None)
    assert _stayed(deletion, {("tenant", "a"): {}})
    assert not _stayed(deletion, {("tenant", "a"): {"title": "A"}})


def test_a_value_that_was_changed_since_stays_unless_it_is_chosen(log_in: Any, moved: int) -> None:
    client = log_in("ada")
    edits.change_tier(**COMMON, tier="enterprise", reason="peak of the sale", actor=BOB)
    path = f"/revisions/{moved}/revert?kind=tenant&name=acme-retail"
    shown = page(client.get(path))
    assert "What stays" in shown
    assert "bob in" in shown
    assert "peak of the sale" in shown
    client.post(path, {"seen": seen_in(shown), "reason": WHY})
    assert tier() == "enterprise"
    client.post(path, {"seen": seen_in(shown), "reason": WHY, "anyway": "tier"})
    assert tier() == "pro"


def test_an_edit_after_the_preview_is_displayed_and_nothing_is_saved(log_in: Any, moved: int) -> None:
    client = log_in("ada")
    edits.suspend_tenant(environment="production", tenant="acme-retail", reason=WHY, actor=BOB)
    path = f"/revisions/{moved}/revert"
    shown = page(client.post(path, {"seen": str(moved), "reason": WHY}), 409)
    assert "bob changed the same values." in shown
    assert WHY in shown
    assert tier() == "free"


def test_a_wrong_reason_or_an_impossible_revert_says_what_to_do(log_in: Any, moved: int) -> None:
    client = log_in("ada")
    head = str(Environment.objects.get(pk="production").revision)
    assert "Say why" in page(client.post(f"/revisions/{moved}/revert", {"seen": head, "reason": "x"}), 422)
    made = edits.create_tier(
        environment="production", tier="gold", title="Gold", priority=70, reason=WHY, actor=ADA
    )
    edits.change_tier(**COMMON, tier="gold", reason=WHY, actor=ADA)
    assert "Tenant acme-retail still has this tier" in page(client.get(f"/revisions/{made}/revert"))
    assert page(client.get("/revisions/99999/revert"), 404)
    assert "did not change tenant" in page(client.get(f"/revisions/{moved}/revert?kind=tenant&name=x"))


def test_only_admins_revert(log_in: Any, moved: int) -> None:
    for person in ("vera", "olga"):
        client = log_in(person)
        assert client.get(f"/revisions/{moved}/revert").status_code == 403
        assert client.post(f"/revisions/{moved}/revert", {"reason": WHY}).status_code == 403
        assert "/revert" not in page(client.get("/revisions"))
        assert "/revert" not in page(client.get("/tenant?key=acme-retail"))


def test_a_large_revision_is_not_previewed_and_one_revert_runs_at_a_time(
    log_in: Any, moved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revert_views, "_PREVIEWED", 0)
    ada = log_in("ada")
    address = f"/revisions/{moved}/revert"
    shown = page(ada.get(address))
    assert "too many to preview here" in shown
    typed = {"seen": seen_in(shown), "reason": WHY}
    with alone("user:ada"):
        assert "still runs" in page(ada.post(address, typed), 429)
        assert "still runs" in page(ada.get(f"{address}?kind=tenant&name=acme-retail"))
        ada.post(f"/revisions/{moved}/undo", {"back": "/tenants"})
        assert "still runs" in page(ada.get("/tenants"))
    assert tier() == "free"
    assert ada.post(address, typed).status_code == 302
    assert tier() == "pro"


def test_undo_says_what_it_left_as_it_is(log_in: Any, production: str) -> None:
    client = log_in("ada")
    plan = plan_from_document({"tenants": {"acme-retail": {"tier": "free", "title": "Acme"}}})
    number = apply_plan(environment=production, plan=plan, expected_revision=None, reason=WHY, actor=ADA)
    later = edits.change_tier(**COMMON, tier="enterprise", reason=WHY, actor=BOB)
    answer = client.post(f"/revisions/{number}/undo", {"back": "/tenants"})
    assert answer["Location"].startswith("/tenants?saved=")
    shown = page(client.get(answer["Location"]))
    assert f"bob changed tenant acme-retail in revision {later}. 1 value stays as now." in shown
    assert f'<a class="link" href="/revisions/{number}/revert">See what stays</a>' in shown
    assert (tier(), Tenant.objects.get(key="acme-retail").title) == ("enterprise", "")


def test_an_edit_that_is_undone_twice_blames_nobody(log_in: Any, moved: int) -> None:
    client = log_in("ada")
    assert "saved=" in client.post(f"/revisions/{moved}/undo", {"back": "/tenants"})["Location"]
    again = client.post(f"/revisions/{moved}/undo", {"back": "/tenants"})
    assert again["Location"] == "/tenants"
    assert f"Nothing to do: revision {moved} is already undone." in page(client.get("/tenants"))
    third = edits.change_tier(**COMMON, tier="free", reason=WHY, actor=ADA)
    edits.change_tier(**COMMON, tier="enterprise", reason=WHY, actor=BOB)
    assert client.post(f"/revisions/{third}/undo", {"back": "/"})["Location"] == f"/revisions/{third}/revert"
    assert "Nothing was undone: bob changed tenant acme-retail" in page(client.get("/"))
