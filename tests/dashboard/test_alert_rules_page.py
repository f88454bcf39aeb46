"""The page of alert rules: a form that changes one, with a preview."""

import re
from typing import Any

import pytest

from controlplane.alerts.rules.settings import default_of
from controlplane.policies.models import Environment
from tests.dashboard.shown import text_of, undo_of

pytestmark = pytest.mark.django_db(transaction=True)
WHY = "Bursts of imports are usual"


def stored() -> dict[str, Any]:
    return dict(Environment.objects.get(slug="production").alert_rules)


def test_the_page_changes_a_rule_and_restores_it(log_in: Any) -> None:
    client = log_in("ada")
    page = client.get("/alerts/rules?edit=shed").content.decode()
    assert 'value="10"' in page
    typed = {"rule": "shed", "critical": "20", "warning": "", "level": "1", "enabled": "on", "note": ""}
    preview = client.post("/alerts/rules", {**typed, "act": "preview"}).content.decode()
    assert "No alert of this rule is open" in preview
    assert stored() == {}
    assert client.post("/alerts/rules", {**typed, "act": "save"}).status_code == 422, "it needs a reason"
    assert client.post("/alerts/rules", {**typed, "act": "save", "reason": WHY}).status_code == 302
    assert stored() == {"shed": {"critical": 0.2}}
    wrong = client.post("/alerts/rules", {**typed, "critical": "much", "act": "save", "reason": WHY})
    assert wrong.status_code == 422
    assert "Enter a number" in wrong.content.decode()
    assert client.post("/alerts/rules", {"rule": "shed", "act": "reset", "reason": WHY}).status_code == 302
    assert stored() == {}
    assert default_of("shed").threshold.critical == 0.1


def test_a_preview_compares_one_time_with_both_values(log_in: Any) -> None:
    """It compared 24 hours with these values with 30 days with those in force."""
    typed = {"rule": "429", "warning": "4", "critical": "5", "level": "1", "enabled": "on", "note": ""}
    shown = text_of(log_in("ada").post("/alerts/rules", {**typed, "act": "preview"}).content.decode())
    said = (
        "By the figures of the last 24 hours, it would have fired 0 times with these values, and 0 times with"
    )
    assert said in shown
    assert "0 alerts fired in the last 30 days." in shown


def test_a_change_of_another_admin_is_not_lost(log_in: Any) -> None:
    client = log_in("ada")

    def version(page: Any) -> str:
        found = re.search(r'name="version" value="([0-9]+)"', page.content.decode())
        assert found is not None
        return found[1]

    read = version(client.get("/alerts/rules?edit=shed"))
    typed = {"rule": "shed", "act": "save", "enabled": "on", "reason": WHY, "version": read}
    assert client.post("/alerts/rules", typed | {"critical": "20"}).status_code == 302
    mine = typed | {"note": "Ask Olga"}
    assert version(client.post("/alerts/rules", mine | {"reason": ""})) == read, "it is still based on that"
    refused = client.post("/alerts/rules", mine)
    assert refused.status_code == 409
    page = refused.content.decode()
    assert "ada changed this rule meanwhile" in page
    assert "Ask Olga" in page
    assert stored() == {"shed": {"critical": 0.2}}
    assert client.post("/alerts/rules", mine | {"version": version(refused)}).status_code == 302
    assert stored() == {"shed": {"note": "Ask Olga"}}


def test_only_an_admin_changes_rules_and_those_of_level_3_are_fixed(log_in: Any) -> None:
    vera = log_in("vera")
    page = vera.get("/alerts/rules?edit=shed").content.decode()
    assert "Change rule" not in page
    assert vera.post("/alerts/rules", {"rule": "shed", "act": "save", "reason": WHY}).status_code == 403
    ada = log_in("ada")
    page = ada.get("/alerts/rules?edit=redis-down").content.decode()
    assert "Only its note can change" in page
    typed = {"rule": "redis-down", "act": "save", "enabled": "on", "note": "Call Olga", "reason": WHY}
    assert ada.post("/alerts/rules", typed).status_code == 302
    assert stored() == {"redis-down": {"note": "Call Olga"}}
    assert ada.post("/alerts/rules", {"rule": "gone", "act": "save", "reason": WHY}).status_code == 404


@pytest.mark.parametrize("act", ["save", "reset"])
def test_an_empty_version_replaces_no_change_of_another_admin(log_in: Any, act: str) -> None:
    client = log_in("ada")
    typed = {"rule": "shed", "enabled": "on", "reason": WHY}
    assert client.post("/alerts/rules", typed | {"act": "save", "critical": "20"}).status_code == 302
    refused = client.post("/alerts/rules", typed | {"act": act, "version": ""})
    assert refused.status_code == 422
    assert "Enter a whole number" in refused.content.decode()
    assert stored() == {"shed": {"critical": 0.2}}


def test_an_edit_of_a_rule_is_undone_unless_it_was_changed_since(log_in: Any) -> None:
    client = log_in("ada")
    typed = {"rule": "shed", "act": "save", "enabled": "on", "reason": WHY}
    client.post("/alerts/rules", typed | {"critical": "20", "for_s": "90"}, follow=True)
    page = client.post("/alerts/rules", typed | {"critical": "30"}, follow=True).content.decode()
    assert "Rule \u201cPods shed requests\u201d was saved." in page
    undo = undo_of(page)
    client.post("/alerts/rules", undo, follow=True)
    assert stored() == {"shed": {"critical": 0.2, "for_s": 90}}
    assert client.post("/alerts/rules", undo).status_code == 409, "it is not what was saved"
