"""The guide on the overview until the first pod reports."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from fleet_rows import put_server

from controlplane.fleet.models import Event, Server
from controlplane.policies.models import Dependency
from tests.dashboard.shown import text_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_it_leads_to_each_step_and_disappears_with_the_first_heartbeat(log_in: Any, production: str) -> None:
    Server.objects.all().delete()
    Event.objects.all().delete()
    client = log_in("ada")
    page = client.get("/").content.decode()
    assert "Connect the first pod" in page
    assert 'href="/tokens"' in page.partition('id="guide"')[2]
    name = Dependency.objects.order_by("name").values_list("name", flat=True)[0]
    assert f'agent.guard("{name}")' in text_of(page).replace("&quot;", '"')
    put_server()
    Event.objects.create(
        environment="production", server="web-1", kind="joined", detail="", at=datetime.now(UTC)
    )
    page = client.get("/").content.decode()
    assert re.search(r'<div id="guide">\s*</div>', page)


def test_a_viewer_reads_who_does_what(log_in: Any, production: str) -> None:
    Server.objects.all().delete()
    Event.objects.all().delete()
    Dependency.objects.all().delete()
    guide = text_of(log_in("vera").get("/").content.decode().partition('id="guide"')[2])
    assert "An admin adds a dependency" in guide
    assert "An admin creates an agent token" in guide
