"""``fuseboard ctl model`` against a real web process, with the commands of docs/costs.md."""

import json
import shlex
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.ledger.models import UsageDay
from controlplane.spending.models import Budget, Model
from fuseboard.cli import main
from fuseboard.cli.ctl import models
from fuseboard.cli.ctl.exit_codes import Exit
from tests.controlplane.calling import token_of
from tests.controlplane.ledger.ledger_rows import days_ago, put_day, put_hour, today
from tests.controlplane.spending.test_costs_document import blocks
from tests.controlplane.web_process import web_running

WHY = ("--reason", "New price list of the vendor")


@pytest.fixture(scope="module")
def web(django_db_setup: Any, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with web_running(tmp_path_factory.mktemp("web")) as processes:
        yield processes.by_name["web"].url


@pytest.fixture
def ctl(
    web: str, production: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Runs a command as an admin: exit code, output, errors."""
    monkeypatch.setenv("FUSEBOARD_API_URL", web)
    monkeypatch.setenv("FUSEBOARD_API_TOKEN", token_of("admin"))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["ctl", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_the_commands_of_the_page_work(ctl: Any) -> None:
    [script] = blocks("sh")
    for line in script.splitlines():
        words = shlex.split(line)
        assert words[:2] == ["fuseboard", "ctl"]
        code, said, errors = ctl(*words[2:])
        assert code == Exit.DONE, errors
    assert "gpt-5.2" in said
    assert "2.50 USD / 10.00 USD" in said
    model = Model.objects.get()
    assert (model.pool, model.aliases, model.prices.get().output) == (
        "openai",
        ["assistant-large"],
        10_000_000,
    )


def test_a_model_is_shown_changed_and_removed(ctl: Any) -> None:
    assert ctl("model", "set", "large", "--alias", "big", "--alias", "huge", *WHY)[0] == Exit.DONE
    price = ("--input", "75000", "--output", "600000", "--cached", "7500", "--batch-percent", "50")
    assert ctl("model", "price", "large", "2099-01-01", *price, *WHY)[0] == Exit.DONE
    said = ctl("model", "show", "large")[1]
    assert "aliases: big, huge" in said
    assert "0.075 USD" in said
    assert "0.0075 USD" in said
    assert "no price" in ctl("model", "list")[1]
    assert ctl("model", "set", "large", "--alias", "", *WHY)[0] == Exit.DONE
    [found] = json.loads(ctl("model", "list", "--json")[1])
    assert (found["aliases"], found["prices"][0]["applies"], found["version"]) == ([], False, 3)
    assert json.loads(ctl("model", "show", "large", "--json")[1]) == found
    code, _, errors = ctl("model", "price", "large", "2020-01-01", "--input", "1", *WHY)
    assert code != Exit.DONE
    assert "A new price needs this" in errors
    assert ctl("model", "remove-price", "large", "2099-01-01", *WHY)[0] == Exit.DONE
    assert ctl("model", "remove", "large", *WHY)[0] == Exit.DONE
    assert not Model.objects.exists()


def test_past_calls_are_priced_again(ctl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ctl("model", "set", "gpt-5.2", *WHY)[0] == Exit.DONE
    price = ("--input", "75000", "--output", "1", "--batch-percent", "50")
    assert ctl("model", "price", "gpt-5.2", "2025-12-01", *price, *WHY)[0] == Exit.DONE
    put_day(today(), fresh=2_000_000, calls=1_200, micro_usd=150_000)
    # The budget is older than the audit: it has all calls of its period.
    Budget.objects.create(
        environment_id="production", name="day", dependency="openai", amount=9, period="day"
    )
    put_hour(datetime.now(UTC), fresh=2_000_000, micro_usd=150_000)
    command = ("model", "reprice", "gpt-5.2", str(today()), str(today()), "--input", "50000", "--output", "1")
    lines = [
        "At most 1,200 of them were in a batch. The ledger does not know which: all get this price.",
        "Budget day: 0.05 USD less is spent in its present period.",
    ]
    past = ("model", "reprice", "gpt-5.2", str(days_ago(2)), str(days_ago(2)), *command[-4:])
    assert "There is nothing to re-price in these days." in ctl(*past, *WHY, "--dry-run")[1]
    code, said, errors = ctl(*command, *WHY, "--dry-run")
    assert code == Exit.DONE, errors
    assert said.splitlines() == [
        "1,200 calls with 2,000,000 tokens would cost 0.10 USD instead of 0.15 USD.",
        *lines,
    ]
    assert UsageDay.objects.get().micro_usd == 150_000
    Budget.objects.create(
        environment_id="production", name="more", dependency="openai", amount=9, period="day"
    )
    with monkeypatch.context() as patch:
        patch.setattr(models, "SHOWN", 1)
        said = ctl(*command, *WHY, "--dry-run")[1]
    assert said.splitlines()[-1] == "1 other budgets: 0.05 USD less. --json prints all."
    Budget.objects.get(name="more").delete()
    planned = json.loads(ctl(*command, *WHY, "--dry-run", "--json")[1])
    said = ctl(*command, *WHY)[1]
    assert said.splitlines() == [
        "1,200 calls with 2,000,000 tokens cost 0.10 USD instead of 0.15 USD.",
        *lines,
    ]
    assert UsageDay.objects.get().micro_usd == 100_000
    again = json.loads(ctl(*command, *WHY, "--json")[1])
    assert (planned["before"], planned["after"]) == (150_000, 100_000)
    assert (again["before"], again["after"], again["budgets"]) == (100_000, 100_000, [])
