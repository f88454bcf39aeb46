"""Models and prices: from an edit, a file or the API to the policy of pods, and back."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.editing.plans import (
    PlanErrors,
    apply_plan,
    copy_configuration,
    difference,
    export_plan,
    read_plan,
)
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.policies.models import Environment
from controlplane.policies.newer_settings import newer_settings, newly_used
from controlplane.policies.state import read_state
from controlplane.spending.fields import read_start, start_text
from controlplane.spending.models import Model, Price
from fuseboard.contract import models as contract
from tests.controlplane.calling import API, problem
from tests.controlplane.published import published_policy

WHY = {"reason": "New price list of the vendor"}
EDIT: dict[str, Any] = {"environment": "production", **WHY}
FIRST = {"input": 2_500_000, "cached": 250_000, "output": 10_000_000}
EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "models.yaml"


@pytest.fixture
def gpt(production: str, ada: Any) -> dict[str, Any]:
    """A model with one price, and the arguments of an edit of it."""
    edits.set_model(
        model="gpt-5.2",
        aliases=["large"],
        pool="openai",
        prices={"2025-12-01": FIRST},
        expected_version=0,
        actor=ada,
        **EDIT,
    )
    return {"model": "gpt-5.2", "expected_version": None, "actor": ada, **EDIT}


def published() -> dict[str, contract.Model]:
    """The models of the document of pods, as an agent reads it."""
    policy = published_policy()
    return {model.name: model for model in policy.models}


def head() -> int:
    return Environment.objects.get(pk="production").revision


def in_days(days: int) -> str:
    return start_text(timezone.now() + timedelta(days=days))


def apply(text: str, ada: Any, **options: Any) -> int:
    return apply_plan(
        environment="production",
        plan=read_plan(text),
        expected_revision=None,
        actor=ada,
        reason=WHY["reason"],
        **options,
    )


def test_a_model_and_its_price_reach_pods(gpt: dict[str, Any]) -> None:
    assert published() == {
        "gpt-5.2": contract.Model(
            name="gpt-5.2",
            aliases=("large",),
            pool="openai",
            prices=(
                contract.Price(
                    starts_at_s=int(datetime(2025, 12, 1, tzinfo=UTC).timestamp()),
                    input=2_500_000,
                    cached=250_000,
                    # Not given: that of the input.
                    written=2_500_000,
                    output=10_000_000,
                ),
            ),
        )
    }
    entry = Entry.objects.get(action="model.created")
    assert (entry.target_kind, entry.target_name) == ("model", "gpt-5.2")


def test_pods_get_the_two_newest_prices_of_which_one_applies(gpt: dict[str, Any]) -> None:
    edits.set_price(starts_at="2026-01-01", price=FIRST | {"output": 9_000_000}, **gpt)
    edits.set_price(starts_at=in_days(3), price=FIRST | {"output": 8_000_000}, **gpt)
    found = published()["gpt-5.2"]
    assert [price.output for price in found.prices] == [9_000_000, 8_000_000]
    now = timezone.now().timestamp()
    assert [contract.price_at(found, at).output for at in (now, now + 4 * 86_400)] == [9_000_000, 8_000_000]
    assert Price.objects.count() == 3
    assert Model.objects.get().version == 3


def test_only_one_price_can_begin_in_the_future(gpt: dict[str, Any]) -> None:
    edits.set_price(starts_at=in_days(3), price=FIRST, **gpt)
    with pytest.raises(InvalidEdit, match="Only one price can begin in the future"):
        edits.set_price(starts_at=in_days(5), price=FIRST, **gpt)


def test_a_price_that_has_begun_stays_and_one_to_come_can_change_and_go(gpt: dict[str, Any]) -> None:
    for change in (
        lambda: edits.set_price(starts_at="2025-12-01", price={"input": 1}, **gpt),
        lambda: edits.remove_price(starts_at="2025-12-01T00:00Z", **gpt),
    ):
        with pytest.raises(InvalidEdit, match="This price has begun") as refused:
            change()
        assert list(refused.value.errors) == ["starts_at"]
    to_come = in_days(3)
    edits.set_price(starts_at=to_come, price=FIRST, **gpt)
    edits.set_price(starts_at=to_come, price={"input": 7}, **gpt)
    assert (published()["gpt-5.2"].prices[1].input, published()["gpt-5.2"].prices[1].cached) == (7, 250_000)
    edits.remove_price(starts_at=to_come, **gpt)
    assert len(published()["gpt-5.2"].prices) == 1
    with pytest.raises(NotFound):
        edits.remove_price(starts_at=to_come, **gpt)


@pytest.mark.parametrize(
    ("price", "field"),
    [
        ({"input": 1}, "output"),
        ({"input": -1, "output": 1}, "input"),
        ({"input": 1, "output": "1"}, "output"),
        ({"input": 1, "output": 1, "batch_percent": 0}, "batch_percent"),
        ({"input": 1, "output": 1, "long_above": 10, "long_output": 1}, "long_input"),
        ({"input": 1, "output": 1, "long_input": 10}, "long_input"),
        ({"input": 1, "output": 1, "per_call": 10}, "per_call"),
    ],
)
def test_a_wrong_price_names_its_field(gpt: dict[str, Any], price: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidEdit) as refused:
        edits.set_price(starts_at="2026-02-01", price=price, **gpt)
    assert list(refused.value.errors) == [field]


@pytest.mark.parametrize("starts_at", ["", "soon", "2026-13-01", "2026-01-01T10:00:30Z", "1999-01-01"])
def test_a_wrong_start_is_refused(gpt: dict[str, Any], starts_at: str) -> None:
    with pytest.raises(InvalidEdit) as refused:
        edits.set_price(starts_at=starts_at, price=FIRST, **gpt)
    assert list(refused.value.errors) == ["starts_at"]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("2026-01-31", "2026-01-31"),
        ("2026-01-31T00:00Z", "2026-01-31"),
        ("2026-01-31T01:00+01:00", "2026-01-31"),
        ("2026-01-31 18:30", "2026-01-31T18:30Z"),
        ("2026-01-31T18:30:00+02:00", "2026-01-31T16:30Z"),
    ],
)
def test_a_start_has_one_text(text: str, canonical: str) -> None:
    assert start_text(read_start(text)) == canonical
    assert start_text(read_start(canonical)) == canonical


@pytest.mark.parametrize("aliases", [["large"], ["gpt-5.2"], ["new"]])
def test_no_name_belongs_to_two_models(gpt: dict[str, Any], ada: Any, aliases: list[str]) -> None:
    with pytest.raises(InvalidEdit) as refused:
        edits.set_model(model="new", aliases=aliases, expected_version=0, actor=ada, **EDIT)
    assert list(refused.value.errors) == ["aliases"]


def test_a_pool_is_a_dependency_and_cannot_be_removed_while_a_model_has_it(
    gpt: dict[str, Any], ada: Any
) -> None:
    with pytest.raises(InvalidEdit, match="There is no dependency 'none'"):
        edits.set_model(pool="none", **gpt)
    remove = {"kind": "dependency", "name": "openai", "actor": ada, **EDIT}
    with pytest.raises(InvalidEdit, match=r"pool of model gpt-5\.2"):
        edits.remove_entity(**remove)
    edits.set_model(pool="", **gpt)
    edits.remove_entity(**remove)
    assert published()["gpt-5.2"].pool == ""


def test_a_conflict_names_the_other_person(gpt: dict[str, Any], ada: Any) -> None:
    edits.set_model(aliases=["other"], **gpt)
    with pytest.raises(EditConflict) as conflict:
        edits.set_model(aliases=["mine"], **gpt | {"expected_version": 1})
    assert conflict.value.by == ada.name
    with pytest.raises(InvalidEdit, match="already exists"):
        edits.set_model(**gpt | {"expected_version": 0})
    with pytest.raises(NotFound):
        edits.set_model(**gpt | {"model": "none", "expected_version": 1})


def test_an_export_applied_again_changes_nothing(gpt: dict[str, Any]) -> None:
    long = {"long_above": 200_000, "long_input": 0, "long_output": 5, "batch_percent": 50}
    edits.set_price(starts_at="2026-01-01T18:30Z", price=FIRST | long, **gpt)
    exported = "".join(export_plan("production"))
    assert '"2026-01-01T18:30Z": {input: 2500000' in exported
    assert not difference("production", read_plan(exported)).changes
    assert not difference("production", read_plan(exported), prune=True).changes


def test_a_revert_and_a_rollback_restore_models_and_prices(gpt: dict[str, Any], ada: Any) -> None:
    first = head()
    added = edits.set_price(starts_at="2026-01-01", price={"input": 1, "output": 1}, **gpt)
    edits.set_model(aliases=[], **gpt)
    edits.revert(environment="production", number=added, expected_revision=None, actor=ada, **WHY)
    # The edit since stays.
    assert published()["gpt-5.2"].aliases == ()
    assert len(published()["gpt-5.2"].prices) == 1
    gone = edits.remove_model(**gpt)
    assert published() == {}
    edits.revert(environment="production", number=gone, expected_revision=None, actor=ada, **WHY)
    assert Price.objects.get().output == 10_000_000
    edits.rollback(
        environment="production", to_revision=first, expected_revision=None, actor=ada, reason=WHY["reason"]
    )
    assert published()["gpt-5.2"].aliases == ("large",)
    edits.rollback(
        environment="production",
        to_revision=first - 1,
        expected_revision=None,
        actor=ada,
        reason="for a test",
    )
    assert published() == {}


def test_a_file_prunes_models_and_replaces_their_history(gpt: dict[str, Any], ada: Any) -> None:
    plan = 'models: {other: {}, gpt-5.2: {prices: {"2025-12-01": {input: 1, output: 2}}}}'
    with pytest.raises(PlanErrors, match="This price has begun"):
        apply(plan, ada)
    apply(plan, ada, prune=True)
    found = published()
    assert (found["gpt-5.2"].prices[0].input, found["other"].prices) == (1, ())
    apply("models: {}", ada, prune=True)
    assert published() == {}


def test_a_file_with_many_models_and_prices_is_written_with_a_few_statements(gpt: dict[str, Any]) -> None:
    def write(many: int, cost: int, *starts: str) -> int:
        prices = ", ".join(f'"{start}": {{input: {cost}, output: {cost}}}' for start in starts)
        models = [f"  m{number}: {{pool: openai, prices: {{{prices}}}}}" for number in range(many)]
        with CaptureQueriesContext(connection) as captured:
            apply("\n".join(["models:", *models]), gpt["actor"], prune=True)
        return len(captured)

    few = write(1, 1, "2025-01-01", "2025-02-01", "2025-03-01")
    kept = Price.objects.get(model__name="m0", starts_at=datetime(2025, 2, 1, tzinfo=UTC)).pk
    more = write(60, 2, "2025-01-01", "2025-02-01", "2025-03-01")
    assert more <= few + 2
    assert write(60, 3, "2025-02-01", "2025-04-01") <= few + 2
    assert Price.objects.filter(model__version=2, input=3).count() == 2 * 59
    # A price that stays keeps its row.
    assert Price.objects.get(pk=kept).input == 3
    write(1, 4)
    assert (Price.objects.count(), Model.objects.get().version) == (0, 4)
    write(2, 5)
    # An entity that returns has no version that a client has read.
    assert all(version > 4 for version in Model.objects.exclude(name="m0").values_list("version", flat=True))


def test_an_environment_made_like_another_has_its_models(gpt: dict[str, Any], ada: Any) -> None:
    edits.create_environment(environment="staging", reason="for a test", actor=ada)
    edits.set_model(model="old", environment="staging", reason="for a test", expected_version=None, actor=ada)
    copy_configuration(source="production", environment="staging", reason="for a test", actor=ada)
    assert read_state("staging")["model", "gpt-5.2"] == read_state("production")["model", "gpt-5.2"]
    assert ("model", "old") not in read_state("staging")


def test_the_example_has_the_four_prices_of_december_2025(production: str, ada: Any) -> None:
    apply(EXAMPLE.read_text(), ada)
    prices = {name: (model.prices[0].input, model.prices[0].output) for name, model in published().items()}
    assert prices == {
        "claude-sonnet-4-6": (3_000_000, 15_000_000),
        "claude-haiku-4-5": (800_000, 4_000_000),
        "gpt-5.2": (2_500_000, 10_000_000),
        "gpt-5.2-mini": (150_000, 600_000),
    }
    december = datetime(2025, 12, 1, tzinfo=UTC).timestamp()
    assert {model.prices[0].starts_at_s for model in published().values()} == {december}


def test_older_agents_do_not_apply_models(gpt: dict[str, Any], ada: Any) -> None:
    assert "models and prices" in newer_settings("production")
    plan = read_plan("models: {new: {}, gpt-5.2: {aliases: []}}")
    assert newly_used(difference("production", plan).changes) == ["models and prices"]
    plan = read_plan("models: {gpt-5.2: {aliases: []}}")
    assert newly_used(difference("production", plan).changes) == []


def test_at_most_500_models_are_published(production: str, ada: Any) -> None:
    names = [f"m{number}" for number in range(contract.MAX_MODELS + 1)]
    with pytest.raises(PlanErrors, match="at most 500 models"):
        apply(f"models: {{{', '.join(f'{name}: {{}}' for name in names)}}}", ada)
    apply(f"models: {{{', '.join(f'{name}: {{}}' for name in names[1:])}}}", ada)
    assert len(published()) == contract.MAX_MODELS


@pytest.mark.parametrize(
    ("plan", "where"),
    [
        ("models: {m: {pool: 4}}", "models.m.pool"),
        ("models: {m: {aliases: large}}", "models.m.aliases"),
        ("models: {m: {aliases: [a, a]}}", "models.m.aliases"),
        ("models: {m: {prices: {soon: {input: 1, output: 1}}}}", "models.m.prices.soon.starts_at"),
        (
            "models: {m: {prices: {'2026-01-01': {input: 1.5, output: 1}}}}",
            "models.m.prices.2026-01-01.input",
        ),
        ("models: {m: {prices: {'2026-01-01': {}}}}", "models.m.prices.2026-01-01"),
        ("models: {m: {prices: 4}}", "models.m.prices"),
        ("models: {m: {owner: me}}", "models.m.owner"),
        ("models: {'a b': {}}", "models.a b"),
    ],
)
def test_a_wrong_file_names_the_place(production: str, plan: str, where: str) -> None:
    with pytest.raises(PlanErrors) as refused:
        read_plan(plan)
    assert [error.where for error in refused.value.found] == [where]


def test_a_program_creates_changes_and_removes_a_model(call: Any) -> None:
    def admin(method: str, path: str, body: Any = None, **headers: str) -> Any:
        answer = call("admin", method, f"{API}/{path}", body, **headers)
        assert answer.status_code == 200, answer.content
        return answer

    new = {"aliases": ["large"], "pool": "openai", **WHY}
    problem(call("admin", "PUT", f"{API}/models/gpt-5.2", new), 428)
    admin("PUT", "models/gpt-5.2", new | {"expected_version": 0, "prices": {"2025-12-01": FIRST}})
    read = admin("GET", "models/gpt-5.2")
    assert admin("GET", "models").json() == [read.json()]
    [price] = read.json()["prices"]
    assert price["applies"] is True
    assert (price["starts_at"], price["input"], price["written"]) == ("2025-12-01", 2_500_000, 2_500_000)
    to_come = in_days(9)
    admin("PUT", f"models/gpt-5.2/prices/{to_come}", FIRST | WHY, **{"If-Match": read["ETag"]})
    said = problem(call("admin", "PUT", f"{API}/models/gpt-5.2", new | {"expected_version": 1}), 409)
    assert said["changed"]
    newest = admin("GET", "models/gpt-5.2").json()
    assert [each["applies"] for each in newest["prices"]] == [False, True]
    wrong = problem(
        call(
            "admin",
            "PUT",
            f"{API}/models/gpt-5.2/prices/2025-12-01",
            {"input": 1, "expected_version": 2, **WHY},
        ),
        422,
    )
    assert "This price has begun" in str(wrong)
    gone = "reason=for+a+test&expected_version"
    admin("DELETE", f"models/gpt-5.2/prices/{to_come}?{gone}=2")
    admin("PUT", "models/gpt-5.2", {"pool": "", "expected_version": 3, **WHY})
    admin("DELETE", f"models/gpt-5.2?{gone}=4")
    assert admin("GET", "models").json() == []
    problem(call("admin", "GET", f"{API}/models/gpt-5.2"), 404)
