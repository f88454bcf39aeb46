"""The page of mutes: what a mute would hide is displayed before, and one click ends it."""

from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.utils import timezone

from controlplane.alerts.models import Mute
from controlplane.audit.models import Entry
from tests.dashboard.shown import undo_of
from tests.dashboard.test_alerts_page import alert, text

pytestmark = pytest.mark.django_db(transaction=True)

PATH = "/alerts/mutes"
NEW = {
    "act": "add",
    "rule": "open",
    "dependency": "payments-api",
    "minutes": "90",
    "reason": "the vendor maintains its database",
}


def test_from_an_alert_to_its_mute_and_back(log_in: Any) -> None:
    alert()
    olga = log_in("olga")
    link = "/alerts/mutes?rule=open&amp;dependency=payments-api"
    assert link in text(olga)
    page = olga.get(link.replace("&amp;", "&")).content.decode()
    assert "Open alerts that it mutes" in page
    assert page.count("18 of 30 calls failed.") == 1
    assert '<option value="open" selected>' in page
    page = olga.post(PATH, NEW, follow=True).content.decode()
    assert "Muted: A breaker is open, dependency payments-api, until" in page
    page = text(olga)
    assert "<b>Muted</b> until" in page
    assert "UTC by olga. <q>the vendor maintains its database</q>" in page
    ending = {"end_mute": Mute.objects.get().pk}
    assert olga.post("/alerts", ending | {"from": "nonsense"}).status_code == 422
    assert Mute.objects.get().ended_at is None, "a refused form changes nothing"
    page = olga.post("/alerts", ending, follow=True).content.decode()
    assert "Mute ended: A breaker is open, dependency payments-api." in page
    assert "<b>Muted</b>" not in page
    assert Entry.objects.filter(action="mute.ended", actor="olga").exists()


def test_a_window_is_planned_listed_and_cancelled(log_in: Any) -> None:
    olga = log_in("olga")
    assert "No alert is muted now or later." in olga.get(PATH).content.decode()
    starts = "2999-01-01T10:00"
    answer = olga.post(PATH, NEW | {"starts_at": starts})
    assert answer.status_code == 422
    page = answer.content.decode()
    assert "Choose a start from now to 90 days" in page
    assert f'value="{starts}"' in page, "what was typed is kept"
    page = olga.post(PATH, NEW | {"repeats": "weekly"}, follow=True).content.decode()
    assert "every week" in page
    row = Mute.objects.get()
    page = olga.post(PATH, {"act": "end", "mute": row.pk, "reason": NEW["reason"]}, follow=True)
    assert "No alert is muted now or later." in page.content.decode()


def test_a_weekly_mute_is_ended_for_this_week_or_for_ever(log_in: Any) -> None:
    alert(escalations=[[1_777_900_331.0, ["boss"]]])
    olga = log_in("olga")
    page = olga.post(PATH, NEW | {"repeats": "weekly"}, follow=True).content.decode()
    assert "UTC, and every week until a person ends it." in page
    row = Mute.objects.get()
    page = text(olga)
    assert "It is repeated every week." in page
    assert "End weekly mute" in page
    assert "when the mute ends, but not before" in page
    page = olga.post("/alerts", {"end_period": row.pk}, follow=True).content.decode()
    assert "This period ended: A breaker is open, dependency payments-api." in page
    assert "The next begins on" in page
    assert "<b>Muted</b>" not in page
    page = olga.get(PATH).content.decode()
    assert "Planned" in page
    assert 'value="end_period"' not in page
    again = olga.post(PATH, {"act": "end_period", "mute": row.pk, "reason": NEW["reason"]})
    assert (again.status_code, "does not apply now" in again.content.decode()) == (422, True)
    page = olga.post(PATH, {"act": "end", "mute": row.pk, "reason": NEW["reason"]}, follow=True)
    assert (
        "Weekly mute ended: A breaker is open, dependency payments-api. It is not repeated."
        in page.content.decode()
    )


def test_the_buttons_of_a_muted_alert_fit_on_a_phone(sign_in: Any, log_in: Any) -> None:
    alert()
    log_in("olga").post(PATH, NEW | {"repeats": "weekly"})
    page = sign_in("olga")
    page.set_viewport_size({"width": 320, "height": 800})
    page.goto("/alerts")
    page.click("#rows .take summary")
    assert page.locator("button[name=end_period]").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_a_window_that_starts_later_says_when(log_in: Any) -> None:
    starts = timezone.now() + timedelta(days=2)
    typed = NEW | {"starts_at": f"{starts:%Y-%m-%dT%H:%M}"}
    page = log_in("olga").post(PATH, typed, follow=True).content.decode()
    assert f"Planned: A breaker is open, dependency payments-api, from {starts:%-d %b %H:%M} until" in page


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("rule", "no-such-rule", "Choose one of"),
        ("minutes", "soon", "Enter a whole number"),
        ("minutes", "99999", "from 1 to 10,080"),
        ("starts_at", "tomorrow", "Enter a date and a time"),
        ("reason", "", "Say why"),
        ("act", "", "Choose an action"),
    ],
)
def test_wrong_input_is_explained(log_in: Any, field: str, value: str, says: str) -> None:
    answer = log_in("olga").post(PATH, NEW | {field: value})
    assert answer.status_code == 422
    assert says in answer.content.decode()
    assert not Mute.objects.exists()


