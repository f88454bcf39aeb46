"""``pods``, ``explain`` and ``tail``: what the fleet does, and what people change."""

import argparse
import time
from collections.abc import Callable
from typing import Any

from fuseboard.cli.ctl import breakers, refusals, tenants
from fuseboard.cli.ctl.client import Client, part
from fuseboard.cli.ctl.documents import Breaker, Entry, Fleet, Page, Server, Transition
from fuseboard.cli.ctl.output import clean, say, say_json, table

#: How far the first round looks back.
_RECENT = 10
_PAGE = 100


def pods(client: Client, given: argparse.Namespace) -> None:
    found = client.get("servers", tuple[Server, ...])
    if given.json:
        say_json(found)
        return
    fleet = client.get("fleet", Fleet)
    rows = [
        (
            row.name,
            row.state,
            row.mode,
            f"{row.epoch}.{row.revision}",
            f"{row.calls_per_s:.1f}/s",
            f"{row.redis_p99_us / 1000:.1f} ms" if row.redis_p99_us is not None else "",
            row.config_error or row.mode_cause,
        )
        for row in found
    ]
    table(rows, heads=("pod", "state", "mode", "revision", "calls", "Redis p99", ""))
    say(f"revision {fleet.revision}: {fleet.confirmed} of {fleet.servers} live pods")


def explain(client: Client, given: argparse.Namespace) -> None:
    if given.token:
        refusals.explain(client, given)
        return
    if given.dependency:
        found = client.get(f"breakers/{part(given.dependency)}", Breaker)
        if given.json:
            say_json(found)
        else:
            breakers.explain(found)
        return
    tenants.show(client, given)


def tail(client: Client, given: argparse.Namespace) -> None:
    """Print events as they happen, until Ctrl-C, or for ``--for``."""
    until = time.monotonic() + given.lasts if given.lasts else None
    edits, moves = _News(client, "audit", Page[Entry]), _News(client, "transitions", Page[Transition])
    while True:
        happened: list[Any] = [*edits.fetch(), *moves.fetch()]
        for item in sorted(happened, key=lambda item: item.at):
            if given.json:
                kind = "edit" if isinstance(item, Entry) else "transition"
                say_json({"kind": kind, "item": item})
            else:
                say(_edit(item) if isinstance(item, Entry) else _move(item))
        if until is not None and time.monotonic() >= until:
            return
        time.sleep(given.every)


class _News:
    """The items of a list that were not in it the last time."""

    def __init__(self, client: Client, path: str, kind: type[Any]) -> None:
        self._page: Callable[[Any], Any] = lambda before: client.get(path, kind, limit=_PAGE, before=before)
        self._known: set[int] | None = None

    def fetch(self) -> list[Any]:
        page = self._page(None)
        if self._known is None:
            found = list(page.items[:_RECENT])
        else:
            found = [item for item in page.items if item.id not in self._known]
            # A whole page of new items: there are more.
            while page.next is not None and len(found) % _PAGE == 0 and found:
                page = self._page(page.next)
                found += [item for item in page.items if item.id not in self._known]
        known = (self._known or set()) | {item.id for item in (*page.items, *found)}
        # Items far behind the newest page cannot be new again.
        self._known = set(sorted(known)[-50 * _PAGE :])
        return found


def _edit(entry: Entry) -> str:
    at = f"{entry.at:%H:%M:%S}"
    revision = f" [{entry.revision}]" if entry.revision else ""
    target = f"{entry.target_kind} {entry.target_name}"
    return clean(f"{at}  {entry.actor}  {entry.action}  {target}{revision}: {entry.reason}")


def _move(moved: Transition) -> str:
    by = moved.actor or moved.server or "the fleet"
    text = f"{moved.from_state} -> {moved.to_state} ({moved.cause}, {by})"
    return clean(f"{moved.at:%H:%M:%S}  breaker {moved.dependency}  {text}")
