"""The tenants that the report of an incident names: those that its cause refused."""

import pytest

from controlplane.alerts.incidents.markdown import as_markdown
from controlplane.alerts.incidents.report import report_of
from controlplane.alerts.models import Alert, Incident
from controlplane.policies.models import Dependency, VendorLimit
from tests.controlplane.alerts.test_incidents_api import refused
from tests.dashboard.test_alerts_page import alert
from tests.dashboard.test_incident_pages import incident

pytestmark = pytest.mark.django_db(transaction=True)


def affected(found: Incident) -> list[str]:
    return [one.tenant for one in report_of(found).tenants]


def test_a_tenant_that_its_own_quota_refused_is_not_affected_by_a_dependency(production: str) -> None:
    """A report for customers named each tenant that was refused in this time, for whatever reason."""
    found = incident()
    refused("acme", 40)
    refused("globex", 400, reason="queue_timeout")
    refused("noisy-sparrow", 447, dependency="", reason="quota", rule="requests")
    refused("noisy-lark", 447, reason="quota", rule="calls")
    refused("initech", 447, reason="suspended", rule="suspended")
    refused("umbrella", 447, dependency="search")
    assert affected(found) == ["globex", "acme"]
    text = as_markdown(report_of(found))
    assert "refused by payments-api, and not by a quota of the tenant itself" in text
    assert "globex: about 400 refused" in text
    assert "noisy" not in text


def test_a_limit_of_the_dependency_counts_and_a_limit_of_the_tenant_does_not(production: str) -> None:
    found = incident("open:openai", subject_name="openai")
    dependency = Dependency.objects.get(environment=production, name="openai")
    VendorLimit.objects.create(
        dependency=dependency, name="slots", algorithm="concurrency", limit=5, window_s=60
    )
    refused("acme", 40, dependency="openai", reason="concurrency", rule="slots")
    refused("globex", 40, dependency="openai", reason="concurrency", rule="own-slots")
    assert affected(found) == ["acme"]


def test_an_explained_alert_about_a_tenant_does_not_make_it_affected(production: str) -> None:
    found = incident()
    cause = Alert.objects.get(incident=found)
    explained = {"subject_kind": "tenant", "subject_name": "noisy-sparrow", "cause": cause, "incident": found}
    alert("429", text="6 % of requests are refused, most of noisy-sparrow", **explained)
    refused("noisy-sparrow", 447, dependency="", reason="quota", rule="requests")
    refused("acme", 40)
    assert affected(found) == ["acme"]


def test_an_incident_of_redis_affects_those_that_pods_refused_without_it(production: str) -> None:
    found = incident("all-local", text="Every pod decides locally", subject_kind="servers", subject_name="")
    refused("acme", 40, dependency="", reason="quota", rule="requests", mode="local")
    refused("globex", 30, dependency="", reason="store_unavailable", rule="requests", mode="local")
    refused("noisy-sparrow", 447, dependency="", reason="quota", rule="requests")
    refused("umbrella", 447, mode="local")
    assert affected(found) == ["acme", "globex"]
    assert "without Redis" in report_of(found).counted


def test_an_incident_of_one_tenant_affects_it_and_one_of_all_tenants_affects_all(production: str) -> None:
    own = incident("runaway-tenant:acme", subject_kind="tenant", subject_name="acme")
    every = incident("429", subject_kind="tenants", subject_name="")
    for tenant in ("acme", "globex"):
        refused(tenant, 40, dependency="", reason="quota", rule="requests")
    assert affected(own) == ["acme"]
    assert "acme" not in report_of(own).counted, "people without an account read it"
    assert affected(every) == ["acme", "globex"]
