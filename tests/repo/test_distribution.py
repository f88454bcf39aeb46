"""Workers of one run share the tests out: each file once, and one worker at a time waits for a browser."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.distribution import ByFile, longest_first

TESTS = [
    "tests/controlplane/accounts/test_accounts.py::test_a",
    "tests/controlplane/accounts/test_accounts.py::test_b",
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


def run(workers: int, tests: list[str]) -> list[list[str]]:
    """The tests that run at the same time, if each takes equally long: one row per turn."""
    options = SimpleNamespace(loadscopereorder=False)
    config: Any = SimpleNamespace(getvalue=lambda name: [f"{workers}*popen"], option=options)
    items: Any = [SimpleNamespace(nodeid=test) for test in tests]
    longest_first(items)
    ordered = [item.nodeid for item in items]
    scheduler = ByFile(config)
    # As much of a worker as the scheduler uses.
    nodes: list[Any] = [Worker(number) for number in range(workers)]
    for node in nodes:
        scheduler.add_node(node)
        scheduler.add_node_collection(node, ordered)
    scheduler.schedule()
    turns = []
    while busy := [node for node in nodes if node.waiting]:
        places = [(node, node.waiting.pop(0)) for node in busy]
        turns.append([ordered[place] for _, place in places])
        for node, place in places:
            scheduler.mark_test_complete(node, place)
    return turns


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_each_test_runs_once(workers: int) -> None:
    assert sorted(test for turn in run(workers, TESTS) for test in turn) == sorted(TESTS)


@pytest.mark.parametrize("kind", ["tests/dashboard/test_browser", "tests/agents/models/test"])
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_one_worker_at_a_time_runs_files_of_a_kind_while_there_are_others(workers: int, kind: str) -> None:
    plain = [f"tests/controlplane/series/test_{number}.py::test_a" for number in range(40)]
    of_kind = [f"{kind}_{number}.py::test_a" for number in range(8)]
    turns = run(workers, [*of_kind, *plain, *TESTS])
    assert max(sum(test.startswith(kind) for test in turn) for turn in turns) == 1


def test_files_with_a_browser_are_shared_out_when_nothing_else_is_left() -> None:
    browser = [f"tests/dashboard/test_browser_{number}.py::test_a" for number in range(8)]
    assert [len(turn) for turn in run(2, browser)] == [2, 2, 2, 2]


def test_the_files_with_many_processes_begin_in_one_worker() -> None:
    first, *_ = run(3, TESTS)
    assert first[0] == "tests/faults/test_short.py::test_a"
    assert "tests/repo/test_compose_runs.py::test_a" not in first
