"""The commands ``fuseboard envoy ...``, which show what a file of envoyproxy/ratelimit means here."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

import msgspec

from fuseboard.agent_api.arguments import INVALID
from fuseboard.cli.descriptor_files import are_right, read_files
from fuseboard.contract.descriptor_words import (
    HEADERS,
    PlacedRule,
    decision_text,
    meaning,
    path_text,
    rules_of,
)
from fuseboard.contract.descriptors import (
    DescriptorDomain,
    DescriptorRules,
    Entry,
    Headers,
    Match,
    Means,
    Verdict,
    rule_text,
)
from fuseboard.contract.words import is_subject
from fuseboard.errors import Misconfigured
from fuseboard.explain.explain_decision import explain
from fuseboard.explain.explanation import Explanation
from fuseboard.settings import AgentSettings
from fuseboard.subject import Subject, costs_of

if TYPE_CHECKING:
    from fuseboard.contract.descriptor_file import DescriptorFile


def add_to(commands: Any) -> None:
    envoy = commands.add_parser("envoy", help="show what a file of envoyproxy/ratelimit means here")
    actions = envoy.add_subparsers(dest="action", required=True)
    check = actions.add_parser("check", help="check files, and list what each of their rules means")
    check.add_argument("files", metavar="FILE", type=Path, nargs="+", help="the YAML of one domain")
    trial = actions.add_parser("try", help="find the rule that each descriptor of a request meets")
    trial.add_argument("file", metavar="FILE", type=Path, help="the YAML of one domain")
    trial.add_argument(
        "-d",
        "--descriptor",
        dest="descriptors",
        metavar="KEY=VALUE",
        nargs="+",
        action="append",
        required=True,
        help="the entries of one descriptor, in their order; repeat it for each descriptor of the request",
    )
    trial.add_argument(
        "--explain",
        action="store_true",
        help="also show what is left for a tenant, a caller or a dependency, in the environment of the pod",
    )
    for command in (check, trial):
        command.add_argument("--json", action="store_true", help="print JSON")


def run(given: argparse.Namespace) -> int:
    """0 if the files are right, 1 if one has problems. Raises ``Misconfigured``."""
    return _check(given) if given.action == "check" else _try(given)


def _try(given: argparse.Namespace) -> int:
    [read] = files = read_files([given.file])
    if not are_right(files) or (domain := read.file.domain) is None:
        return 1
    descriptors = [[_entry(text) for text in texts] for texts in given.descriptors]
    matches = DescriptorRules([domain]).match(domain.domain, descriptors)
    explained = asyncio.run(_explain_all(matches)) if given.explain else [None] * len(matches)
    _show(given, descriptors, matches, explained)
    return 0


def _check(given: argparse.Namespace) -> int:
    files = read_files(given.files)
    is_right, listed = are_right(files), []
    for path, _, file in files:
        if file.domain is None:
            continue
        rows = list(rules_of(file.domain))
        if given.json:
            listed.append(_file_as_json(path, file, file.domain, rows))
        else:
            _say_file(path, file, file.domain, rows)
    if given.json:
        _say(msgspec.json.encode(listed).decode())
    return 0 if is_right else 1


def _entry(text: str) -> Entry:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise Misconfigured(f"an entry is KEY=VALUE, like tenant=acme, not {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Misconfigured(f"an entry must be UTF-8, not {text!r}") from None
    return key, value


def _say_file(path: Path, file: "DescriptorFile", domain: DescriptorDomain, rows: list[PlacedRule]) -> None:
    _say(f"{path}: domain {domain.domain}, {len(rows):,} rules")
    if domain.headers is not Headers.OFF:
        _say(f"headers: {HEADERS[domain.headers]}")
    for place, rules in rows:
        _say(f"line {file.lines[place]}: {path_text(rules)}")
        _say(f"    {meaning(rules[-1])}")
    for line, text in file.notes:
        _say(f"note, line {line}: {text}")


def _file_as_json(
    path: Path, file: "DescriptorFile", domain: DescriptorDomain, rows: list[PlacedRule]
) -> dict[str, Any]:
    listed = [
        {
            "line": file.lines[place],
            "rule": [rule_text(rule) for rule in rules],
            "means": meaning(rules[-1]),
        }
        for place, rules in rows
    ]
    notes = [note._asdict() for note in file.notes]
    return {
        "file": str(path),
        "domain": domain.domain,
        "headers": domain.headers,
        "rules": listed,
        "notes": notes,
    }


async def _explain_all(matches: tuple[Match, ...]) -> list[Explanation | None]:
    """Explain one hit on each match that asks limits of the configuration. Spends nothing."""
    settings = AgentSettings.from_env()
    asked = (Verdict.REQUEST, Verdict.CALL)
    return [await _explain(settings, match) if match.verdict in asked else None for match in matches]


async def _explain(settings: AgentSettings, match: Match) -> Explanation:
    """Raises ``Misconfigured`` when there is no configuration, in Redis or on disk."""
    rule, named = match.path[-1], dict(match.named)
    tenant = named.pop(Means.TENANT, None)
    return await explain(
        settings,
        # Invalid names are counted under one name, here as in a pod.
        tenant="" if tenant is None else tenant if is_subject(tenant) else INVALID,
        dependency=rule.dependency,
        subject=Subject(**{means.value: value for means, value in named.items()}),
        costs=costs_of(1, {} if rule.measure == "calls" else {rule.measure: 1}),
    )


def _show(
    given: argparse.Namespace,
    descriptors: list[list[Entry]],
    matches: tuple[Match, ...],
    explained: Sequence[Explanation | None],
) -> None:
    if given.json:
        listed = list(map(_as_json, matches, explained))
        _say(msgspec.json.encode(listed).decode())
        return
    for descriptor, match, explanation in zip(descriptors, matches, explained, strict=True):
        _say(" ".join(f"{key}={value}" for key, value in descriptor))
        if match.path:
            _say(f"    rule: {path_text(match.path)}")
        _say(f"    {decision_text(match)}")
        if explanation is not None:
            _say(indent(explanation.text(), "    "))


def _as_json(match: Match, explanation: Explanation | None) -> dict[str, Any]:
    return {
        "verdict": match.verdict,
        "rule": [rule_text(rule) for rule in match.path],
        "means": decision_text(match),
        "named": match.named,
        "counted": match.counted,
        "explanation": explanation,
    }


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
