"""The command ``fuseboard doctor``."""

import argparse
import asyncio
from typing import Any

import msgspec

from fuseboard.cli.ctl.output import say
from fuseboard.cli.doctor import checklist
from fuseboard.cli.doctor.command import Level, examine
from fuseboard.errors import Misconfigured

_MARKS = {Level.OK: "ok  ", Level.WARN: "warn", Level.FAIL: "FAIL", Level.SKIP: "skip"}


def add_to(commands: Any) -> None:
    doctor = commands.add_parser("doctor", help="check this pod's settings, Redis and gateway")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument(
        "--checklist",
        action="store_true",
        help="print the checklist before a deployment instead: the control plane checks its configuration",
    )
    doctor.add_argument(
        "--strict", action="store_true", help="with --checklist, exit with 1 also if a line needs attention"
    )
    doctor.add_argument(
        "--environment",
        default="",
        help="with --checklist, the environment (default: $FUSEBOARD_ENVIRONMENT, or production)",
    )


def run(given: argparse.Namespace) -> int:
    """0 when no check fails, else 1; ``ChecklistExit`` for the checklist. Raises ``Misconfigured``."""
    if given.checklist:
        return checklist.run(given)
    if given.strict or given.environment:
        raise Misconfigured("--strict and --environment need --checklist")
    findings = asyncio.run(examine())
    failed = any(finding.level is Level.FAIL for finding in findings)
    if given.json:
        say(msgspec.json.encode({"ok": not failed, "findings": findings}).decode())
        return int(failed)
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        say(f"{_MARKS[finding.level]}  {finding.check:{width}}  {finding.says}")
        if finding.do:
            say(f"{'':{width + 8}}-> {finding.do}")
    return int(failed)
