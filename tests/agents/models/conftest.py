"""Models have time, and the end of a run says which mutants of the scripts were noticed, by which test."""

from collections import Counter
from pathlib import Path

import pytest

#: A model makes as many examples on a busy machine as on an idle one.
PATIENCE_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PATIENCE_S))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    noticed = [
        (report.nodeid.partition("[")[2].rstrip("]"), dict(report.user_properties)["noticed_by"])
        for report in terminalreporter.getreports("passed")
        if "noticed_by" in dict(report.user_properties)
    ]
    if not noticed:
        return
    by = Counter(who for _, who in noticed)
    terminalreporter.section("mutants of the Lua")
    for name, who in noticed:
        terminalreporter.write_line(f"noticed by {who}: {name}")
    counts = ", ".join(f"{times} by {who}" for who, times in by.most_common())
    terminalreporter.write_line(f"{len(noticed)} mutants noticed: {counts}")
