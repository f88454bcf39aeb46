"""The command ``fuseboard``: for people on the host of a pod, with the environment of the pod.

::

    fuseboard doctor                                     can this pod decide?
    fuseboard doctor --checklist                         is the configuration ready for a deployment?
    fuseboard explain --tenant acme --endpoint "POST /v1/orders"
    fuseboard explain --dependency payments-api          what is the next decision, and why?
    fuseboard ctl ...                                    edit and watch through the REST API, from anywhere
    fuseboard sidecar                                    decide for an application in any language
    fuseboard envoy check limits.yaml                    what does a file of envoyproxy/ratelimit mean here?
    fuseboard envoy-config                               how does Envoy ask a sidecar?
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from fuseboard.agent_api.arguments import INVALID, check_costs, check_name
from fuseboard.cli import ctl, envoy, envoy_config, sidecar
from fuseboard.cli.doctor import checklist
from fuseboard.cli.doctor.command import Level, examine
from fuseboard.contract.build import commit_of
from fuseboard.contract.words import is_subject
from fuseboard.errors import Misconfigured
from fuseboard.explain.explain_decision import explain
from fuseboard.reporting.heartbeat import agent_version
from fuseboard.settings import AgentSettings
from fuseboard.subject import Subject, costs_of

_MARKS = {Level.OK: "ok  ", Level.WARN: "warn", Level.FAIL: "FAIL", Level.SKIP: "skip"}


class _Version(argparse.Action):
    """Only who asks pays for it: in a checkout, git is asked for the commit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        package = Path(__file__).resolve().parents[1]
        commit = commit_of(package, checkout=package.parents[1])
        _say(f"fuseboard {agent_version()}{f' (commit {commit})' if commit else ''}")
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all is well, 1 when ``doctor`` or ``envoy`` found a problem, 2 when the command cannot answer.

    ``ctl`` has more codes: ``fuseboard.cli.ctl.exit_codes.Exit``.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.command == "ctl":
        return ctl.run(given, parser)
    try:
        if given.command == "sidecar":
            return sidecar.run(given, sys.argv[1:] if arguments is None else arguments)
        # A log line of the agent on stderr would look like a finding.
        logging.getLogger("fuseboard").addHandler(logging.NullHandler())
        if given.command == "envoy":
            return envoy.run(given)
        if given.command == "envoy-config":
            return envoy_config.run(given)
        return _doctor(given) if given.command == "doctor" else _explain(given)
    except Misconfigured as error:
        sys.stderr.write(f"fuseboard: {error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fuseboard", description="Limits and breakers, as a pod sees them.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the release and its commit")
    commands = parser.add_subparsers(dest="command", required=True)
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
    explain = commands.add_parser("explain", help="which rules apply, what is left, and what comes next")
    about = explain.add_mutually_exclusive_group(required=True)
    about.add_argument("--tenant", help="a request of this tenant")
    about.add_argument("--dependency", help="a call to this dependency")
    about.add_argument("--nobody", action="store_true", help="a request without a tenant: --ip or --api-key")
    explain.add_argument("--for-tenant", default="", help="with --dependency: on behalf of this tenant")
    for dimension in ("endpoint", "user", "ip", "api-key"):
        explain.add_argument(f"--{dimension}", default="")
    explain.add_argument("--cost", type=int, default=1)
    explain.add_argument(
        "--costs", default="", metavar="MEASURE=AMOUNT,...", help="what else it costs, like tokens=500"
    )
    explain.add_argument("--json", action="store_true", help="print JSON")
    ctl.add_to(commands)
    sidecar.add_to(commands)
    envoy.add_to(commands)
    envoy_config.add_to(commands)
    return parser


def _doctor(given: argparse.Namespace) -> int:
    if given.checklist:
        return checklist.run(given)
    if given.strict or given.environment:
        raise Misconfigured("--strict and --environment need --checklist")
    findings = asyncio.run(examine())
    failed = any(finding.level is Level.FAIL for finding in findings)
    if given.json:
        _say(msgspec.json.encode({"ok": not failed, "findings": findings}).decode())
        return int(failed)
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        _say(f"{_MARKS[finding.level]}  {finding.check:{width}}  {finding.says}")
        if finding.do:
            _say(f"{'':{width + 8}}-> {finding.do}")
    return int(failed)


def _explain(given: argparse.Namespace) -> int:
    subject = Subject(user=given.user, ip=given.ip, api_key=given.api_key, endpoint=given.endpoint)
    if given.dependency is not None:
        check_name("a dependency", given.dependency)
    elif given.for_tenant:
        raise Misconfigured("--for-tenant needs --dependency; use --tenant for the tenant of a request")
    tenant = "" if given.nobody else given.for_tenant if given.dependency else given.tenant or INVALID
    more = _amounts(given.costs)
    check_costs(more)
    explanation = asyncio.run(
        explain(
            AgentSettings.from_env(),
            # Invalid names are counted under one name, here as in a pod.
            tenant=tenant if not tenant or is_subject(tenant) else INVALID,
            dependency=given.dependency or "",
            subject=subject,
            costs=costs_of(given.cost, more),
        )
    )
    _say(msgspec.json.encode(explanation).decode() if given.json else explanation.text())
    return 0


def _amounts(text: str) -> dict[str, int]:
    amounts = {}
    for pair in filter(None, text.split(",")):
        measure, _, amount = pair.partition("=")
        if not amount.isascii() or not amount.isdigit():
            raise Misconfigured(f"--costs needs measures with whole numbers, like tokens=500, not {pair!r}")
        amounts[measure.strip()] = int(amount)
    return amounts


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
