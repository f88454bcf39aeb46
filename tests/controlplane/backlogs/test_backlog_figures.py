"""What the control plane reads of backlogs in Redis, and what it concludes."""

import time
from dataclasses import replace
from typing import Any

import pytest
import redis

from controlplane.backlogs.collect import measure_backlogs
from controlplane.backlogs.figures import RATES_OVER_S, from_document, to_document
from controlplane.backlogs.models import Backlog
from controlplane.backlogs.tasks import measure
from controlplane.editing import edits
from controlplane.policies.models import Dependency, VendorLimit
from controlplane.status.read_facts import read_backlogs, read_facts
from controlplane.status.status import status_of
from fuseboard.contract.backlog_figures import MAX_JOBS, BacklogFigures
from tests.agents.backlog_scripts import SECOND, BacklogStore
from tests.people import SEED

FIGURES = BacklogFigures(*[0] * len(BacklogFigures.__struct_fields__))


def store_of(limits: redis.Redis, *, dependency: str = "openai", **options: Any) -> BacklogStore:
    """In real time, with a queue of 10 jobs."""
    options = {"max_jobs": 10, "max_bytes": 1000, **options}
    now = time.time_ns() // 1000
    return BacklogStore(limits, environment="production", dependency=dependency, now_us=now, **options)


@pytest.mark.django_db(transaction=True)
def test_every_figure_of_a_backlog_is_read(production: str, limits: redis.Redis) -> None:
    store = store_of(limits)
    store.now_us -= 20 * SECOND
    for number in range(7):
        assert store.submit(f"job-{number}", payload=b"12345", max_tries=1) == "accepted"
    store.submit("later", delay_us=3600 * SECOND)
    (first, second) = store.take(2).jobs
    store.end(first["id"], first["fence"], "dead", cause="ValueError")
    store.end(second["id"], second["fence"], "done")
    store.take(1)
    for number in range(5):
        store.submit(f"more-{number}")
    assert measure_backlogs(production) == 1
    (seen,) = read_backlogs(production)
    figures = seen.figures
    assert (figures.ready, figures.delayed, figures.leased, figures.dead) == (8, 1, 1, 1)
    assert figures.held == 1
    assert (figures.jobs, seen.max_jobs, figures.max_bytes, figures.bytes) == (10, 10, 1000, 35)
    assert (figures.submitted, figures.taken, figures.done, figures.died, figures.refused) == (12, 3, 1, 1, 1)
    assert seen.share == 1.0
    assert 19 < seen.waiting_s < 60
    assert seen.asked_s is not None
    assert 19 < seen.asked_s < 60
    assert seen.dependency == "openai"


@pytest.mark.django_db(transaction=True)
def test_a_backlog_that_was_never_used_is_not_read(production: str, limits: redis.Redis) -> None:
    assert measure_backlogs(production) == 0
    store_of(limits).submit("a")
    store_of(limits, dependency="unknown").submit("a")
    assert measure_backlogs(production) == 1
    limits.flushall()
    assert measure_backlogs(production) == 0
    assert not Backlog.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_nothing_stays_of_the_backlog_of_a_deleted_dependency(production: str, limits: redis.Redis) -> None:
    store_of(limits).submit("a")
    assert measure_backlogs(production) == 1
    edits.remove_entity(
        environment=production, kind="dependency", name="openai", reason="for a test", actor=SEED
    )
    assert status_of(read_facts(production)).backlogs == ()
    assert measure_backlogs(production) == 0
    assert not Backlog.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_one_backlog_that_cannot_be_read_hides_no_other(production: str, limits: redis.Redis) -> None:
    edits.create_dependency(
        environment=production, dependency="search", kind="external", reason="for a test", actor=SEED
    )
    store_of(limits).submit("a")
    other = store_of(limits, dependency="search")
    other.submit("a")
    assert measure_backlogs(production) == 2
    limits.delete(other.keys["ready"])
    limits.set(other.keys["ready"], "damaged")
    store_of(limits).submit("b")
    assert measure_backlogs(production) == 1
    # The damaged one keeps its last figures.
    assert {one.dependency: one.figures.ready for one in read_backlogs(production)} == {
        "openai": 2,
        "search": 1,
    }


