"""Every form of every page, sent empty and with wrong values: what is wrong, and what to do, is at fields.

``test_wrong_input.py`` has single mistakes, and ``test_typed_values.py`` what people type.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import resolve
from form_reading import Control, Form, Page, forms_to_fill, page_of
from test_browser_pages import PAGES

from controlplane.accounts.models import AgentToken
from controlplane.policies.models import Dependency

pytestmark = pytest.mark.django_db(transaction=True)

#: Pages that only a row or a parameter shows.
MORE = (
    *("/edit/tenant?new", "/edit/tenant?key=acme-retail", "/edit/tier?new", "/edit/environment"),
    *("/alerts/routes?edit=default", "/views?address=/audit", "/revisions/1?back", "/incidents/4711"),
    "/revisions/3/revert",
)
#: Url name and button of what needs no text, or takes any: nothing in it is wrong.
TAKE_ANY_TEXT = {("request", "approve"), ("incident", "note")}
#: The words of Django name no next step.
BARE = ("This field is required", "Enter a valid", "Select a valid")


@pytest.fixture
def every_form(something_everywhere: None, log_in: Any) -> Any:
    """An admin, and rows of everything that has a form."""
    from tests.dashboard.test_incident_pages import alert, incident

    two = incident("lag", number=4711)
    alert("queues", incident=two)
    row = Dependency.objects.get(name="payments-api")
    row.protection["bulkhead"]["share_idle"] = False
    row.save()
    ada = log_in("ada")
    made = {"act": "agent", "name": "ci", "environment": "production", "days": "30"}
    ada.post("/tokens", made | {"reason": "CHG-1 a new gateway"})
    assert AgentToken.objects.filter(name="ci").exists()
    return ada


def test_every_form_says_beside_its_fields_what_to_do(every_form: Any) -> None:
    plan = SimpleUploadedFile("a.yaml", b"tenants: {acme-retail: {tier: free}}")
    draft = every_form.post("/import", {"file": plan})["Location"]
    walked, faults = set(), []
    for address in (*PAGES.values(), *MORE, draft):
        answer = every_form.get(address)
        if answer.status_code != 200:
            continue  # the page needs the password again
        for form in forms_to_fill(answer.content.decode()):
            for button in form.buttons:
                to = form.address(address)
                name = resolve(urlsplit(to).path).url_name
                if button[1] == "preview" or (name, button[1]) in TAKE_ANY_TEXT:
                    continue
                walked.add(name)
                for wrong in (False, True):
                    typed = {one.name: _wrong(one) if wrong else "" for one in form.typed}
                    answer = every_form.post(to, form.sends(button, typed))
                    how = f"{to} {button[1]} {'wrong' if wrong else 'empty'}"
                    faults.extend(f"{how}: {fault}" for fault in _faults(answer, to, button, typed))
    assert not faults, "\n".join(faults)
    assert walked >= {
        *("alert_rules", "mutes", "receivers", "routes", "incident", "draft", "import"),
        *("account_change_password", "add_budget", "backlog", "breaker", "bulk", "clear_counter"),
        *("dependency", "new_dependency", "pod_protection", "share_idle_slots", "drills", "edit"),
        *("edit_freeze", "erase", "explain", "forget_pod", "lift_freeze", "make_template", "template"),
        *("new_runbook", "edit_runbook", "change_runbook", "open_selected", "people", "person"),
        *("request", "requests", "revert", "revision", "saved_views", "schedules", "tokens"),
    }


def test_enter_never_presses_a_button_that_cannot_be_undone(every_form: Any) -> None:
    """A browser presses the first button of a form, also where a reader means another one."""
    for address in (*PAGES.values(), *MORE):
        answer = every_form.get(address)
        for form in forms_to_fill(answer.content.decode()):
            if len(form.buttons) > 1 and any(one.tag == "input" for one in form.typed):
                assert form.buttons[0] not in form.risks, (address, form.buttons)


def _wrong(control: Control) -> str:
    if control.name == "reason":
        return "short"
    if control.kind == "datetime-local":
        return "2020-01-01T00:00"
    return "1,5" if control.attributes.get("inputmode") == "numeric" else "?! a/b"


def _faults(answer: Any, to: str, button: tuple[str, str], typed: dict[str, str]) -> Iterator[str]:
    if answer.status_code == 302:
        yield f"is saved, and leads to {answer['Location']}"
        return
    page = page_of(answer.content.decode())
    same = [one for one in page.forms if one.posts and one.address(to) == to and button in one.buttons]
    form = _refused(same)
    if form is None:
        yield f"no field has a message, status {answer.status_code}: {page.errors}"
        return
    yield from _unsaid(form, page)
    for one in page.wrong:
        if one not in {control.id or control.name for control in form.controls}:
            yield f"the message at {one} is in another form"
    if page.focused[0] not in (page.wrong[0], "act"):
        yield f"begins at {page.focused[0]}, and {page.wrong[0]} is wrong"
    for control in form.typed:
        sent = typed.get(control.name, "")
        if sent and control.kind not in ("password", "file") and control.value.strip() != sent:
            yield f"{control.name} is lost: {control.value!r}"


def _refused(forms: list[Form]) -> Form | None:
    """The form with a field that is wrong: a list has one form for each row."""
    return next((one for one in forms if any(control.is_wrong for control in one.controls)), None)


def _unsaid(form: Form, page: Page) -> Iterator[str]:
    for control in form.controls:
        said = page.said_at(control) if control.is_wrong else "fine"
        if not said or said.startswith(BARE):
            yield f"{control.id} is wrong, and its message is {said!r}"
