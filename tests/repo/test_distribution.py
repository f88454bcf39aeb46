"""Workers of one run share the tests out: each group in one worker, and the longest first."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distribution import EACH_ALONE, IN_A_BROWSER, MANY_PROCESSES, MODELS, InGroups, longest_first

ROOT = Path(__file__).resolve().parents[2]
TESTS = [
    "tests/agents/models/test_locks.py::test_a",
    "tests/agents/models/test_pods.py::test_a",
    "tests/controlplane/accounts/test_accounts.py::test_a",
    "tests/controlplane/accounts/test_accounts.py::test_b[x@y]",
    "tests/dashboard/test_browser_clicks.py::test_a",
    "tests/dashboard/test_browser_clicks.py::test_b",
    "tests/dashboard/test_browser_edits.py::test_a",
    "tests/dashboard/test_pages.py::test_a",
    "tests/experiments/test_experiments.py::test_a",
    "tests/experiments/test_experiments.py::test_b",
    "tests/faults/test_short.py::test_a",
    "tests/repo/test_compose_runs.py::test_a",
    "tests/repo/test_words.py::test_a",
]


class Worker:
    shutting_down = False

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.waiting: list[int] = []

    def send_runtest_some(self, places: list[int]) -> None:
        self.waiting += places

    def shutdown(self) -> None:
        self.shutting_down = True


def started(workers: int, tests: list[str]) -> tuple[InGroups, list[Worker], list[str]]:
    """A scheduler that has given its workers their first tests, and the tests by their number."""
    options = SimpleNamespace(loadscopereorder=False)
    config: Any = SimpleNamespace(getvalue=lambda name: [f"{workers}*popen"], option=options)
    items: Any = [SimpleNamespace(nodeid=test) for test in tests]
    longest_first(items)
    ordered = [item.nodeid for item in items]
    scheduler = InGroups(config)
    # As much of a worker as the scheduler uses.
    nodes: list[Any] = [Worker(number) for number in range(workers)]
    for node in nodes:
        scheduler.add_node(node)
        scheduler.add_node_collection(node, ordered)
    scheduler.schedule()
    return scheduler, nodes, ordered


def run(workers: int, tests: list[str]) -> list[list[str]]:
    """The tests of each worker in their order, if each test takes equally long."""
    scheduler, nodes, ordered = started(workers, tests)
    ran: list[list[str]] = [[] for _ in nodes]
    while busy := [node for node in nodes if node.waiting]:
        for node in busy:
            place = node.waiting.pop(0)
            ran[nodes.index(node)].append(ordered[place])
            scheduler.mark_test_complete(node, place)
    return ran


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_each_test_runs_once(workers: int) -> None:
    assert sorted(test for tests in run(workers, TESTS) for test in tests) == sorted(TESTS)


@pytest.mark.parametrize(
    "kind", [MANY_PROCESSES, IN_A_BROWSER, MODELS, "tests/controlplane/accounts/test_accounts.py"]
)
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_one_worker_runs_all_of_a_group(workers: int, kind: str | tuple[str, ...]) -> None:
    of_kind = [test for test in TESTS if test.startswith(kind)]
    assert len(of_kind) >= 2
    ran = [[test for test in tests if test.startswith(kind)] for tests in run(workers, TESTS)]
    assert sorted(ran) == sorted([of_kind, *[[]] * (workers - 1)])


def test_simulations_run_side_by_side() -> None:
    ran = run(3, TESTS)
    assert sum(any(test.startswith(EACH_ALONE) for test in tests) for tests in ran) == 2


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_what_takes_longest_comes_first(workers: int) -> None:
    ran = run(workers, TESTS)
    assert ran[0][:2] == ["tests/faults/test_short.py::test_a", "tests/repo/test_compose_runs.py::test_a"]
    short = ("tests/controlplane/accounts/", "tests/dashboard/test_pages", "tests/repo/test_words")
    for tests in ran:
        kinds = [test.startswith(short) for test in tests]
        assert kinds == sorted(kinds)


def test_the_test_of_a_crashed_worker_keeps_its_name() -> None:
    scheduler, nodes, _ = started(1, TESTS)
    crashed: Any = nodes[0]
    assert scheduler.remove_node(crashed) == "tests/faults/test_short.py::test_a"


@pytest.mark.parametrize("prefix", [*MANY_PROCESSES, *EACH_ALONE, IN_A_BROWSER, MODELS])
def test_each_listed_prefix_names_files(prefix: str) -> None:
    folder, _, name = prefix.rpartition("/")
    assert list((ROOT / folder).glob(f"{name or 'test_'}*.py"))
