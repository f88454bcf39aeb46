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
    done = client.write("POST", "counters/clear", Cleared, body)
    empty = "" if done.counted else "; it was empty already"
    say_result(
        given, done, f"cleared the counter of {clean(given.limit)}{empty}. Pods ask Redis again within 1 s"
    )
