"""``refusals``, ``error-budgets``, and ``explain`` with a token: who is refused, and why one request was."""

import argparse
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from fuseboard.cli.ctl.client import Client
from fuseboard.cli.ctl.documents import (
    ErrorBudget,
    ErrorBudgets,
    ExplainedRefusal,
    Page,
    RefusalCounts,
    RefusalSample,
)
from fuseboard.cli.ctl.output import clean, moment, say, say_json, table

FILTERS = ("tenant", "rule", "endpoint", "pod", "reason", "dependency", "tier")
#: The dimensions of printed lines, and how many of each.
_DIMENSIONS, _LINES = ("tenant", "rule", "endpoint", "pod", "reason", "dependency"), 5


def explain(client: Client, given: argparse.Namespace) -> None:
    text: str = given.token
    if text == "-":
        text = sys.stdin.readline().strip()
    if text.isdecimal():
        found: Any = client.get(f"refusals/samples/{text}", ExplainedRefusal)
    else:
        found = client.write("POST", "refusals/explain", ExplainedRefusal, {"token": text})
    if given.json:
        say_json(found)
        return
    for sentence in found.sentences:
        say(clean(sentence))


def listing(client: Client, given: argparse.Namespace) -> None:
    wanted = {name: getattr(given, name) for name in FILTERS}
    since = datetime.now(UTC) - timedelta(seconds=given.last)
    wanted["since"] = f"{since:%Y-%m-%dT%H:%M:%SZ}"
    counts = client.get("refusals/counts", RefusalCounts, **wanted)
    page = client.get("refusals", Page[RefusalSample], **wanted, limit=given.limit)
    if given.json:
        say_json({"counts": counts, "samples": page.items})
        return
    say(_headline(counts))
    for name in _DIMENSIONS:
        lines = getattr(counts, name)
        if wanted[name] or not any(line.value for line in lines):
            continue
        rows = [
            (
                line.value or "none",
                f"{line.percent:.0f} %",
                f"{line.counted.refused:,}" if line.counted else "",
            )
            for line in lines[:_LINES]
        ]
        say("")
        table(rows, heads=(name, "about", "counted"))
    say("")
    samples = [
        (str(row.id), moment(row.at), row.tenant, row.rule, row.endpoint, row.pod, row.reason)
        for row in page.items
    ]
    table(samples, heads=("sample", "time", "tenant", "rule", "endpoint", "pod", "reason"))


def _headline(counts: RefusalCounts) -> str:
    found = counts.counted
    if found is None:
        return f"Pods do not count this combination. Samples: {counts.samples:,}."
    asked = f" of {found.asked:,} asked" if found.asked is not None else ""
    return f"{found.refused:,} refused{asked}, counted in {found.known_s:,} s. Samples: {counts.samples:,}."


def error_budgets(client: Client, given: argparse.Namespace) -> None:
    asked = {"dependency": given.dependency, "tenant": given.tenant}
    found = client.get("error-budgets", ErrorBudgets, **asked)
    if given.json:
        say_json(found)
        return
    spent = "1 error budget is spent" if found.spent == 1 else f"{found.spent:,} error budgets are spent"
    say(f"{spent}. The target is {found.target_percent:g} % over {found.days} days.")
    rows = [_budget_row(one) for one in (*found.dependencies, *found.tenants)]
    if rows:
        say("")
        heads = ("of", "left", "refused or failed", "of calls", "burn 1h", "6h", f"{found.days}d")
        table(rows, heads=heads)


def _budget_row(one: ErrorBudget) -> tuple[str, ...]:
    burns = (one.burn_1h, one.burn_6h, one.burn)
    return (
        f"{one.name} {one.quota}".rstrip(),
        "spent" if one.spent else f"{one.left_percent:.1f} %",
        f"{one.bad:,}",
        f"{one.asked:,}",
        *("no calls" if burn is None else f"{burn:.1f}" for burn in burns),
    )
