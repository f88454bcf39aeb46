"""Revisions, imports and bulk edits, as a person makes them without a script."""

import re
import zlib
from typing import Any

import pytest
import yaml
from django.core.files.uploadedfile import SimpleUploadedFile
from django.template.loader import render_to_string
from editor_steps import bulk_shown

from controlplane.approvals.rules import set_approvals
from controlplane.editing import edits
from controlplane.editing.plans import drafting
from controlplane.policies.drafts import Draft
from controlplane.policies.models import Environment, Revision, Tenant
from dashboard.words.change_words import ChangeWords
from dashboard.words.changed_items import ChangedItem
from tests.people import ADA, BOB
from tools.demo.story.imports import PROGRESS

pytestmark = pytest.mark.django_db(transaction=True)

WHY = "CHG-77 asked for by sales"
PLAN = "tenants:\n  acme-retail: {tier: enterprise, title: '<b>ACME</b>'}\n  new-one: {tier: free}\n"


def head() -> int:
    return Environment.objects.get(pk="production").revision


def page(answer: Any, status: int = 200) -> str:
    assert answer.status_code == status, answer.content.decode()[:3000]
    return answer.content.decode()


def tier() -> str:
    return Tenant.objects.select_related("tier").get(key="acme-retail").tier.name


def send(client: Any, text: str, name: str = "quotas.yaml", **more: str) -> Any:
    return client.post("/import", {"file": SimpleUploadedFile(name, text.encode()), **more})


def suspend_as_bob() -> None:
    edits.suspend_tenant(environment="production", tenant="acme-retail", reason=WHY, actor=BOB)


def test_the_creation_of_the_environment_offers_no_revert(production: str, log_in: Any, moved: int) -> None:
    client = log_in("ada")
    shown = page(client.get("/revisions"))
    assert "Environment created" in shown
    created = Revision.objects.get(action="environment.created").number
    assert f'href="/revisions/{created}/revert"' not in shown, "it cannot be removed"
    assert f'href="/revisions/{moved}/revert"' in shown
    assert "Revert this edit" not in page(client.get(f"/revisions/{created}"))
    assert "Revert this edit" in page(client.get(f"/revisions/{moved}"))


def test_previews_say_what_will_change(production: str, log_in: Any, moved: int) -> None:
    """They said "Changed" before anything was saved."""
    client = log_in("ada")
    for address in (f"/revisions/{moved}/revert", f"/revisions/{moved - 1}?back"):
        assert "Will change</span>" in page(client.get(address)), address
    assert "Changed</span>" in page(client.get(f"/revisions/{moved}"))
    draft = send(client, PLAN)["Location"]
    shown = page(client.get(draft))
    assert "Will be created</span>" in shown
    assert "Will change</span>" in shown
    what = {"what": "suspend", "tier": "free"}
    assert "Will change</span>" in page(client.post("/tenants/bulk/preview", what))


@pytest.fixture
def moved(production: str) -> int:
    return edits.change_tier(
        environment=production,
        tenant="acme-retail",
        tier="free",
        expected_version=None,
        reason=WHY,
        actor=ADA,
    )


def test_every_role_may_view_revisions(log_in: Any) -> None:
    client = log_in("vera")
    for path in ("", "?only=changes", "?before=3", "?before=x", "/1", "/1?page=9", "/1?page=x"):
        words = "Revision 1" if path.startswith("/") else "Newest first"
        assert words in page(client.get(f"/revisions{path}")), path


def test_only_admins_may_edit_in_bulk_or_export_everything(log_in: Any) -> None:
    client = log_in("olga")
    for path in ("/import", "/tenants/bulk", "/export/yaml", "/export/csv"):
        assert client.get(path).status_code == 403, path
    for path in ("/import", "/tenants/bulk"):
        page(log_in("ada").get(path))


def test_a_revision_displays_old_and_new_values(log_in: Any, moved: int) -> None:
    shown = page(log_in("vera").get(f"/revisions/{moved}"))
    assert '<span class="was">pro</span>' in shown
    assert "<td>free" in shown
    assert WHY in shown
    assert "Restore this revision" not in shown
    assert log_in("vera").post(f"/revisions/{moved}", {"reason": WHY}).status_code == 403
    assert page(log_in("vera").get("/revisions")).index(f">{moved}</a>") > 0
    assert log_in("vera").get("/revisions/99999").status_code == 404


def test_an_admin_restores_a_revision_after_a_preview(log_in: Any, moved: int) -> None:
    client = log_in("ada")
    shown = page(client.get(f"/revisions/{moved - 1}?back"))
    assert "0 to create, 1 to change, 0 to remove" in shown
    seen = re.search(r'name="seen" value="(\d+)"', shown)[1]
    assert "Say why" in page(client.post(f"/revisions/{moved - 1}?back", {"seen": seen, "reason": "x"}), 422)
    assert tier() == "free"
    answer = client.post(f"/revisions/{moved - 1}?back", {"seen": seen, "reason": WHY})
    assert answer["Location"] == f"/revisions/{moved + 1}?saved={moved + 1}"
    assert tier() == "pro"
    shown = page(client.get(answer["Location"]))
    assert f'restoring <a href="/revisions/{moved - 1}">' in shown
    # How many pods have applied it, and Undo, as after every edit.
    assert f'hx-get="/revisions/{moved + 1}/rollout"' in shown
    assert f'class="undo" method="post" action="/revisions/{moved + 1}/undo"' in shown
    client.post(f"/revisions/{moved + 1}/undo", {"back": "/"})
    assert tier() == "free"


