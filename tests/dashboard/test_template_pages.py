"""Templates as people use them: created, applied, changed with a preview, and deleted."""

from typing import Any

import pytest

from controlplane.policies.models import Template, TenantQuota, TierQuota
from tests.dashboard.editor_steps import ACME, head, page

pytestmark = pytest.mark.django_db(transaction=True)

WHY = "Agreed with sales on 4 May"


def form(**changed: str) -> dict[str, str]:
    usual = {"limit": "900", "window_s": "60", "burst": "90", "algorithm": "token_bucket", "reason": WHY}
    return usual | {"failure_policy": "local_share", "shadow": "no", "title": "As most have it"} | changed


def test_a_template_is_created_applied_changed_and_deleted(log_in: Any) -> None:
    client = log_in("ada")
    said = page(client.post("/templates/new", form(name="no name", limit="x", reason="no")), 422)
    assert "Enter a whole number from 0 to 1,000,000,000." in said
    assert "Use 1 to 64 letters" in said
    assert client.post("/templates/new", form(name="standard")).status_code == 302
    assert "A template with this name exists." in page(
        client.post("/templates/new", form(name="standard")), 409
    )
    client.post("/templates/new", form(name="wide", limit="5000"))

    where = "/templates/of/standard"
    follow = {"act": "follow", "owner": "tier:pro", "limit": "requests", "reason": WHY}
    assert client.post(where, follow).status_code == 302
    assert TierQuota.objects.get(tier__name="pro").template == "standard"
    follow = {"limit.requests.template": "standard", "limit.requests.limit": "950", "reason": WHY}
    assert client.post(ACME, follow | {"base": head()}).status_code == 302
    assert TenantQuota.objects.get().own == ["limit"]
    tenant = page(client.get("/tenant?key=acme-retail"))
    assert 'template <a href="/templates/of/standard">standard</a>, except limit' in tenant
    assert "used by acme-retail" in page(client.get("/tenant/effective?key=acme-retail"))
    assert "2 limits of 1 tier and 1 tenant" in page(client.get("/templates"))

    reach = page(client.post(f"{where}/preview", form(limit="1000", reason="")))
    assert "Changes 1 limit of 1 tier" in reach
    assert "quotas.requests.limit" in reach
    version = str(Template.objects.get(name="standard").version)
    saved = form(act="save", limit="1000", version=version)
    answer = client.post(where, saved)
    assert answer["Location"].startswith(f"{where}?saved=")
    assert "Undo" in page(client.get(answer["Location"]))
    assert TierQuota.objects.get(tier__name="pro").limit == 1000
    assert "ada saved standard while you were editing" in page(
        client.post(where, saved | {"limit": "1"}), 409
    )
    nonsense = form(act="save", algorithm="sliding_window", version=str(int(version) + 1))
    assert "Only a token bucket has a burst" in page(client.post(where, nonsense), 422)

    version = str(Template.objects.get(name="standard").version)
    remove = {"act": "remove", "version": version, "reason": WHY}
    assert "followed by 2 limits of 1 tier and 1 tenant" in page(client.post(where, remove), 422)
    kept = page(client.post(where, remove | {"instead": "use:wide", "reason": "x"}), 422)
    assert '<option value="use:wide" selected>' in kept, "what was chosen is kept"
    assert client.post(where, remove | {"instead": "use:wide"}).status_code == 302
    assert TierQuota.objects.get(tier__name="pro").limit == 5000
    assert not Template.objects.filter(name="standard").exists()
    page(client.get(where), 404)
    # A viewer sees no form.
    assert "Save wide" not in page(log_in("vera").get("/templates/of/wide"))
