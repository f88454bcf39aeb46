"""``fuseboard ctl protection`` against a real web process."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from controlplane.policies.document import environment_of, policy_of
from fuseboard.cli import main
from fuseboard.cli.ctl.exit_codes import Exit
from fuseboard.contract.protection import Bulkhead, CallProtection, PodProtection
from fuseboard.contract.words import CallTier, WhenFull
from tests.controlplane.calling import token_of
from tests.controlplane.web_process import web_running

WHY = ("--reason", "Slow calls fill our pods")


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
        code = main(["ctl", "protection", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def protection() -> CallProtection | None:
    return policy_of(environment_of("production")).dependencies[0].protection


def pods() -> PodProtection | None:
    return policy_of(environment_of("production")).protection


def test_it_sets_and_shows_the_protection_of_a_dependency(ctl: Any) -> None:
    code, said, _ = ctl("set", "openai", "--off", "all", *WHY)
    assert (code, protection()) == (Exit.DONE, None)
    assert "openai is changed, as revision" in said
    assert ctl("show", "openai")[1] == "off\nwarning: " + ctl("show", "openai")[1].partition("warning: ")[2]
    options = ("--bulkhead-borrow", "yes", "--bulkhead-queues", "1,2,3", "--tier", "critical")
    code, _, errors = ctl("set", "openai", "--preset", "bulkhead=small", *options, *WHY)
    assert code == Exit.DONE, errors
    expected = CallProtection(
        tier=CallTier.CRITICAL,
        bulkhead=Bulkhead(
            max_concurrent=20,
            borrow=True,
            queues=(1, 2, 3),
            when_full=(WhenFull.QUEUE, WhenFull.QUEUE, WhenFull.DISCARD),
            share_idle=True,
        ),
    )
    assert protection() == expected
    said = ctl("show", "openai")[1]
    assert "bulkhead.max_concurrent" in said
    assert "1, 2, 3" in said
    code, _, _ = ctl("set", "openai", "--off", "bulkhead", *WHY)
    after = protection()
    assert after is not None
    assert after.bulkhead is None


def test_it_refuses_a_wrong_value_with_its_field(ctl: Any) -> None:
    before = protection()
    code, _, errors = ctl("set", "openai", "--bulkhead-shares", "50,40,30", *WHY)
    assert code != Exit.DONE
    assert "protection.bulkhead.shares" in errors
    code, _, errors = ctl("set", "openai", "--retry-attempts", "9", *WHY)
    assert code != Exit.DONE
    assert "attempts" in errors
    for wrong in (("--bulkhead-shares", "50,50"), ("--preset", "bulkhead"), ("--tier", "gold")):
        with pytest.raises(SystemExit):
            ctl("set", "openai", *wrong, *WHY)
    assert protection() == before


def test_it_sets_and_shows_the_protection_of_pods(ctl: Any) -> None:
    options = ("--shedding-queue-max", "200", "--route", "POST /v1/*=2000", "--observe", "shedding=2h")
    code, _, errors = ctl("set-pods", *options, *WHY)
    assert code == Exit.DONE, errors
    found = pods()
    assert found is not None
    assert found.shedding is not None
    assert found.shedding.queue_max == 200
    assert [(route.pattern, route.sla_ms) for route in found.routes] == [("POST /v1/*", 2000)]
    assert found.observe.shedding_until_us > 0
    said = ctl("show")[1]
    assert "POST /v1/*=2000" in said
    code, _, _ = ctl("set-pods", "--observe", "shedding=off", "--route", "", *WHY)
    found = pods()
    assert found is not None
    assert (found.observe.shedding_until_us, found.routes) == (0, ())
    assert ctl("set-pods", "--off", "all", *WHY)[0] == Exit.DONE
    assert pods() is None
    for wrong in (("--observe", "luck=2h"), ("--route", "POST /v1"), ("--observe", "shedding=long")):
        with pytest.raises(SystemExit):
            ctl("set-pods", *wrong, *WHY)
