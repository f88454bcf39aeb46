"""The page of a tenant names its parent, what it spends there, and its members."""

from typing import Any

import pytest
from editor_steps import bulk_shown

from controlplane.editing import edits
from controlplane.policies.models import Tenant
from tests.people import ADA

pytestmark = pytest.mark.django_db(transaction=True)

COMMON: dict[str, Any] = {
    "environment": "production",
    "reason": "A team of theirs",
    "actor": ADA,
}


def test_parent_and_members_are_displayed_and_linked(log_in: Any) -> None:
    edits.create_tenant(tenant="acme-web", tier="free", parent="acme-retail", **COMMON)
    below = log_in("vera").get("/tenant?key=acme-web").content.decode()
    assert 'parent <a href="/tenant?key=acme-retail">acme-retail</a>' in below
    assert "Its requests also count against" in below
    above = log_in("vera").get("/tenant?key=acme-retail").content.decode()
    assert "1 child tenant" in above
    listed = log_in("vera").get("/tenants?parent=acme-retail").content.decode()
    assert "acme-web" in listed
    assert "1 found" in listed
    values = log_in("vera").get("/tenant/effective?key=acme-web").content.decode()
    assert "quotas.acme-retail/requests.limit" in values


def test_many_tenants_are_moved_from_the_page(log_in: Any) -> None:
    edits.create_tenant(tenant="noisy-sparrow", tier="free", **COMMON)
    typed = {"prefix": "noisy", "what": "move", "to_parent": "acme-retail", "reason": COMMON["reason"]}
    preview = log_in("ada").post("/tenants/bulk", typed | {"act": "preview"}).content.decode()
    assert "1 tenant would change" in preview
    client = log_in("ada")
    client.post("/tenants/bulk", typed | bulk_shown(client, typed) | {"act": "save"})
    assert Tenant.objects.get(key="noisy-sparrow").parent == "acme-retail"
    wrong = log_in("ada").post("/tenants/bulk", typed | {"act": "preview", "to_parent": "nobody"})
    assert "There is no tenant &#x27;nobody&#x27;" in wrong.content.decode()