def test_a_viewer_reads_mutes_and_makes_none(log_in: Any) -> None:
    log_in("olga").post(PATH, NEW)
    vera = log_in("vera")
    page = vera.get(PATH).content.decode()
    assert "the vendor maintains its database" in page
    assert 'name="act"' not in page
    alert()
    page = vera.get(f"{PATH}?rule=open").content.decode()
    assert "18 of 30 calls failed." not in page, "a preview is for who may mute, as in the API"
    assert vera.post(PATH, NEW).status_code == 403
    assert vera.post("/alerts", {"end_mute": Mute.objects.get().pk}).status_code == 403
    assert Mute.objects.get().ended_at is None


def test_a_dependency_that_is_not_listed_stays_what_is_muted(log_in: Any) -> None:
    """It became "Any dependency", so that the mute hid more than its preview."""
    page = log_in("olga").get(f"{PATH}?rule=open&dependency=removed-api").content.decode()
    assert '<option value="removed-api" selected>' in page
    answer = log_in("olga").post(PATH, NEW | {"act": "preview", "rule": "no-such-rule"})
    assert answer.status_code == 422
    assert '<option value="no-such-rule" selected>' in answer.content.decode()


def test_a_rule_or_any_rule_is_chosen_on_purpose(log_in: Any, production: str) -> None:
    """The form began with "Any rule" and "Any dependency", ready for one tap."""
    olga = log_in("olga")
    page = olga.get(PATH).content.decode()
    assert '<option value="any" selected>' not in page
    choices = page.partition('id="f-rule"')[2].partition("</select>")[0]
    assert choices.partition("<option")[2].partition("</option>")[0].endswith("Choose a rule")
    for rule, says in (("", "Choose a rule. Any rule mutes"), ("any", "")):
        answer = olga.post(PATH, NEW | {"rule": rule})
        assert answer.status_code == (422 if says else 302)
        assert says in answer.content.decode()
    assert (Mute.objects.get().rule, Mute.objects.get().dependency) == ("", "payments-api")
    answer = olga.post(PATH, NEW | {"rule": "any", "dependency": ""})
    assert "a mute never matches every alert" in answer.content.decode()
    page = olga.get(f"{PATH}?dependency=payments-api").content.decode()
    assert '<option value="any" selected>' in page, "a link to every alert of a dependency"


def test_the_preview_of_wrong_values_says_so(log_in: Any) -> None:
    answer = log_in("olga").get(f"{PATH}?pod=w*")
    assert answer.status_code == 422
    assert "3 characters or more" in answer.content.decode()


@pytest.mark.parametrize(
    ("wrong", "control", "says"),
    [
        ({"dependency": "payment-api"}, "f-dep", "Did you mean payments-api?"),
        ({"dependency": "\u202eapi"}, "f-dep", "There is no dependency '\\u202eapi'."),
        ({"pod": "web-\u202e1"}, "f-pod", "Use the name of a pod"),
        ({"pod": "w" * 70}, "f-pod", "Use at most 65 characters."),
        ({"rule": "x" * 70}, "f-rule", "Use at most 64 characters."),
    ],
)
def test_a_name_that_cannot_match_is_refused(
    log_in: Any, production: str, wrong: dict[str, str], control: str, says: str
) -> None:
    answer = log_in("olga").post(PATH, NEW | wrong)
    page = unescape(answer.content.decode())
    assert answer.status_code == 422
    assert says in page.partition(f'id="{control}_error">')[2].partition("</p>")[0]
    assert not Mute.objects.exists()


def test_a_pod_that_does_not_run_is_muted_with_a_warning(log_in: Any, production: str) -> None:
    typed = NEW | {"rule": "silent", "dependency": "", "pod": "web-7"}
    olga = log_in("olga")
    page = olga.post(PATH, typed | {"act": "preview"}).content.decode()
    assert "No pod has the name web-7 now. Did you mean" in page
    assert "No pod has the name web-7 now." in olga.post(PATH, typed, follow=True).content.decode()
    assert Mute.objects.get().pod == "web-7"
    page = olga.post(PATH, typed | {"act": "preview", "pod": "web-*"}).content.decode()
    assert "No pod has the name" not in page


def test_every_problem_is_shown_at_once(log_in: Any) -> None:
    wrong = {"minutes": "abc", "pod": "w*", "reason": "", "dependency": ""}
    answer = log_in("olga").post(PATH, NEW | wrong)
    page = answer.content.decode()
    assert answer.status_code == 422
    for said in ("Enter a whole number", "3 characters or more before", "Say why"):
        assert said in page
    assert "novalidate" in page, "a browser would ask for the reason alone"


def test_a_mute_names_its_rule_in_a_sentence_and_is_undone(log_in: Any) -> None:
    alert()
    olga = log_in("olga")
    page = olga.post(PATH, NEW, follow=True).content.decode()
    assert "<b>A breaker is open</b>" in page
    assert "<code" not in page.partition("<tbody>")[2].partition("</tbody>")[0], (
        "the key is no word for people"
    )
    assert '<optgroup label="Dependencies and breakers">' in page
    assert '<option value="open">A breaker is open</option>' in page
    undo = undo_of(page)
    assert undo == {"act": "end", "mute": str(Mute.objects.get().pk), "reason": "Undo of a mute"}
    assert "undo" not in olga.get(PATH).content.decode(), "the notice is shown once"
    page = olga.post(PATH, undo, follow=True).content.decode()
    assert "Mute ended: A breaker is open, dependency payments-api." in page
    assert "No alert is muted now or later." in page
