"""Which worker of ``pytest -n`` runs which files, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

#: These start many processes and wait for them. One worker runs them, one after the other: two at once starve
#: each other on a machine with two cores.
MANY_PROCESSES = (
    "tests/controlplane/alerts/delivery/test_alert_worker",
    "tests/controlplane/alerts/test_alerts_without_stores",
    "tests/controlplane/api/test_compat_releases",
    "tests/controlplane/management/test_followed_pages",
    "tests/controlplane/gateway/test_gateway_pair",
    "tests/controlplane/processes/test_pgbouncer",
    "tests/controlplane/monitoring/test_real_prometheus",
    "tests/controlplane/processes/test_upgrades",
    "tests/demo/",
    "tests/experiments/test_storm_processes",
    "tests/faults/",
    "tests/journeys/",
    "tests/repo/test_compose_runs",
)
#: These simulate with one busy processor and share nothing: each test goes to the next free worker.
EACH_ALONE = ("tests/experiments/test_experiments",)
#: These wait for Chromium and a web process. Three workers that all wait leave a core idle, and each of them
#: would start its own web process.
IN_A_BROWSER = "tests/dashboard/test_browser"
#: These compute, and most other tests of the agent wait for timers.
MODELS = "tests/agents/models/"
#: One worker at a time runs files of a kind, while there are others.
_ONE_AT_A_TIME = (IN_A_BROWSER, MODELS)
#: What takes longest comes first, so that the workers end together.
_FIRST = (
    *MANY_PROCESSES,
    *EACH_ALONE,
    IN_A_BROWSER,
    MODELS,
    "tests/controlplane/api/test_api_schema",
    "tests/controlplane/accounts/test_permission_matrix",
    "tests/dashboard/test_every_form",
    "tests/dashboard/test_palette_commands",
    "tests/llm/test_budgets_without_redis",
    "tests/llm/test_fleets_that_spend",
    "tests/repo/test_health_checks",
    "tests/repo/test_installed_server",
    "tests/repo/test_wheel",
)


def longest_first(items: list[pytest.Item]) -> None:
    """Put the tests in order."""
    items.sort(
        key=lambda item: (
            not item.nodeid.startswith(MANY_PROCESSES),
            not item.nodeid.startswith(_FIRST),
        )
    )


class ByFile(LoadFileScheduling):
    """Give a worker one file at a time; the files with many processes are one, and a simulation is one."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(EACH_ALONE):
            return nodeid
        return "many processes" if nodeid.startswith(MANY_PROCESSES) else super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        taken = tuple(kind for kind in _ONE_AT_A_TIME if self._another_runs(kind, node))
        others = (scope for scope in self.workqueue if not scope.startswith(taken))
        if (scope := next(others, None)) is not None:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _another_runs(self, kind: str, node: WorkerController) -> bool:
        return any(
            scope.startswith(kind) and not all(tests.values())
            for other, given in self.assigned_work.items()
            if other is not node
            for scope, tests in given.items()
        )
