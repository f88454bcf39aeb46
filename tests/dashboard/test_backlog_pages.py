"""The pages of backlogs, and what operators do with dead jobs, against a real Redis."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha1
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from controlplane.accounts.models import User
from controlplane.audit.models import Entry
from controlplane.backlogs import dead_jobs
from controlplane.backlogs.collect import measure_backlogs
from controlplane.policies.models import Dependency
from dashboard.live.backlogs import BacklogRow
from dashboard.live.runbook_values import value_of
from tests.agents.backlog_scripts import SECOND, BacklogStore
from tests.dashboard.shown import text_of
from tests.faults.chaos import network
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

PAYLOAD = b"card 4111 of Ada"
REASON = "The vendor is back, INC-17"


@pytest.fixture
def backlog(production: str, limits: redis.Redis) -> BacklogStore:
    """Ten places, three ready jobs that have waited for 100 s, one with a worker, and two dead ones."""
    store = BacklogStore(
        limits,
        environment=production,
        dependency="payments-api",
        now_us=time.time_ns() // 1000 - 100 * SECOND,
        max_jobs=10,
        lease_us=3600 * SECOND,
    )
    for number in range(6):
        assert store.submit(f"charge-{number}", payload=PAYLOAD, max_tries=1) == "accepted"
    for job in store.take(2).jobs:
        store.end(job["id"], job["fence"], "dead", cause="CardError")
    store.now_us += 99 * SECOND
    store.take(1)
    measure_backlogs(production)
    return store


def shown(client: Any, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, answer.content.decode()[:2000]
    return text_of(answer.content.decode())


def form(client: Any, act: str, **fields: Any) -> Any:
    """Load the page, and send its form."""
    html = client.get("/backlogs/payments-api").content.decode()
    until = html.partition('name="until" value="')[2].partition('"')[0]
    return client.post("/backlogs/payments-api", {"act": act, "until": until, "reason": REASON, **fields})


def test_the_list_shows_depth_wait_dead_jobs_and_workers(log_in: Any, backlog: BacklogStore) -> None:
    page = shown(log_in("vera"), "/backlogs")
    row = page[page.index("payments-api Workers have jobs") :]
    assert row.startswith("payments-api Workers have jobs 4 of 10 jobs 100 s 1 2 ")
    assert "asking" in row
    assert "search" not in row.partition("asking")[0]


def test_a_job_of_a_worker_that_died_is_not_with_a_worker(log_in: Any, backlog: BacklogStore) -> None:
    (owner,) = backlog.ordered("leases")
    backlog.client.zadd(backlog.keys["leases"], {owner: time.time_ns() // 1000 - SECOND})
    measure_backlogs(backlog.environment)
    expected = "3 ready, 0 delayed, 0 with workers, 1 of workers that died"
    assert expected in shown(log_in("vera"), "/backlogs/payments-api")
    assert expected in shown(log_in("vera"), "/breakers/payments-api")


def test_without_a_backlog_the_pages_say_how_to_begin(log_in: Any, production: str) -> None:
    client = log_in("vera")
    assert "No backlog was used yet." in shown(client, "/backlogs")
    page = shown(client, "/backlogs/search")
    assert "It was never used, or Redis lost it." in page
    assert "No job is dead." in page
    assert "Jobs and dead jobs" not in shown(client, "/breakers/search")
    assert client.get("/backlogs/unknown").status_code == 404


def test_one_backlog_lists_its_dead_jobs_without_their_payloads(log_in: Any, backlog: BacklogStore) -> None:
    html = log_in("olga").get("/backlogs/payments-api").content.decode()
    page = text_of(html)
    assert "4 of 10 3 ready, 0 delayed, 1 with workers" in page
    assert "6 submitted, 0 handed out again, 2 died" in page
    assert page.index("charge-1 CardError") > 0
    assert "1 of 1 5 16 B" in page
    assert "4111" not in html
    assert sha1(PAYLOAD, usedforsecurity=False).hexdigest()[:12] not in html, "it confirms a guess"
    breaker = shown(log_in("olga"), "/breakers/payments-api")
    assert "4 of 10 jobs , 40 % full: 3 ready, 0 delayed, 1 with workers." in breaker.replace(
        "jobs,", "jobs ,"
    )
    assert "2 dead jobs" in breaker


def test_a_runbook_has_the_age_of_the_page_in_the_same_words() -> None:
    """The page had "3 min" and the runbook "200 s"."""
    seen = SimpleNamespace(dependency="payments-api", waiting_s=200.0, figures=SimpleNamespace(ready=1))
    status: Any = SimpleNamespace(seen=seen)
    breaker, facts = SimpleNamespace(name="payments-api"), SimpleNamespace(backlogs=[seen])
    scene: Any = SimpleNamespace(breaker=breaker, live=SimpleNamespace(facts=facts))
    assert value_of("backlog_wait", scene) == BacklogRow(status=status).wait == "3 min"


def test_an_operator_returns_dead_jobs_and_the_audit_has_it(log_in: Any, backlog: BacklogStore) -> None:
    answer = form(log_in("olga"), "return")
    assert (answer.status_code, answer["Location"]) == (302, "/backlogs/payments-api")
    page = shown(log_in("olga"), "/backlogs/payments-api")
    assert "2 dead jobs were returned to the queue." in page
    assert "No job is dead." in page
    assert set(backlog.ordered("ready")) == {f"charge-{number}" for number in (0, 1, 3, 4, 5)}
    entry = Entry.objects.get(action="backlog.dead_returned")
    assert (entry.actor, entry.role, entry.reason) == ("olga", "operator", REASON)
    assert (entry.target_name, entry.after) == ("payments-api", {"jobs": 2, "left": 0})


def test_dead_jobs_that_cannot_be_read_are_not_called_returned(
    log_in: Any, backlog: BacklogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_jobs, "_AT_ONCE", 1)
    first, second = backlog.ordered("dead")
    backlog.client.hset(backlog.keys["meta"], first, b"garbage")
    form(log_in("olga"), "return")
    page = shown(log_in("olga"), "/backlogs/payments-api")
    assert "1 dead job was returned to the queue. 1 could not be read, and were removed." in page
    assert second in backlog.ordered("ready")
    assert Entry.objects.get(action="backlog.dead_returned").after == {"jobs": 1, "left": 0, "unreadable": 1}


def test_dead_jobs_that_do_not_fit_stay_dead(log_in: Any, backlog: BacklogStore) -> None:
    for number in range(5):
        backlog.submit(f"more-{number}")
    form(log_in("olga"), "return")
    assert "1 dead job was returned to the queue. The queue is full: 1 stay dead." in shown(
        log_in("olga"), "/backlogs/payments-api"
    )
    assert Entry.objects.get(action="backlog.dead_returned").after == {"jobs": 1, "left": 1, "full": True}


def test_deleting_needs_the_name_and_leaves_jobs_that_died_later(log_in: Any, backlog: BacklogStore) -> None:
    client = log_in("olga")
    answer = form(client, "delete", confirm="payments")
    assert answer.status_code == 422
    assert "Type payments-api: deleted jobs cannot be brought back." in text_of(answer.content.decode())
    assert len(backlog.ordered("dead")) == 2
    html = client.get("/backlogs/payments-api").content.decode()
    until = html.partition('name="until" value="')[2].partition('"')[0]
    backlog.now_us = int(until) + 1
    (job,) = backlog.take(1).jobs
    backlog.end(job["id"], job["fence"], "dead", cause="later")
    answer = client.post(
        "/backlogs/payments-api",
        {"act": "delete", "until": until, "reason": REASON, "confirm": "payments-api"},
    )
    assert answer.status_code == 302
    assert set(backlog.ordered("dead")) == {job["id"]}
    assert backlog.look("charge-0")[1][0].startswith(b"cancelled ")
    assert Entry.objects.get(action="backlog.dead_deleted").after == {"jobs": 2, "left": 1}


def test_a_reason_is_needed_and_viewers_may_not(log_in: Any, backlog: BacklogStore) -> None:
    answer = form(log_in("olga"), "return", reason="short")
    assert answer.status_code == 422
    assert "8 characters or more" in text_of(answer.content.decode())
    client = log_in("vera")
    assert "Return dead jobs" not in shown(client, "/backlogs/payments-api")
    assert form(client, "return").status_code == 403
    assert form(log_in("olga"), "explode").status_code == 422
    assert client.post("/backlogs/payments-api", {"act": "return", "until": "0"}).status_code in (403, 422)
    assert len(backlog.ordered("dead")) == 2
    assert not Entry.objects.filter(action__startswith="backlog.").exists()


def test_without_redis_the_last_figures_stay_and_nothing_changes(
    log_in: Any, backlog: BacklogStore, settings: Any
) -> None:
    client = log_in("olga")
    html = client.get("/backlogs/payments-api").content.decode()
    until = html.partition('name="until" value="')[2].partition('"')[0]
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    page = shown(client, "/backlogs/payments-api")
    assert "Redis does not answer. Reload the page later." in page
    assert "4 of 10" in page
    answer = client.post("/backlogs/payments-api", {"act": "return", "until": until, "reason": REASON})
    assert answer.status_code == 503
    assert "Redis does not answer. Nothing is known to have changed." in text_of(answer.content.decode())
    assert not Entry.objects.filter(action__startswith="backlog.").exists(), "surely nothing has happened"


def test_a_question_that_times_out_leaves_an_entry_that_says_so(
    log_in: Any, backlog: BacklogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = log_in("olga")
    run, calls = dead_jobs._run, []

    def slow(store: Any, environment: str, dependency: str, what: int, **given: Any) -> Any:
        if what == dead_jobs.RETURN:
            calls.append(given["most"])
            if len(calls) == 2:
                raise redis.TimeoutError("slow")
        return run(store, environment, dependency, what, **given)

    monkeypatch.setattr(dead_jobs, "_run", slow)
    monkeypatch.setattr(dead_jobs, "_AT_ONCE", 1)
    form(client, "return")
    assert calls == [1, 1]
    assert Entry.objects.get(action="backlog.dead_returned").after == {"jobs": 1, "left": 1, "unknown": True}
    assert "Redis did not answer for the others" in shown(client, "/backlogs/payments-api")


def test_a_connection_that_closes_after_the_script_ran_leaves_an_entry(
    log_in: Any, backlog: BacklogStore, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, run = log_in("olga"), dead_jobs._run
    with network() as net, ThreadPoolExecutor() as threads:
        server = urlsplit(settings.REDIS_URL)
        proxy = net.proxy((str(server.hostname), server.port or 0))
        settings.REDIS_URL = settings.REDIS_URL.replace(f":{server.port}/", f":{proxy.port}/")

        def close_when_it_ran() -> None:
            wait_until(lambda: not backlog.ordered("dead"))
            proxy.reset_all()

        def without_answer(*given: Any, **more: Any) -> Any:
            if given[3] == dead_jobs.RETURN:
                given[0].ping()  # it is connected
                proxy.hold_down = True
                closed.append(threads.submit(close_when_it_ran))
            return run(*given, **more)

        closed: list[Future[None]] = []
        monkeypatch.setattr(dead_jobs, "_run", without_answer)
        answer = form(client, "return")
        assert [one.result() for one in closed] == [None]
    assert answer.status_code == 503
    assert len(backlog.ordered("ready")) == 5
    entry = Entry.objects.get(action="backlog.dead_returned")
    assert (entry.actor, entry.after) == ("olga", {"jobs": 0, "left": 0, "unknown": True})


def test_a_role_for_the_owner_of_the_dependency_is_enough(log_in: Any, backlog: BacklogStore) -> None:
    Dependency.objects.filter(name="payments-api").update(owner="shop")
    vera = User.objects.filter(username="vera")
    vera.update(service_roles={"production": {"routes": "operator"}})
    assert form(log_in("vera"), "return").status_code == 403
    vera.update(service_roles={"production": {"shop": "operator"}})
    client = log_in("vera")
    assert "Return dead jobs to the queue" in shown(client, "/backlogs/payments-api")
    assert form(client, "return").status_code == 302
    entry = Entry.objects.get(action="backlog.dead_returned")
    assert (entry.actor, entry.role) == ("vera", "operator")
    assert "Dead jobs returned" in shown(log_in("ada"), "/audit")
