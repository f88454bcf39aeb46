"""Which worker of ``pytest -n --dist loadgroup`` runs which files, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadGroupScheduling

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def group_of(nodeid: str) -> str | None:
    """The group of a test: its file, or a name for several files. ``None``: the test is a group by itself."""
    if nodeid.startswith(EACH_ALONE):
        return None
    if nodeid.startswith(MANY_PROCESSES):
        return "many processes"
    if nodeid.startswith(IN_A_BROWSER):
        return "in a browser"
    if nodeid.startswith(MODELS):
        return "models"
    return nodeid.partition("::")[0]


def longest_first(items: list[pytest.Item]) -> None:
    """Put the tests in order."""
    items.sort(
        key=lambda item: (
            not item.nodeid.startswith(MANY_PROCESSES),
            not item.nodeid.startswith(_FIRST),
        )
    )


class InGroups(LoadGroupScheduling):
    """Give all tests of a group to one worker.

    The base class reads a group from the end of a node id. The mark ``xdist_group`` should put it there, but
    has no effect with pytest 9.2: https://github.com/pytest-dev/pytest-xdist/issues/1386. So this class
    appends the group. Workers know tests by their number, so their node ids stay as they are.
    """

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        grouped = [f"{nodeid}@{group}" if (group := group_of(nodeid)) else nodeid for nodeid in collection]
        super().add_node_collection(node, grouped)

    def remove_node(self, node: WorkerController) -> str | None:
        """The test in which the worker crashed, with the node id that pytest knows."""
        crashed = super().remove_node(node)
        return crashed and crashed.removesuffix(f"@{group_of(crashed)}")
