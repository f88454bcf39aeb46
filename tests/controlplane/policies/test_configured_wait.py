"""The wait of dependencies and tiers: from an edit to the document of pods."""

from typing import Any

import pytest

from controlplane.policies.document import environment_of, policy_of
from tests.controlplane.calling import problem

API = "/api/v1/production"
WHY = {"reason": "Calls wait for a slot"}


@pytest.fixture
def admin(call: Any) -> Any:
    """Calls that must succeed."""

    def admin(method: str, path: str, body: Any = None) -> Any:
        answer = call("admin", method, f"{API}/{path}", body)
        assert answer.status_code < 300, answer.content
        return answer

    return admin


def waits() -> dict[str, int]:
    """What the document says, by name of the tier or dependency."""
    policy = policy_of(environment_of("production"))
    return {thing.name: thing.wait_ms for thing in (*policy.tiers, *policy.dependencies) if thing.wait_ms}


def apply(admin: Any, document: str) -> None:
    revision = admin("GET", "configuration").json()["revision"]
    admin("POST", f"apply?expected_revision={revision}&reason=for+a+test", document)


def test_the_api_sets_it(admin: Any, call: Any) -> None:
    admin("POST", "dependencies", {"name": "llm", "kind": "llm", "wait_ms": 1500, **WHY})
    admin("POST", "tiers", {"name": "patient", "title": "Patient", "wait_ms": 250, **WHY})
    assert waits() == {"llm": 1500, "patient": 250}
    assert admin("GET", "dependencies/llm").json()["wait_ms"] == 1500
    assert admin("GET", "tiers/patient").json()["wait_ms"] == 250
    # What an edit leaves out stays.
    admin("PATCH", "dependencies/llm/breaker", {"breaker": {"probes": 4}, "expected_version": 1, **WHY})
    assert waits()["llm"] == 1500
    admin("PATCH", "dependencies/llm/breaker", {"wait_ms": 0, "expected_version": 2, **WHY})
    assert waits() == {"patient": 250}
    for path, body in (
        ("dependencies", {"name": "slow", "kind": "llm", "wait_ms": 60_001}),
        ("tiers", {"name": "slow", "wait_ms": -1}),
    ):
        fields = [
            error["field"]
            for error in problem(call("admin", "POST", f"{API}/{path}", body | WHY), 422)["errors"]
        ]
        assert fields == ["wait_ms"]


def test_a_file_sets_it_and_the_export_and_a_rollback_know_it(admin: Any, call: Any) -> None:
    before = admin("GET", "configuration").json()["revision"]
    assert "    wait_ms:" not in admin("GET", "export").content.decode()
    apply(admin, "tiers: {pro: {wait_ms: 2000}}\ndependencies: {openai: {wait_ms: 300}}\n")
    assert waits() == {"pro": 2000, "openai": 300}
    exported = admin("GET", "export").content.decode()
    assert exported.count("    wait_ms:") == 2
    assert admin("POST", "plan", exported).json()["changes"] == 0
    effective = {value["name"]: value for value in admin("GET", "tenants/acme/effective").json()}
    assert effective["wait_ms"]["value"] == 2000

    apply(admin, "tiers: {pro: {wait_ms: 0}}\n")
    assert waits() == {"openai": 300}
    assert admin("POST", "plan", "tiers: {pro: {wait_ms: 0}, free: {wait_ms: 0}}\n").json()["changes"] == 0

    expected = admin("GET", "configuration").json()["revision"]
    admin("POST", "rollback", {"to_revision": before, "expected_revision": expected, **WHY})
    assert waits() == {}
    wrong = call("admin", "POST", f"{API}/plan", "tiers: {pro: {wait_ms: 60001}}\n")
    assert "wait_ms" in str(problem(wrong, 422)["errors"])
