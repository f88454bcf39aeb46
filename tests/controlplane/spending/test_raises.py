"""A raise of a budget raises it, and only for its time, whatever restores an earlier configuration."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.approvals import rules
from controlplane.approvals.proposals import Proposed
from controlplane.change_requests import decide, rebase
from controlplane.editing import edits
from controlplane.editing.edits.budgets import lower_raised_budgets
from controlplane.editing.plans import PlanErrors, apply_plan, read_plan
from controlplane.errors import InvalidEdit
from controlplane.policies.document import environment_of, policy_of
from controlplane.policies.models import Environment
from controlplane.spending.budget_rows import Budget
from tests.controlplane.calling import API, problem, send, token_of
from tests.people import OLGA, OTTO, create_people

WHY: dict[str, Any] = {"environment": "production", "reason": "Until the incident is over"}


@pytest.fixture
def pro_day(production: str, ada: Any) -> dict[str, Any]:
    """A budget of 5 USD a day for each tenant of tier pro."""
    about: dict[str, Any] = {"budget": "pro-day", "actor": ada, "expected_version": None, **WHY}
    edits.set_budget(tier="pro", amount=5_000_000, period="day", **about)
    return about


@pytest.fixture
def an_hour_passes(monkeypatch: pytest.MonkeyPatch) -> Any:
    present = timezone.now

    def pass_it() -> None:
        monkeypatch.setattr(timezone, "now", lambda: present() + timedelta(hours=1))

    return pass_it


def published() -> int:
    [amount] = [
        budget.amount for tier in policy_of(environment_of("production")).tiers for budget in tier.budgets
    ]
    return amount


def head() -> int:
    return Environment.objects.get(pk="production").revision


def apply(text: str, ada: Any) -> int:
    return apply_plan(
        environment="production",
        plan=read_plan(text),
        expected_revision=None,
        actor=ada,
        reason="for a test",
    )


@pytest.mark.parametrize("amount", [5_000_000, 4_999_999, 4_000, 1])
def test_a_raise_to_no_more_than_the_amount_is_refused(
    pro_day: dict[str, Any], ada: Any, amount: int
) -> None:
    with pytest.raises(InvalidEdit, match=r"The budget is 5.00 USD already: raise it to more") as refused:
        edits.raise_budget(amount=amount, minutes=60, **pro_day)
    assert list(refused.value.errors) == ["amount"]
    ends = (timezone.now() + timedelta(hours=1)).isoformat()
    with pytest.raises(PlanErrors, match="raise it to more"):
        apply(f"budgets: {{pro-day: {{raised_to: {amount}, raised_until: '{ends}'}}}}", ada)
    body = {"amount": amount, "minutes": 60, "expected_version": 1, "reason": WHY["reason"]}
    said = problem(send(token_of("admin"), "POST", f"{API}/budgets/pro-day/raise", body), 422)
    assert "raise it to more" in str(said)
    assert Budget.objects.get().raised_to is None


def test_the_amount_of_a_raised_budget_may_pass_the_raise(pro_day: dict[str, Any]) -> None:
    edits.raise_budget(amount=6_000_000, minutes=60, **pro_day)
    edits.set_budget(amount=7_000_000, **pro_day)
    edits.set_budget(warn_percent=70, **pro_day)
    assert published() == 7_000_000


def test_a_rollback_does_not_bring_a_raise_back_that_is_over(
    pro_day: dict[str, Any], ada: Any, an_hour_passes: Any
) -> None:
    edits.set_budget(at_100="warn", **pro_day)
    edits.raise_budget(amount=9_000_000, minutes=30, **pro_day)
    raised = head()
    an_hour_passes()
    assert lower_raised_budgets() == [("production", "pro-day")]
    edits.set_budget(at_100="stop", **pro_day)
    edits.rollback(to_revision=raised, expected_revision=None, actor=ada, **WHY)
    row = Budget.objects.get()
    assert (row.at_100, row.raised_to, row.raised_until) == ("warn", None, None)
    assert published() == 5_000_000
    assert not lower_raised_budgets()


def test_a_rollback_keeps_a_raise_that_goes_on(pro_day: dict[str, Any], ada: Any) -> None:
    edits.raise_budget(amount=9_000_000, minutes=30, **pro_day)
    raised = head()
    edits.set_budget(raised_to=0, raised_until="", **pro_day)
    edits.rollback(to_revision=raised, expected_revision=None, actor=ada, **WHY)
    assert published() == 9_000_000


@pytest.mark.parametrize("removes", [False, True])
def test_a_revert_does_not_bring_a_raise_back_that_is_over(
    pro_day: dict[str, Any], ada: Any, an_hour_passes: Any, removes: bool
) -> None:
    edits.raise_budget(amount=9_000_000, minutes=30, **pro_day)
    if removes:
        number = edits.remove_budget(**pro_day)
    else:
        number = edits.set_budget(raised_to=0, raised_until="", at_100="warn", **pro_day)
    an_hour_passes()
    found = edits.revert(number=number, actor=ada, expected_revision=None, **WHY)
    row = Budget.objects.get()
    assert (row.at_100, row.raised_to, row.raised_until) == ("stop", None, None)
    assert [(unit.unit, unit.over) for unit in found.kept] == ([] if removes else [("raise", True)])


def test_a_revert_of_another_field_leaves_the_raise_alone(
    pro_day: dict[str, Any], ada: Any, an_hour_passes: Any
) -> None:
    edits.raise_budget(amount=9_000_000, minutes=30, **pro_day)
    number = edits.set_budget(at_100="warn", **pro_day)
    an_hour_passes()
    lower_raised_budgets()
    found = edits.revert(number=number, actor=ada, expected_revision=None, **WHY)
    assert ([unit.unit for unit in found.reverted], found.kept) == (["at_100"], [])
    assert published() == 5_000_000


def test_a_raise_that_is_approved_too_late_is_refused(pro_day: dict[str, Any], an_hour_passes: Any) -> None:
    create_people("ada", "olga", "otto")
    rules.set_approvals(needed=1, actor=pro_day["actor"], **WHY)
    with pytest.raises(Proposed) as proposed:
        edits.raise_budget(amount=9_000_000, minutes=30, **pro_day)
    row = proposed.value.request
    decide.approve(environment="production", request=row.pk, expected_version=row.version, actor=OLGA)
    an_hour_passes()
    with pytest.raises(InvalidEdit, match="The raise of budget pro-day is over by now"):
        decide.apply(environment="production", request=row.pk, actor=pro_day["actor"])
    with pytest.raises(InvalidEdit, match="It would change nothing"):
        rebase.rebase(environment="production", request=row.pk, actor=OTTO)
    assert published() == 5_000_000
