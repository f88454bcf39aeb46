"""Freezing edits on its page, and what the other pages say meanwhile."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.policies.models import Environment
from tests.dashboard.shown import text_of

pytestmark = pytest.mark.django_db(transaction=True)

WHY = "the week of Christmas"


def test_an_admin_freezes_edits_and_everybody_sees_it(log_in: Any, production: str) -> None:
    client = log_in("ada")
    until = (timezone.now() + timedelta(days=2)).strftime("%Y-%m-%dT%H:%M")
    assert "/edit-freeze" in client.get("/tiers").content.decode()
    wrong = client.post("/edit-freeze", {"until": "soon", "reason": WHY})
    assert (wrong.status_code, "Enter a date and a time" in wrong.content.decode()) == (422, True)
    assert client.post("/edit-freeze", {"until": until, "reason": WHY}).status_code == 302
    shown = text_of(log_in("vera").get("/").content.decode())
    assert "Edits are frozen until" in shown
    assert WHY in shown
    client = log_in("ada")
    base = Environment.objects.get().revision
    refused = client.post("/edit/tier?key=pro", {"base": str(base), "own.priority": "9", "reason": WHY})
    assert refused.status_code == 422
    assert "is frozen until" in refused.content.decode()
    assert client.post("/edit-freeze", {"act": "end", "reason": WHY}).status_code == 302
    assert "Edits are frozen" not in client.get("/").content.decode()