@pytest.mark.django_db(transaction=True)
def test_the_last_figures_stay_while_redis_is_down(
    production: str, limits: redis.Redis, settings: Any
) -> None:
    store_of(limits).submit("a")
    measure()
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    measure()
    (seen,) = read_backlogs(production)
    assert seen.figures.ready == 1
    facts = replace(read_facts(production), now=seen.read_at + 31)
    (status,) = status_of(facts).backlogs
    assert (status.state, status.untaken_s) == ("unknown", 0.0)


@pytest.mark.django_db(transaction=True)
def test_the_state_follows_the_queue_its_workers_and_its_breaker(
    production: str, limits: redis.Redis
) -> None:
    store = store_of(limits)
    store.now_us -= 60 * SECOND

    def state() -> str:
        measure_backlogs(production)
        (status,) = status_of(read_facts(production)).backlogs
        return status.state

    store.submit("a", max_tries=1)
    assert state() == "untaken"
    store.now_us += 60 * SECOND
    (job,) = store.take(1).jobs
    assert state() == "working"
    store.end(job["id"], job["fence"], "dead")
    assert state() == "dead"
    store.submit("b")
    assert state() == "waiting"
    for number in range(9):
        store.submit(f"c{number}")
    assert state() == "full"


@pytest.mark.django_db(transaction=True)
def test_no_worker_takes_jobs_when_all_died_with_the_last_ones(production: str, limits: redis.Redis) -> None:
    store = store_of(limits)
    store.now_us -= 90 * SECOND
    store.submit("a")
    store.submit("b", delay_us=60 * SECOND)
    store.take(1)
    measure_backlogs(production)
    (status,) = status_of(read_facts(production)).backlogs
    assert (status.seen.figures.ready, status.state) == (0, "untaken")
    assert 59 < status.untaken_s < 80, "since the lease of 30 s ended"
    assert status.seen.figures.takeable == 2


@pytest.mark.django_db(transaction=True)
def test_workers_of_a_dependency_that_a_limit_pauses_need_not_ask(
    production: str, limits: redis.Redis
) -> None:
    store = store_of(limits)
    store.now_us -= 90 * SECOND
    store.submit("a")
    measure_backlogs(production)

    def state() -> str:
        (status,) = status_of(read_facts(production)).backlogs
        assert (status.untaken_s > 0) == (status.state == "untaken")
        return status.state

    none: dict[str, Any] = {"limit": 0, "window_s": 60, "algorithm": "sliding_window"}
    for name, only in (("observed", {"shadow": True}), ("users", {"per": ["user"]})):
        VendorLimit.objects.create(dependency=Dependency.objects.get(), name=name, **none, **only)
    assert state() == "untaken"
    VendorLimit.objects.create(dependency=Dependency.objects.get(), name="paused", **none)
    assert state() == "paused"


def test_a_worker_of_the_version_before_knew_only_ready_jobs() -> None:
    figures = {"now": 100_000_000, "ready": 1, "waiting_us": 70_000_000}
    assert from_document("openai", {"figures": figures}, 0.0).untaken_s == 70


def test_rates_are_measured_over_half_a_minute_and_begin_again_after_a_loss() -> None:
    document: dict[str, Any] = {}
    for second in range(0, 60, 2):
        figures = BacklogFigures(*[0] * 10, 10 * second, 0, 4 * second, 0, 0, 0, 0, second, 0, 0, 0)
        document = to_document(figures, document, float(second))
    seen = from_document("openai", document, 58.0)
    assert seen.rates == {"submitted": 10.0, "done": 4.0, "refused": 1.0}
    assert len(document["points"]) == RATES_OVER_S / 2 + 1
    document = to_document(FIGURES, document, 60.0)
    assert document["rates"] == {}
    assert len(document["points"]) == 1


def test_an_older_agent_names_no_bound() -> None:
    seen = from_document("openai", {"figures": {"ready": 100}, "rates": {}}, 0.0)
    assert (seen.max_jobs, seen.share) == (MAX_JOBS, 0.01)
