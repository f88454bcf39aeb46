"""Backlogs in the API, and ``fuseboard ctl backlog`` against a real web process."""

import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from controlplane.audit.models import Entry
from controlplane.backlogs.collect import measure_backlogs
from fuseboard.cli import main
from fuseboard.cli.ctl.exit_codes import Exit
from tests.agents.backlog_scripts import SECOND, BacklogStore
from tests.controlplane.calling import API, token_of
from tests.controlplane.web_process import web_running

pytestmark = pytest.mark.django_db(transaction=True)

WHY = ("--reason", "The vendor is back, INC-17")


@pytest.fixture(scope="module")
def web(django_db_setup: Any, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with web_running(tmp_path_factory.mktemp("web")) as processes:
        yield processes.by_name["web"].url


@pytest.fixture
def backlog(production: str, limits: redis.Redis) -> BacklogStore:
    """Four jobs that have waited for 100 s, and two dead ones."""
    now_us = time.time_ns() // 1000 - 100 * SECOND
    store = BacklogStore(
        limits, environment=production, dependency="openai", now_us=now_us, max_jobs=100, max_bytes=1000
    )
    for number in range(6):
        store.submit(f"job-{number}", payload=b"secret", max_tries=1)
    for job in store.take(2).jobs:
        store.end(job["id"], job["fence"], "dead", cause="CardError")
    measure_backlogs(production)
    return store


@pytest.fixture
def ctl(
    web: str, production: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Runs a command as an operator: exit code, output, errors."""
    monkeypatch.setenv("FUSEBOARD_API_URL", web)
    monkeypatch.setenv("FUSEBOARD_API_TOKEN", token_of("operator"))

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["ctl", "backlog", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_figures_of_backlogs_are_those_of_the_page(call: Any, backlog: BacklogStore) -> None:
    [found] = call("viewer", "GET", f"{API}/backlogs").json()
    assert found == call("viewer", "GET", f"{API}/backlogs/openai").json()
    assert (found["dependency"], found["state"]) == ("openai", "untaken")
    assert (found["ready"], found["dead"], found["bytes"], found["used"]) == (4, 2, 36, 0.04)
    assert 99 < found["wait_s"] < 200
    assert found["done_per_s"] is None, "one look has no rates"
    assert call("viewer", "GET", f"{API}/backlogs/ledger").status_code == 404


def test_dead_jobs_are_listed_returned_and_deleted(call: Any, backlog: BacklogStore) -> None:
    path = f"{API}/backlogs/openai/dead-jobs"
    answer = call("viewer", "GET", path)
    found = answer.json()
    assert found["number"] == 2
    assert {job["id"]: job["cause"] for job in found["items"]} == {"job-0": "CardError", "job-1": "CardError"}
    assert "secret" not in answer.content.decode()
    early = call("operator", "POST", f"{path}/delete", {"reason": WHY[1], "until": "2020-01-01T00:00:00Z"})
    assert early.json() == {"jobs": 0, "left": 2, "full": False, "unknown": False, "unreadable": 0}
    body = {"reason": WHY[1], "until": found["now"]}
    first, again = (
        call("operator", "POST", f"{path}/return", body, **{"Idempotency-Key": "return-them-once"})
        for _ in range(2)
    )
    assert (
        first.json()
        == again.json()
        == {"jobs": 2, "left": 0, "full": False, "unknown": False, "unreadable": 0}
    )
    assert again.headers["Idempotency-Replayed"] == "true"
    assert len(backlog.ordered("ready")) == 6
    assert Entry.objects.filter(action="backlog.dead_returned").count() == 1
    assert (
        call("operator", "POST", f"{API}/backlogs/ledger/dead-jobs/return", {"reason": WHY[1]}).status_code
        == 404
    )
    assert call("viewer", "GET", f"{API}/backlogs/ledger/dead-jobs").status_code == 404


def test_without_redis_figures_stay_and_dead_jobs_are_unavailable(
    call: Any, backlog: BacklogStore, settings: Any
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    assert call("viewer", "GET", f"{API}/backlogs").json()[0]["ready"] == 4
    for method, path, body in (
        ("GET", "dead-jobs", None),
        ("POST", "dead-jobs/return", {"reason": WHY[1]}),
        ("POST", "dead-jobs/delete", {"reason": WHY[1], "until": "2026-01-01T00:00:00Z"}),
    ):
        answer = call("operator", method, f"{API}/backlogs/openai/{path}", body)
        assert (answer.status_code, answer.json()["status"]) == (503, 503)
        assert "Redis does not answer" in answer.json()["detail"]


def test_ctl_lists_backlogs_and_dead_jobs(ctl: Any, backlog: BacklogStore) -> None:
    code, said, errors = ctl("list")
    assert code == Exit.DONE, errors
    assert said.splitlines()[1].split() == [
        *("openai", "untaken", "4", "of", "100", "4", "%", "2", "min", "0", "2", "2", "min", "ago"),
    ]
    assert '"dependency":"openai"' in ctl("list", "--json")[1]
    said = ctl("dead", "openai")[1]
    assert "job-0" in said
    assert said.endswith("2 of 2 dead jobs of openai\n")
    code, _, errors = ctl("dead", "ledger")
    assert code != Exit.DONE
    assert "ledger" in errors


def test_ctl_returns_dead_jobs_and_deletes_them_only_if_it_is_meant(
    ctl: Any, backlog: BacklogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("openai\n"))
    code, _, errors = ctl("delete", "openai", *WHY)
    assert (code, len(backlog.ordered("dead"))) == (Exit.REFUSED, 2)
    assert "Pass --yes" in errors
    code, said, _ = ctl("return", "openai", *WHY)
    assert (code, said) == (Exit.DONE, "2 dead jobs of openai returned to the queue; 0 left\n")
    (job,) = backlog.take(1).jobs
    backlog.end(job["id"], job["fence"], "dead")
    code, said, _ = ctl("delete", "openai", "--yes", *WHY)
    assert (code, said) == (Exit.DONE, "1 dead job of openai deleted; 0 left\n")
    assert Entry.objects.get(action="backlog.dead_deleted").after == {"jobs": 1, "left": 0}
