"""The page on which an admin erases a caller."""

from typing import Any

import pytest
from django.utils import timezone

from controlplane.audit.models import Entry
from controlplane.refusals.models import DigestKey, RefusalSample
from fuseboard.contract.refusal_samples import digest_of
from tests.dashboard.refused_samples import put_samples

pytestmark = pytest.mark.django_db(transaction=True)

KEY = b"k" * 32


@pytest.fixture
def sampled(production: str) -> None:
    DigestKey.objects.create(environment=production, on=timezone.now().date(), key=KEY)
    first, *_ = put_samples()
    RefusalSample.objects.filter(pk=first.pk).update(user=digest_of(KEY, "user", "anna"))


def test_an_admin_erases_a_login_and_reads_how_much(log_in: Any, sampled: None) -> None:
    client = log_in("ada")
    assert 'href="/refusals/erase"' in client.get("/refusals").content.decode()
    assert 'href="/refusals/erase"' in client.get("/hot-keys").content.decode()
    assert '<button class="btn risk big" type="submit">Erase caller</button>' in (
        client.get("/refusals/erase").content.decode()
    )
    form = {"kind": "user", "value": " anna ", "reason": "privacy request 12"}
    answer = client.post("/refusals/erase", form, follow=True)
    assert answer.redirect_chain == [("/refusals/erase", 302)]
    shown = answer.content.decode()
    assert "Erased 1 sample of refusals." in shown
    assert "anna" not in shown
    assert RefusalSample.objects.count() == 2
    assert Entry.objects.latest("id").action == "subject.erased"
    audit = client.get("/audit").content.decode()
    assert "Caller erased" in audit
    assert "a login" in audit


def test_what_is_wrong_is_beside_its_field_and_nothing_typed_is_lost(log_in: Any, sampled: None) -> None:
    client = log_in("ada")
    answer = client.post("/refusals/erase", {"kind": "ip", "value": "203.0.113.7", "reason": "now"})
    shown = answer.content.decode()
    assert answer.status_code == 422
    assert "Say why, in 8 characters or more" in shown
    assert 'value="203.0.113.7"' in shown
    answer = client.post("/refusals/erase", {"kind": "dog", "value": "", "reason": "privacy request 12"})
    shown = answer.content.decode()
    assert "Choose one of: ip, user, api_key, tenant." in shown
    assert "Use 1 to 200 characters" in shown
    assert RefusalSample.objects.count() == 3


def test_only_admins_see_it(log_in: Any, sampled: None) -> None:
    client = log_in("olga")
    assert "/refusals/erase" not in client.get("/refusals").content.decode()
    assert client.get("/refusals/erase").status_code == 403