def test_a_concurrent_change_is_displayed_before_a_rollback(log_in: Any, moved: int) -> None:
    client = log_in("ada")
    suspend_as_bob()
    shown = page(client.post(f"/revisions/{moved - 1}?back", {"seen": str(moved), "reason": WHY}), 409)
    assert "bob changed the configuration." in shown
    assert "suspended" in shown
    assert WHY in shown
    assert tier() == "free"


def test_a_file_is_compared_then_applied_as_one_revision(log_in: Any) -> None:
    client, before = log_in("ada"), head()
    where = send(client, PLAN)["Location"]
    shown = page(client.get(where))
    assert "1 to create, 1 to change, 0 to remove" in shown
    assert "&lt;b&gt;ACME&lt;/b&gt;" in shown
    assert head() == before
    assert "Say why" in page(client.post(where, {"reason": ""}), 422)
    assert client.post(where, {"reason": WHY}).status_code == 302
    assert (head(), tier()) == (before + 1, "enterprise")
    assert f'<a href="/revisions/{before + 1}">' in page(client.get(where))
    made = Revision.objects.get(number=before + 1)
    assert (made.actor, made.reason, made.changed) == ("ada", WHY, 2)
    # A second click applies nothing twice.
    page(client.post(where, {"reason": WHY}), 422)
    assert head() == before + 1
    # The same file again changes nothing, so it has no button.
    again = page(client.get(send(client, PLAN)["Location"]))
    assert "the configuration already matches the file." in again
    assert "Apply changes" not in again


def test_a_wrong_file_is_rejected_by_line_and_changes_nothing(log_in: Any) -> None:
    client, before = log_in("ada"), head()
    shown = page(client.get(send(client, "tenants:\n  a: {tire: pro}\n  b: {tier: [x]}\n")["Location"]))
    assert "<b>Line 2</b>" in shown
    assert "<b>Line 3</b>" in shown
    assert head() == before
    assert "The file is empty" in page(send(client, " "), 422)
    assert "Choose a file" in page(client.post("/import"), 422)


