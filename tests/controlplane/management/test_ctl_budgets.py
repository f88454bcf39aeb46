"""``fuseboard ctl account`` and ``budget`` against a real web process, with the commands of the page."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.spending.models import Account, Budget
from fuseboard.cli import main
from fuseboard.cli.ctl.exit_codes import Exit
from tests.controlplane.calling import token_of
from tests.controlplane.web_process import web_running

WHY = ("--reason", "As in the contract with the vendor")
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "budgets.md").read_text()


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
    [script] = re.findall(r"^```sh\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    for line in script.splitlines():
        words = shlex.split(line)
        assert words[:2] == ["fuseboard", "ctl"]
        code, said, errors = ctl(*words[2:])
        assert code == Exit.DONE, errors
    assert "account openai-main" in said
    assert "50,000.00 USD" in said
    assert "to 60,000.00 USD until" in said
    code, _, errors = ctl("budget", "raise", "openai-month", "50000000000", *WHY)
    assert code != Exit.DONE
    assert "The budget is 50,000.00 USD already: raise it to more" in errors
    assert ctl("budget", "set", "openai-month", "--amount", "4000", *WHY)[0] == Exit.DONE
    assert "0.004 USD" in ctl("budget", "list")[1]
    assert Account.objects.get().pools == ["openai"]
    assert "openai" in ctl("account", "list")[1]


def test_a_budget_is_changed_and_removed(ctl: Any) -> None:
    tokens = (
        "--tier",
        "pro",
        "--measure",
        "tokens",
        "--amount",
        "5000",
        "--period",
        "day",
        "--at-100",
        "warn",
    )
    assert ctl("budget", "set", "pro-day", *tokens, *WHY)[0] == Exit.DONE
    assert ctl("budget", "set", "pro-day", "--amount", "6000", *WHY)[0] == Exit.DONE
    budget = Budget.objects.get()
    assert (budget.amount, budget.measure, budget.at_100) == (6_000, "tokens", "warn")
    assert "6,000 tokens" in ctl("budget", "list")[1]
    [found] = json.loads(ctl("budget", "list", "--json")[1])
    assert (found["tier"], found["raised_to"]) == ("pro", None)
    assert ctl("account", "set", "spare", *WHY)[0] == Exit.DONE
    assert ctl("account", "remove", "spare", *WHY)[0] == Exit.DONE
    assert "enter one" in ctl("budget", "clear", "pro-day", *WHY)[2]
    assert "was empty already" in ctl("budget", "clear", "pro-day", "--tenant", "acme", *WHY)[1]
    assert ctl("budget", "remove", "pro-day", *WHY)[0] == Exit.DONE
    assert not Budget.objects.exists()
