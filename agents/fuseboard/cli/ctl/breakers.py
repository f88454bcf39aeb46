"""``trip``, ``override``, ``end``, ``reset``, ``breakers``: control the breakers of the whole fleet."""

import argparse
import re
from datetime import UTC, datetime

from fuseboard.cli.ctl.client import Client, part
from fuseboard.cli.ctl.documents import Breaker, NewRevision
from fuseboard.cli.ctl.output import clean, moment, say, say_json, say_revision, span, table

_UNITS = {"s": 1, "m": 60, "h": 3600}


def duration(text: str) -> int:
    """``90s``, ``15m``, ``2h`` in seconds, for argparse."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})([smh])", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"invalid duration {text!r}: use 90s, 15m or 2h")
    return int(match[1]) * _UNITS[match[2]]


def override(client: Client, given: argparse.Namespace) -> None:
    body = {"mode": given.mode, "expires_in_s": given.lasts, "reason": given.reason, **_ticket(given)}
    path = f"breakers/{part(given.dependency)}"
    made = client.write("POST", f"{path}/override", NewRevision, body, old_path=f"{path}/hold")
    lasts = span(given.lasts)
    say_revision(given, made, f"{given.dependency} is overridden to {given.mode} for {lasts}")


def extend(client: Client, given: argparse.Namespace) -> None:
    body = {"expires_in_s": given.lasts, "reason": given.reason, **_ticket(given)}
    made = client.write("POST", f"breakers/{part(given.dependency)}/extend", NewRevision, body)
    say_revision(given, made, f"The override of {given.dependency} ends {span(given.lasts)} from now")


def end(client: Client, given: argparse.Namespace) -> None:
    body = {"reason": given.reason}
    path = f"breakers/{part(given.dependency)}"
    made = client.write("POST", f"{path}/end-override", NewRevision, body, old_path=f"{path}/release")
    say_revision(given, made, f"{given.dependency} has no override any more")


def reset(client: Client, given: argparse.Namespace) -> None:
    body = {"reason": given.reason}
    made = client.write("POST", f"breakers/{part(given.dependency)}/reset", NewRevision, body)
    say_revision(given, made, f"{given.dependency} is closed, and its counts are cleared")


def show(client: Client, given: argparse.Namespace) -> None:
    found = client.get("breakers", tuple[Breaker, ...])
    if given.json:
        say_json(found)
        return
    rows = [(row.dependency, row.state, row.cause, moment(row.since), _override_of(row)) for row in found]
    table(rows, heads=("dependency", "state", "cause", "since", "override"))


def explain(breaker: Breaker) -> None:
    """Print whether calls are allowed, and why."""
    calls = {"closed": "are allowed", "open": "are refused", "half_open": "are tested, a few at a time"}
    what = calls.get(breaker.state, "are decided by a breaker that no pod has used yet")
    say(f"calls to {breaker.dependency} {what}")
    say(f"  breaker   {breaker.state}{f' by {breaker.cause}' if breaker.cause else ''}{_times(breaker)}")
    if breaker.source == "history":
        say("            Redis does not answer: this is the last change that was stored")
    if breaker.override is not None:
        applied = breaker.override
        say(f"  override  {applied.mode} until {moment(applied.expires_at)} by {clean(applied.actor)}")
        say(f"            \u201c{clean(applied.reason)}\u201d")
        if applied.ticket:
            say(f"            ticket {clean(applied.ticket_url or applied.ticket)}")
    for limit in breaker.vendor_limits:
        say(f"  limit     {limit.name}: {limit.limit} per {limit.window_s} s, for the whole fleet")
    for label, text in (
        ("owner", breaker.owner),
        ("instead", breaker.fallback_note),
        ("runbook", breaker.runbook),
    ):
        if text:
            say(f"  {label:9} {clean(text)}")


def _times(breaker: Breaker) -> str:
    times = f" since {moment(breaker.since)}" if breaker.since else ""
    return times + (f", until {moment(breaker.until)}" if breaker.until and breaker.state == "open" else "")


def _override_of(row: Breaker) -> str:
    if row.override is None:
        return ""
    left = span(max(0.0, (row.override.expires_at - datetime.now(UTC)).total_seconds()))
    ticket = f" ({row.override.ticket})" if row.override.ticket else ""
    return f"{row.override.mode} for {left} more by {row.override.actor}: {row.override.reason}{ticket}"


def _ticket(given: argparse.Namespace) -> dict[str, str]:
    """Only when it is given: control planes of version 0.1 refuse a field that they do not know."""
    return {} if given.ticket is None else {"ticket": given.ticket}
