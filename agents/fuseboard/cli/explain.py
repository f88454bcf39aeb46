"""The command ``fuseboard explain``."""

import argparse
import asyncio
import sys
from typing import Any

import msgspec

from fuseboard.agent_api.arguments import INVALID, check_costs, check_name
from fuseboard.contract.words import is_subject
from fuseboard.errors import Misconfigured
from fuseboard.explain.explain_decision import explain
from fuseboard.settings import AgentSettings
from fuseboard.subject import Subject, costs_of


def add_to(commands: Any) -> None:
    parser = commands.add_parser("explain", help="which rules apply, what is left, and what comes next")
    about = parser.add_mutually_exclusive_group(required=True)
    about.add_argument("--tenant", help="a request of this tenant")
    about.add_argument("--dependency", help="a call to this dependency")
    about.add_argument("--nobody", action="store_true", help="a request without a tenant: --ip or --api-key")
    parser.add_argument("--for-tenant", default="", help="with --dependency: on behalf of this tenant")
    for dimension in ("endpoint", "user", "ip", "api-key"):
        parser.add_argument(f"--{dimension}", default="")
    parser.add_argument("--cost", type=int, default=1)
    parser.add_argument(
        "--costs", default="", metavar="MEASURE=AMOUNT,...", help="what else it costs, like tokens=500"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(given: argparse.Namespace) -> int:
    """0. Raises ``Misconfigured``."""
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
    text = msgspec.json.encode(explanation).decode() if given.json else explanation.text()
    sys.stdout.write(f"{text}\n")
    return 0


def _amounts(text: str) -> dict[str, int]:
    amounts = {}
    for pair in filter(None, text.split(",")):
        measure, _, amount = pair.partition("=")
        if not amount.isascii() or not amount.isdigit():
            raise Misconfigured(f"--costs needs measures with whole numbers, like tokens=500, not {pair!r}")
        amounts[measure.strip()] = int(amount)
    return amounts
