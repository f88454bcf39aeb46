"""Prints at the end of a run which mutants of the scripts were noticed, and by which test."""

from collections import Counter

import pytest


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
