"""Accounts and budgets: from an edit, a file or the API to the policy of pods, and back."""

import re
from datetime import timedelta
from datetime import timezone as tz
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.editing.edits.budgets import lower_raised_budgets
from controlplane.editing.plans import PlanErrors, apply_plan, difference, export_plan, read_plan
from controlplane.errors import InvalidEdit, NotFound
from controlplane.policies.document import tenant_records
from controlplane.policies.models import Change, Environment
from controlplane.policies.state import read_state
from controlplane.spending.budget_fields import BUDGET_FIELDS
from controlplane.spending.budget_rows import Budget as Row
from fuseboard.contract.budgets import MAX_BUDGET, Account, Budget
from fuseboard.contract.words import Period
from tests.controlplane.calling import API, problem, send, token_of
from tests.controlplane.published import published_policy

WHY = {"reason": "As in the contract with the vendor"}
EDIT: dict[str, Any] = {"environment": "production", **WHY}


@pytest.fixture
def common(production: str, ada: Any) -> dict[str, Any]:
    edits.set_account(
        account="openai-main",
        pools=["openai"],
        hosts=["api.openai.com"],
        expected_version=0,
        actor=ada,
        **EDIT,
    )
    return {"actor": ada, "expected_version": None, **EDIT}


def head() -> int:
    return Environment.objects.get(pk="production").revision


def apply(text: str, ada: Any, **options: Any) -> int:
    return apply_plan(
        environment="production",
        plan=read_plan(text),
        expected_revision=None,
        actor=ada,
        reason=WHY["reason"],
        **options,
    )


def test_accounts_and_budgets_reach_pods(common: dict[str, Any]) -> None:
    month: dict[str, Any] = {"amount": 50_000_000_000, "period": "month", "time_zone": "Europe/Berlin"}
    edits.set_budget(budget="openai-month", account="openai-main", at_100="degrade", **month, **common)
    edits.set_budget(
        budget="openai-hour", dependency="openai", amount=5, period="hour", measure="tokens", **common
    )
    edits.set_budget(budget="pro-day", tier="pro", amount=MAX_BUDGET, period="day", **common)
    policy = published_policy()
    assert policy.accounts == (
        Account(
            name="openai-main",
            hosts=("api.openai.com",),
            pools=("openai",),
            budgets=(
                Budget(
                    name="openai-month",
                    amount=50_000_000_000,
                    period=Period.MONTH,
                    time_zone="Europe/Berlin",
                    at_100="degrade",
                ),
            ),
        ),
    )
    (gpt,) = [one for one in policy.dependencies if one.name == "openai"]
    assert gpt.budgets == (Budget(name="openai-hour", amount=5, period=Period.HOUR, measure="tokens"),)
    (pro,) = [one for one in policy.tiers if one.name == "pro"]
    assert pro.budgets == (Budget(name="pro-day", amount=MAX_BUDGET, period=Period.DAY),)
    entry = Entry.objects.get(action="budget.created", target_name="pro-day")
    assert entry.after["amount"] == MAX_BUDGET


def test_the_budget_of_a_tenant_reaches_the_pods_that_serve_it(common: dict[str, Any]) -> None:
    edits.set_budget(budget="pro-day", tier="pro", amount=1, period="day", **common)
    before = head()
    edits.set_budget(
        budget="acme-day", tenant="acme", amount=900_000, period="day", instead_of="pro-day", **common
    )
    expected = (Budget(name="pro-day", amount=900_000, period=Period.DAY),)
    for records in (tenant_records("production", since=before), tenant_records("production")):
        record = records["acme"]
        assert record is not None
        assert record.budgets == expected
    before = head()
    edits.remove_budget(budget="acme-day", **common)
    record = tenant_records("production", since=before)["acme"]
    assert record is not None
    assert record.budgets == ()


