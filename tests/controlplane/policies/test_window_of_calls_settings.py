"""A breaker's window of calls: from an edit to the document of pods."""

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from controlplane.policies.document import environment_of, policy_of
from controlplane.policies.models import BREAKER_PRESETS, Dependency
from controlplane.status.read_facts import read_facts
from tests.controlplane.calling import problem

API = "/api/v1/production"
WHY = {"reason": "It is called twice a minute"}
#: The dependency of every test is a language model.
PRESET = {"openai": BREAKER_PRESETS["llm"]["window_calls"]}


@pytest.fixture
def admin(call: Any) -> Any:
    """Calls that must succeed."""

    def admin(method: str, path: str, body: Any = None) -> Any:
        answer = call("admin", method, f"{API}/{path}", body)
        assert answer.status_code < 300, answer.content
        return answer

    return admin


def windows() -> dict[str, int]:
    """What the document says, by name of the dependency."""
    policy = policy_of(environment_of("production"))
    found = {each.name: each.breaker.window_calls for each in policy.dependencies}
    return {name: calls for name, calls in found.items() if calls}


def apply(admin: Any, document: str) -> None:
    revision = admin("GET", "configuration").json()["revision"]
    admin("POST", f"apply?expected_revision={revision}&reason=for+a+test", document)


def test_the_api_sets_a_window_of_calls(admin: Any, call: Any) -> None:
    admin("POST", "dependencies", {"name": "llm", "kind": "llm", "breaker": {"window_calls": 50}, **WHY})
    assert windows() == PRESET | {"llm": 50}
    assert admin("GET", "dependencies/llm").json()["breaker"]["window_calls"] == 50
    # What an edit leaves out stays.
    admin("PATCH", "dependencies/llm/breaker", {"breaker": {"window_s": 600}, "expected_version": 1, **WHY})
    assert windows() == PRESET | {"llm": 50}
    for breaker in ({"window_calls": -1}, {"window_calls": 9}, {"minimum_calls": 51}):
        body = {"breaker": breaker, "expected_version": 2, **WHY}
        refused = problem(call("admin", "PATCH", f"{API}/dependencies/llm/breaker", body), 422)
        [error] = refused["errors"]
        assert error["field"].endswith("window_calls")
    admin("PATCH", "dependencies/llm/breaker", {"breaker": {"window_calls": 0}, "expected_version": 2, **WHY})
    assert windows() == PRESET
    wrong = {"name": "two", "kind": "llm", "breaker": {"window_calls": 9}, **WHY}
    assert "minimum_calls" in str(problem(call("admin", "POST", f"{API}/dependencies", wrong), 422)["errors"])


def test_a_file_sets_it_and_the_export_and_a_rollback_know_it(admin: Any, call: Any) -> None:
    before = admin("GET", "configuration").json()["revision"]
    assert "window_calls: 100" not in admin("GET", "export").content.decode()
    apply(admin, "dependencies: {openai: {breaker: {window_calls: 100, window_s: 600}}}\n")
    assert windows() == {"openai": 100}
    exported = admin("GET", "export").content.decode()
    assert exported.count("window_calls: 100") == 1
    assert admin("POST", "plan", exported).json()["changes"] == 0

    off = "dependencies: {openai: {breaker: {window_calls: 0}}}\n"
    assert admin("POST", "plan", off).json()["changes"] == 1
    expected = admin("GET", "configuration").json()["revision"]
    admin("POST", "rollback", {"to_revision": before, "expected_revision": expected, **WHY})
    assert windows() == PRESET
    wrong = call("admin", "POST", f"{API}/plan", "dependencies: {openai: {breaker: {window_calls: 5}}}\n")
    assert "minimum_calls" in str(problem(wrong, 422)["errors"])


@pytest.mark.django_db
def test_postgres_refuses_a_window_that_never_opens(admin: Any) -> None:
    for calls in (-1, 9):
        with pytest.raises(IntegrityError), transaction.atomic():
            Dependency.objects.filter(name="openai").update(window_calls=calls)


def test_the_page_of_a_breaker_says_what_it_is_judged_by(admin: Any, production: str) -> None:
    apply(admin, "dependencies: {openai: {breaker: {window_calls: 100, window_s: 600}}}\n")
    dependencies = {each.name: each for each in read_facts(production).dependencies}
    openai = dependencies["openai"]
    assert (openai.window_calls, openai.window_s) == (100, 600)
