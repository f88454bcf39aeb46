"""Comparing a file is expensive: one caller gets one at a time. Finding 11 of docs/security_review.md."""

import threading
from typing import Any

import pytest
from django.db import connections

from controlplane.api.routes.tenants import plans
from controlplane.policies.models import Environment
from tests.controlplane.calling import API, problem, send, token_of

PLAN = "tenants: {}\n"


LIMIT = {"limit": 9, "window_s": 60, "reason": "for a test"}
BULK = {"filter": {"tier": "pro"}, "change": {"tier": "free"}, "reason": "for a test"}
COMPARISONS = {
    "plan": PLAN,
    "what-if": PLAN,
    "apply?reason=for+a+test&expected_revision={revision}": PLAN,
    "bulk/preview": BULK,
    "templates/standard/preview": LIMIT,
}


@pytest.mark.parametrize("path", COMPARISONS)
def test_finding_11_a_caller_gets_one_comparison_at_a_time(
    production: str, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    body, path = COMPARISONS[path], path.format(revision=Environment.objects.get().revision)
    token, other = token_of("admin"), token_of("admin")
    began, go_on = threading.Event(), threading.Event()
    read_plan = plans.read_plan

    def slow(stream: Any) -> Any:
        began.set()
        assert go_on.wait(30)
        return read_plan(stream)

    answers = []

    def first() -> None:
        answers.append(send(token, "POST", f"{API}/plan", PLAN))
        connections.close_all()

    monkeypatch.setattr(plans, "read_plan", slow)
    thread = threading.Thread(target=first)
    thread.start()
    try:
        assert began.wait(30)
        refused = send(token, "POST", f"{API}/{path}", body)
        found = problem(refused, 429)
        assert refused["Retry-After"] == "5"
        assert found["type"] == "urn:fuseboard:problem:still-running"
        assert "one at a time" in found["detail"]
        monkeypatch.setattr(plans, "read_plan", read_plan)
        assert send(other, "POST", f"{API}/plan", PLAN).status_code == 200
    finally:
        go_on.set()
        thread.join(30)
    assert [answer.status_code for answer in answers] == [200]
    assert send(token, "POST", f"{API}/{path}", body).status_code == 200


def test_a_plan_that_fails_frees_its_place(production: str) -> None:
    token = token_of("admin")
    problem(send(token, "POST", f"{API}/plan", "tenants: ["), 422)
    assert send(token, "POST", f"{API}/plan", PLAN).status_code == 200


@pytest.mark.parametrize("path", [path for path in COMPARISONS if path != "what-if"])
@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_finding_11_a_comparison_needs_the_right_to_edit(production: str, role: str, path: str) -> None:
    problem(send(token_of(role), "POST", f"{API}/{path}", COMPARISONS[path]), 403)


def test_a_file_for_another_revision_is_refused_before_it_is_compared(
    production: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(*args: Any, **options: Any) -> None:
        raise AssertionError("it was compared")

    monkeypatch.setattr("controlplane.editing.plans.apply.difference", compare)
    path = f"{API}/apply?reason=for+a+test&expected_revision=1"
    problem(send(token_of("admin"), "POST", path, PLAN), 409)