def test_a_raised_budget_ends_with_a_revision(
    common: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    budget: dict[str, Any] = {"budget": "openai-month", **common}
    edits.set_budget(account="openai-main", amount=100, period="month", **budget)
    edits.raise_budget(amount=150, minutes=60, **budget)
    assert published_policy().accounts[0].budgets[0].amount == 150
    assert not lower_raised_budgets()
    Row.objects.update(raised_until=timezone.now() - timedelta(seconds=1))
    before = head()
    assert lower_raised_budgets() == [("production", "openai-month")]
    assert not lower_raised_budgets()
    assert head() == before + 1
    assert published_policy().accounts[0].budgets[0].amount == 100
    assert Entry.objects.filter(action="budget.lowered").exists()


def test_a_raise_never_lowers_a_budget(common: dict[str, Any]) -> None:
    budget: dict[str, Any] = {"budget": "openai-month", **common}
    edits.set_budget(account="openai-main", amount=100, period="month", **budget)
    edits.raise_budget(amount=150, minutes=60, **budget)
    edits.set_budget(amount=200, **budget)
    assert published_policy().accounts[0].budgets[0].amount == 200


def test_a_file_says_the_end_of_a_raise_in_any_zone(common: dict[str, Any]) -> None:
    edits.set_budget(budget="openai-month", account="openai-main", amount=1, period="month", **common)
    ends = (timezone.now() + timedelta(days=1)).astimezone(tz(timedelta(hours=2))).isoformat()
    apply(f"budgets: {{openai-month: {{raised_to: 2, raised_until: '{ends}'}}}}", common["actor"])
    fields = Change.objects.filter(name="openai-month").latest("pk").after
    assert fields == read_state("production")["budget", "openai-month"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "account"),
        ({"account": "openai-main", "tier": "pro"}, "tier"),
        ({"account": "nobody"}, "account"),
        ({"dependency": "nobody"}, "dependency"),
        ({"tier": "nobody"}, "tier"),
        ({"tenant": "nobody"}, "tenant"),
        ({"tier": "pro", "measure": "calls"}, "measure"),
        ({"tier": "pro", "amount": MAX_BUDGET + 1}, "amount"),
        ({"tier": "pro", "amount": None}, "amount"),
        ({"tier": "pro", "period": "year"}, "period"),
        ({"tier": "pro", "period": None}, "period"),
        ({"tier": "pro", "time_zone": "Mars"}, "time_zone"),
        ({"tier": "pro", "at_100": "explode"}, "at_100"),
        ({"tier": "pro", "warn_percent": 101}, "warn_percent"),
        ({"tier": "pro", "instead_of": "other"}, "instead_of"),
        ({"tier": "pro", "raised_to": 9}, "raised_until"),
        ({"tier": "pro", "raised_to": 9, "raised_until": "2020-01-01T00:00:00+00:00"}, "raised_until"),
    ],
)
def test_a_wrong_value_is_reported_at_its_field(
    common: dict[str, Any], given: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidEdit) as error:
        edits.set_budget(budget="wrong", **{"amount": 5, "period": "day", **given}, **common)
    assert list(error.value.errors) == [field]
    assert not Row.objects.exists()


def test_a_file_with_many_accounts_and_budgets_is_written_with_a_few_statements(
    common: dict[str, Any],
) -> None:
    def write(many: int, amount: int) -> int:
        accounts = [f"  account-{number}: {{hosts: [api-{amount}.example]}}" for number in range(many)]
        budgets = [
            f"  budget-{number}: {{account: account-{number}, amount: {amount}, period: day}}"
            for number in range(many)
        ]
        text = "\n".join(["accounts:", *accounts, "budgets:", *budgets])
        with CaptureQueriesContext(connection) as captured:
            apply(text, common["actor"])
        return len(captured)

    few = write(2, 1)
    assert write(60, 2) <= few + 2
    assert write(60, 3) <= few + 2
    assert Row.objects.filter(amount=3, version=2).count() == 58
    assert Row.objects.filter(amount=3, version=3).count() == 2
    apply("accounts: {}\nbudgets: {}", common["actor"], prune=True)
    write(2, 4)
    # An entity that returns has no version that a client has read.
    assert all(version > 3 for version in Row.objects.values_list("version", flat=True))


def test_of_two_things_that_contradict_each_other_the_new_one_is_wrong(common: dict[str, Any]) -> None:
    """Whoever added account a-main read "openai is already a pool of account a-main"."""

    def said(make: Any, **given: Any) -> dict[str, list[str]]:
        with pytest.raises(InvalidEdit) as error:
            make(**given, **common)
        return error.value.errors

    of_acme: dict[str, Any] = {"tenant": "acme", "instead_of": "usual", "amount": 1, "period": "day"}
    edits.set_budget(budget="z-day", **of_acme, **common)
    edits.set_model(model="z-model", aliases=["large"], **common)
    assert said(edits.set_account, account="a-main", pools=["openai"]) == {
        "pools": ["openai is already a pool of account openai-main."]
    }
    assert said(edits.set_budget, budget="a-day", **of_acme) == {
        "instead_of": ["z-day is already that budget of acme."]
    }
    taken = ["'large' is already a name of model z-model."]
    assert said(edits.set_model, model="a-model", aliases=["large"]) == {"aliases": taken}
    assert said(edits.set_model, model="large") == {"model": taken}


