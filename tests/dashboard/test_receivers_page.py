"""The page of receivers: a secret is displayed once, and a path of a URL never."""

from typing import Any

import pytest

from controlplane.alerts.delivery.signing import secret_of
from controlplane.alerts.models import Delivery, Receiver
from controlplane.audit.models import Entry
from tests.dashboard.shown import undo_of

pytestmark = pytest.mark.django_db(transaction=True)

PATH = "/alerts/receivers"
NEW = {
    "act": "add",
    "name": "pager",
    "url": "https://hooks.example.com/services/T0/SECRET",
    "least_level": "2",
    "least_severity": "warning",
    "reason": "the team has a pager",
}


def test_an_admin_adds_tests_and_removes_a_receiver(log_in: Any) -> None:
    ada = log_in("ada")
    assert "No person is notified: add a receiver below." in ada.get(PATH).content.decode()
    page = ada.post(PATH, NEW).content.decode()
    row = Receiver.objects.get()
    assert secret_of(row.pk, 1).replace("+", "&#x2B;") in page.replace("+", "&#x2B;")
    assert 'data-copies="secret" hidden>Copy<span class="vh"> the secret</span>' in page
    page = ada.get(PATH).content.decode()
    assert "whsec_" not in page
    assert "https://hooks.example.com" in page
    assert "SECRET" not in page, "the path may contain a secret"
    assert "SECRET" not in str(Entry.objects.get(action="receiver.created").after)
    assert (
        "waits for the worker"
        in ada.post(PATH, {"act": "test", "name": "pager"}, follow=True).content.decode()
    )
    assert Delivery.objects.get().kind == "test"
    why = {"name": "pager", "reason": "for a test of it"}
    page = ada.post(PATH, {"act": "secret", **why}).content.decode()
    assert "The old secret signs too until" in page
    assert secret_of(row.pk, 2) != secret_of(row.pk, 1)
    ada.post(PATH, {"act": "remove", **why})
    assert not Receiver.objects.exists()
    assert not Delivery.objects.exists()


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("name", "My Pager", "Use 1 to 64 letters, digits"),
        ("url", "ftp://hooks.example.com", "begins with https://"),
        ("url", "https://user:secret@hooks.example.com", "Leave out user"),
        ("url", "https://hooks.example.com:0/", "another port"),
        ("url", "https://hooks.example.com/a b", "without blanks"),
        ("url", "https://[::1", "not a URL"),
        ("least_level", "9", "from 1 to 3"),
        ("least_severity", "bad", "Choose warning"),
        ("reason", "", "Say why"),
    ],
)
def test_wrong_input_is_explained_and_kept(log_in: Any, field: str, value: str, says: str) -> None:
    answer = log_in("ada").post(PATH, NEW | {field: value})
    assert answer.status_code == 422
    page = answer.content.decode()
    assert says in page
    assert not Receiver.objects.exists()
    if field != "name":
        assert 'value="pager"' in page


def test_a_name_is_taken_once(log_in: Any) -> None:
    ada = log_in("ada")
    ada.post(PATH, NEW)
    answer = ada.post(PATH, NEW)
    assert answer.status_code == 422
    assert Receiver.objects.count() == 1


@pytest.mark.parametrize("name", ["vera", "olga"])
def test_only_admins_see_receivers(log_in: Any, name: str) -> None:
    client = log_in(name)
    assert client.get(PATH).status_code == 403
    assert "Receivers" not in client.get("/alerts").content.decode()


def test_a_new_receiver_without_a_secret_is_undone(log_in: Any) -> None:
    ada = log_in("ada")
    typed = {"act": "add", "name": "chat", "url": "mailto://user:pass@example.com", "least_level": "2"}
    page = ada.post(PATH, typed | {"least_severity": "warning", "reason": "a chat for the team"}, follow=True)
    ada.post(PATH, undo_of(page.content.decode()))
    assert not Receiver.objects.exists()