def test_a_worker_imports_a_large_file_and_reports_progress(log_in: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(drafting, "AT_ONCE_BYTES", 0)
    client, before = log_in("ada"), head()
    where = send(client, PLAN)["Location"]
    # The demo reads the steps from the page.
    progress = PROGRESS.search(page(client.get(where)))
    assert progress is not None
    assert progress[2] == "waiting for a worker"
    assert 'hx-trigger="load delay' in page(client.get(where, HTTP_HX_REQUEST="true"))
    assert drafting.work_drafts() == 1
    assert "Apply changes" in page(client.get(where, HTTP_HX_REQUEST="true"))
    client.post(where, {"reason": WHY})
    assert head() == before
    assert drafting.work_drafts() == 1
    assert drafting.work_drafts() == 0
    assert head() == before + 1


def test_another_worker_takes_over_from_one_that_died_and_nothing_is_done_twice(log_in: Any) -> None:
    client, before = log_in("ada"), head()
    where = send(client, PLAN)["Location"]
    # As a worker leaves it that is killed before its transaction is committed.
    Draft.objects.update(state="applying", reason=WHY, done=7, of=9)
    assert "Being applied" in page(client.get(where))
    assert drafting.work_drafts() == 1
    assert drafting.work_drafts() == 0
    assert head() == before + 1
    Draft.objects.update(state="waiting", content=zlib.compress(b"tenants: 7"))
    drafting.work_drafts()
    assert Draft.objects.get().state == "refused"


def test_a_plan_is_compared_again_after_a_concurrent_edit(log_in: Any, moved: int) -> None:
    client = log_in("ada")
    where = send(client, PLAN)["Location"]
    suspend_as_bob()
    client.post(where, {"reason": WHY})
    assert tier() == "free"
    assert "bob changed the configuration meanwhile: review it again" in page(client.get(where))
    client.post(where, {"reason": WHY})
    assert tier() == "enterprise"


def test_a_file_that_an_earlier_version_read_shows_its_changed_fields(log_in: Any) -> None:
    client = log_in("ada")
    where = send(client, PLAN)["Location"]
    fields = [{"field": "tier", "before": "pro", "after": "enterprise"}]
    change = {"kind": "tenant", "name": "acme-retail", "what": "changed", "fields": fields}
    Draft.objects.update(difference={"created": 0, "changed": 1, "removed": 0, "changes": [change]})
    shown = page(client.get(where))
    assert '<span class="was">pro</span>' in shown
    assert "<td>enterprise" in shown


def test_an_unmodified_export_changes_nothing_when_imported(log_in: Any) -> None:
    client = log_in("ada")
    for form in ("yaml", "csv"):
        answer = client.get(f"/export/{form}")
        assert answer["Content-Disposition"] == f"attachment; filename*=UTF-8''quotas-production.{form}"
        text = b"".join(answer.streaming_content).decode()
        shown = page(client.get(send(client, text, f"x.{form}", prune="1")["Location"]))
        assert "the configuration already matches the file." in shown


def test_a_tenant_that_follows_its_tier_again_gets_the_quota_that_the_tier_then_has(
    log_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, before = log_in("ada"), head()

    def quotas(limit: int) -> dict[str, Any]:
        return {"quotas": {"requests": {"limit": limit, "window_s": 60, "burst": 1}}}

    both = {"tiers": {"pro": quotas(900)}, "tenants": {"acme-retail": quotas(7)}}
    for plan in ({"tiers": {"pro": quotas(600)}}, both):
        client.post(send(client, yaml.safe_dump(plan))["Location"], {"reason": WHY})
    assert head() == before + 2
    reverted = page(client.get(f"/revisions/{head()}/revert"))
    assert "600 per min, burst 1 (tier pro)" in reverted
    assert "900 per min, burst 1 (tier pro)" not in reverted
    # The same as a file. The tier is not among the changes that the page lists.
    text = b"".join(client.get("/export/yaml").streaming_content).decode()
    document = yaml.safe_load(text)
    document["tenants"]["acme-retail"].pop("quotas")
    document["tiers"]["pro"]["quotas"]["requests"]["limit"] = 800
    monkeypatch.setattr(drafting, "FIRST", 1)
    compared = page(client.get(send(client, yaml.safe_dump(document), prune="1")["Location"]))
    assert "800 per min, burst 1 (tier pro)" in compared
    assert "900 per min, burst 1 (tier pro)" not in compared
    set_approvals(environment="production", needed=1, reason=WHY, actor=BOB)
    answer = client.post(f"/revisions/{before + 2}/revert", {"seen": str(head()), "reason": WHY})
    assert answer["Location"].startswith("/requests/")
    proposed = page(client.get(answer["Location"]))
    assert "600 per min, burst 1 (tier pro)" in proposed
    assert "900 per min, burst 1 (tier pro)" not in proposed


def test_many_tenants_are_previewed_then_changed(log_in: Any) -> None:
    client, before = log_in("ada"), head()
    form = {"tier": "pro", "what": "quota", "quota": "requests", "limit": "7", "window_s": "60", "burst": "7"}
    assert "1 tenant would change" in page(client.post("/tenants/bulk", form | {"act": "preview"}))
    seen = bulk_shown(client, form)
    assert head() == before
    refused = page(client.post("/tenants/bulk", form | seen | {"act": "save", "reason": ""}), 422)
    assert "Say why" in refused
    assert "1 tenant would change" in refused
    for unseen in (form, form | seen | {"limit": "8"}):
        shown = page(client.post("/tenants/bulk", unseen | {"act": "save", "reason": WHY}))
        assert "Check what would change, then save again." in shown, "what was typed was not previewed"
        assert head() == before
    answer = client.post("/tenants/bulk", form | seen | {"act": "save", "reason": WHY})
    assert answer["Location"] == f"/revisions/{before + 1}?saved={before + 1}"
    assert "Undo" in page(client.get(answer["Location"]))
    typed = form | {"limit": "8", "act": "save", "reason": WHY}
    stale = client.post("/tenants/bulk", typed | bulk_shown(client, typed) | {"seen": seen["seen"]})
    assert stale.status_code == 409
    assert head() == before + 1


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"what": "suspend"}, "Enter at least one condition"),
        (
            {"tier": "pro", "what": "quota", "limit": "x", "quota": "requests"},
            'id="f-limit_error">Enter a whole number',
        ),
        (
            {"tier": "pro", "what": "scale", "percent": "-5", "quota": "requests"},
            'id="f-percent_error">Enter a whole number from 1 to 10,000.',
        ),
        ({"tier": "pro", "what": "explode"}, 'id="f-what_error">Choose an action'),
        (
            {"tier": "pro", "what": "tier", "to_tier": "nowhere"},
            'id="f-to_error">tenants.acme-retail.tier: There is no tier',
        ),
        ({"tier": "pro", "what": "remove", "quota": "no such"}, 'id="f-quota_error">Use 1 to 64'),
    ],
)
def test_an_invalid_bulk_edit_reports_why(log_in: Any, form: dict[str, str], said: str) -> None:
    assert said in page(log_in("ada").post("/tenants/bulk", form | {"act": "preview"}), 422)


def test_a_value_that_a_changed_thing_did_not_have_is_displayed_as_not_set() -> None:
    lines = [ChangeWords("requests", "", "150 per min"), ChangeWords("Suspended", "yes", "no")]
    shown = {what: [ChangedItem("tier", "free", what, lines)] for what in ("changed", "created")}
    changed, created = (
        render_to_string("dashboard/changed_items.html", {"things": things}) for things in shown.values()
    )
    assert changed.count("not set") == 1
    assert "not set" not in created
