"""Stored protections of an earlier version, which had fewer settings (finding L8)."""

from typing import Any

from controlplane.policies.models import Dependency, Environment
from controlplane.policies.protection_advice import protection_advice
from fuseboard.contract.protection_fields import CALL_SETTINGS

API = "/api/v1/production"


def test_a_row_without_a_later_setting_is_answered_with_its_default(production: str, call: Any) -> None:
    """The first version that adds a setting would have answered 500 for every older row."""
    Dependency.objects.filter(name="openai").update(protection={"retry": {}, "sla_ms": 900})
    Environment.objects.update(protection={"shedding": {}})
    found = call("viewer", "GET", f"{API}/dependencies/openai").json()["protection"]
    defaults = {setting.name: setting.default for setting in CALL_SETTINGS if setting.part == "retry"}
    assert found["sla_ms"] == 900
    assert found["bulkhead"] is None
    assert {name: found["retry"][name] for name in defaults} == {
        name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()
    }
    pods = call("viewer", "GET", f"{API}/configuration").json()["protection"]
    assert pods["shedding"]["shed_at"] == 70
    assert protection_advice({"timeout_ms": 1_000, "kind": "llm", "protection.retry.budget_percent": 50})
