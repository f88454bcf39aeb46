"""Every exception of the control plane survives the way from a child of a Celery worker to its parent."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.approvals.models import ChangeRequest
from controlplane.editing.plans.plan import LineError, PlanErrors
from tests.portable import check_pool, check_portable, example_of, exceptions_of, import_all

AT = datetime(2026, 1, 1, tzinfo=UTC)
THEIRS = SimpleNamespace(conflicts=True, revision=7, fields={"limit": (4, 5)}, by="ada", at=AT)


def found_by(kind: type[BaseException]) -> Any:
    if kind is PlanErrors:
        return [LineError(1, "limit", "It is too small.")]
    return SimpleNamespace(theirs=[THEIRS], difference=SimpleNamespace(revision=8))


EXAMPLES: dict[str, Any] = {
    "address": "10.0.0.1",
    "at": AT,
    "by": "ada",
    "changed": {"limit": 5},
    "current_version": 3,
    "entry": 7,
    "environment": "production",
    "errors": {"limit": ["It is too small."]},
    "expected_version": 2,
    "detail": "The token has ended.",
    "field": "limit",
    "found": found_by,
    "headers": ((b"retry-after", b"5"),),
    "host": "example.com",
    "kind": "tenant",
    "message": "it failed",
    "name": "acme",
    "reason": "a release",
    "refused": True,
    "request": lambda _: ChangeRequest(pk=1),
    "retry_after_s": 2.5,
    "selector": "abc",
    "sequence": 4,
    "status": 403,
    "title": "Forbidden",
    "until": AT,
    "why": "It was revoked.",
}


@pytest.fixture(scope="module")
def errors() -> list[BaseException]:
    for package in ("controlplane", "dashboard"):
        import_all(package)
    classes = exceptions_of("controlplane") + exceptions_of("dashboard")
    # A model's own exceptions are attributes of the model, which Django makes portable.
    return [example_of(kind, EXAMPLES) for kind in classes if "." not in kind.__qualname__]


def test_every_exception_survives_pickling_and_copying(errors: list[BaseException]) -> None:
    assert len(errors) > 20
    for error in errors:
        check_portable(error)


def test_a_pool_of_processes_survives_every_exception(errors: list[BaseException]) -> None:
    check_pool(errors)
