"""The page of a caller that is not registered, where a 404 was before."""

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.editing import edits
from controlplane.usage.models import RuleDemand
from tests.people import ADA

pytestmark = pytest.mark.django_db(transaction=True)


def shown(client, key):
    answer = client.get("/tenant", {"key": key})
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def test_an_unregistered_caller_has_a_page_with_the_default_tier_and_what_was_counted(log_in, production):
    hour = (timezone.now() - timedelta(hours=3)).replace(minute=0, second=0, microsecond=0)
    RuleDemand.objects.create(
        environment="production",
        tenant="stranger 7/a",
        rule="requests",
        grain_s=3600,
        at=hour,
        asked=4_310,
        refused=3_902,
        shadow=0,
    )
    page = shown(log_in("vera"), "stranger 7/a")
    assert "stranger 7/a is not registered" in page
    assert "have the default tier, anonymous" in page
    assert "4,310" in page
    assert "3,902" in page
    assert "Register a tenant" not in page, "a viewer cannot"
    assert "None were counted" not in page


def test_an_id_that_was_never_counted_says_so_and_an_admin_can_register_it(log_in, production):
    page = shown(log_in("ada"), "nobody")
    assert "None were counted in the last 7 days" in page
    assert "unknown" in page
    assert 'href="/edit/tenant?new&amp;name=nobody"' in page
    assert 'name="name" value="nobody"' in log_in("ada").get("/edit/tenant?new&name=nobody").content.decode()


def test_the_editor_of_an_unregistered_caller_leads_to_its_page(log_in, production):
    """The first page offers to edit each tenant that pods list."""
    answer = log_in("ada").get("/edit/tenant?key=stranger+7%2Fa", follow=True)
    assert "stranger 7/a is not registered" in answer.content.decode()
    assert log_in("ada").get("/edit/tenant", follow=True).status_code == 404


def test_a_removed_tenant_is_called_removed(log_in, production):
    edits.remove_tenant(
        environment="production",
        tenant="acme-retail",
        expected_version=None,
        reason="the customer left us",
        actor=ADA,
    )
    assert "acme-retail was removed" in shown(log_in("vera"), "acme-retail")


@pytest.mark.parametrize("key", ["", "abc\x85", "\x1b[31m"])
def test_what_cannot_be_an_id_is_still_404(log_in, production, key):
    assert log_in("vera").get("/tenant", {"key": key}).status_code == 404


def test_a_name_with_markup_is_escaped(log_in, production):
    page = shown(log_in("vera"), "<b>acme</b>")
    assert "<b>acme</b>" not in page
    assert "&lt;b&gt;acme" in page
