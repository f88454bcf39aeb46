"""``counter``: clear the counter of a limit."""

import argparse

from msgspec import Struct

from fuseboard.cli.ctl.client import Client
from fuseboard.cli.ctl.output import clean, say_result

#: The dimensions that a limit can count by.
BY = ("user", "ip", "api_key", "endpoint")


class Cleared(Struct, frozen=True):
    counted: bool


def clear(client: Client, given: argparse.Namespace) -> None:
    body = {name: getattr(given, name) for name in ("limit", "tenant", "dependency", "reason", *BY)}
    say_cleared(given, client.write("POST", "counters/clear", Cleared, body), given.limit)


def say_cleared(given: argparse.Namespace, done: Cleared, name: str) -> None:
    empty = "" if done.counted else "; it was empty already"
    say_result(given, done, f"cleared the counter of {clean(name)}{empty}. Pods ask Redis again within 1 s")