def test_what_is_used_is_not_removed(common: dict[str, Any]) -> None:
    edits.set_budget(budget="openai-month", account="openai-main", amount=1, period="month", **common)
    with pytest.raises(InvalidEdit, match="openai-month"):
        edits.remove_account(account="openai-main", **common)
    with pytest.raises(InvalidEdit, match="pool of account openai-main"):
        edits.remove_entity(
            environment="production",
            kind="dependency",
            name="openai",
            reason=WHY["reason"],
            actor=common["actor"],
        )
    with pytest.raises(InvalidEdit, match="already a pool"):
        edits.set_account(account="second", pools=["openai"], **common)
    with pytest.raises(InvalidEdit, match="no dependency"):
        edits.set_account(account="second", pools=["nothing"], **common)
    edits.remove_budget(budget="openai-month", **common)
    edits.remove_account(account="openai-main", **common)
    with pytest.raises(NotFound):
        edits.remove_budget(budget="openai-month", **common)


def test_an_exported_file_changes_nothing_and_a_pruned_one_removes(common: dict[str, Any]) -> None:
    ada = common["actor"]
    edits.set_budget(budget="openai-month", account="openai-main", amount=1, period="month", **common)
    edits.set_budget(budget="acme-day", tenant="acme", amount=2, period="day", **common)
    state = read_state("production")
    text = "".join(export_plan("production"))
    apply(text, ada, prune=True)
    assert read_state("production") == state
    apply("budgets: {openai-month: {amount: 7, at_100: warn}}", ada)
    assert published_policy().accounts[0].budgets[0].amount == 7
    apply("budgets: {}\naccounts: {}", ada, prune=True)
    assert published_policy().accounts == ()
    assert not Row.objects.exists()
    apply(
        "accounts: {spare: {pools: [openai]}}\n"
        "budgets: {spare-day: {account: spare, amount: 3, period: day}}",
        ada,
    )
    assert published_policy().accounts[0].budgets[0].name == "spare-day"
    with pytest.raises(PlanErrors, match="another cost"):
        apply("budgets: {spare-day: {measure: calls}}", ada)


def test_the_tenants_of_all_budgets_of_a_file_are_read_at_once(
    common: dict[str, Any],
) -> None:
    names = [f"customer-{number}" for number in range(20)]
    apply(f"tenants: {{{', '.join(f'{name}: {{tier: free}}' for name in names)}}}", common["actor"])

    def asked(names: list[str]) -> int:
        """The queries that a preview asks."""
        budgets = ", ".join(f"{name}-day: {{tenant: {name}, amount: 5, period: day}}" for name in names)
        with CaptureQueriesContext(connection) as captured:
            assert difference("production", read_plan(f"budgets: {{{budgets}}}"))
        return len(captured)

    assert asked(names) == asked(names[:1])


def test_the_api_sets_raises_and_removes(common: dict[str, Any]) -> None:
    token, one = token_of("admin"), f"{API}/budgets/openai-month"
    body = {"account": "openai-main", "amount": 100, "period": "month", "expected_version": 0, **WHY}
    made = send(token, "PUT", one, body)
    assert made.status_code == 200, made.content
    read = send(token, "GET", one)
    assert (read.json()["amount"], read.json()["at_100"], read["ETag"]) == (100, "stop", '"1"')
    raised = {"amount": 150, "minutes": 60, "expected_version": 1, **WHY}
    assert send(token, "POST", f"{one}/raise", raised).status_code == 200
    (shown,) = send(token, "GET", f"{API}/budgets").json()
    assert (shown["raised_to"], shown["version"]) == (150, 2)
    problem(send(token, "POST", f"{one}/raise", raised), 409)
    assert send(token, "GET", f"{API}/accounts/openai-main").json()["pools"] == ["openai"]
    gone = send(token, "DELETE", f"{one}?expected_version=2&reason=The%20contract%20has%20ended")
    assert gone.status_code == 200
    assert send(token, "GET", f"{API}/budgets").json() == []
    assert send(token_of("viewer"), "PUT", one, body).status_code == 403


def test_the_page_about_budgets_has_every_field_and_its_file_can_be_applied(common: dict[str, Any]) -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "budgets.md").read_text()
    assert [field for field in BUDGET_FIELDS if f"`{field}`" not in text] == ["raised_to", "raised_until"]
    [sample] = re.findall(r"^```yaml\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    apply(sample, common["actor"])
    assert Row.objects.count() == 3
