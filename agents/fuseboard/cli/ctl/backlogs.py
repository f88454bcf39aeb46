"""``backlog``: the jobs that wait for a dependency, and dead jobs: list, return to the queue, delete."""

import argparse
import sys
from datetime import datetime

from msgspec import Struct

from fuseboard.cli.ctl.client import Client, part
from fuseboard.cli.ctl.exit_codes import Exit, Failed
from fuseboard.cli.ctl.output import clean, confirmed, moment, say, say_json, span, table


class Backlog(Struct, frozen=True):
    dependency: str
    state: str
    read_at: datetime
    ready: int
    delayed: int
    leased: int
    dead: int
    bytes: int
    max_jobs: int
    max_bytes: int
    used: float
    wait_s: float
    asked_s: float | None = None
    done_per_s: float | None = None


class DeadJob(Struct, frozen=True):
    id: str
    died_at: datetime
    tries: int
    max_tries: int
    bytes: int
    cause: str


class DeadJobs(Struct, frozen=True):
    number: int
    now: datetime
    items: tuple[DeadJob, ...]


class Changed(Struct, frozen=True):
    jobs: int
    left: int
    full: bool
    unknown: bool
    unreadable: int = 0


def listing(client: Client, given: argparse.Namespace) -> None:
    found = client.get("backlogs", tuple[Backlog, ...])
    if given.json:
        say_json(found)
        return
    rows = [
        (
            row.dependency,
            row.state,
            f"{row.ready + row.delayed + row.leased} of {row.max_jobs}",
            f"{row.used * 100:.0f} %",
            span(row.wait_s) if row.ready else "",
            str(row.leased),
            str(row.dead),
            "never" if row.asked_s is None else f"{span(row.asked_s)} ago",
        )
        for row in found
    ]
    heads = ("dependency", "state", "jobs", "used", "wait", "leased", "dead", "worker asked")
    table(rows, heads=heads)


def dead(client: Client, given: argparse.Namespace) -> None:
    found = client.get(f"backlogs/{part(given.dependency)}/dead-jobs", DeadJobs)
    if given.json:
        say_json(found)
        return
    rows = [
        (job.id, moment(job.died_at), f"{job.tries} of {job.max_tries}", f"{job.bytes} B", job.cause)
        for job in found.items
    ]
    table(rows, heads=("job", "died", "tries", "size", "cause"))
    say(f"{len(found.items)} of {found.number} dead jobs of {clean(given.dependency)}")


def give_back(client: Client, given: argparse.Namespace) -> None:
    """Return the dead jobs to the queue."""
    _change(client, given, "return", "returned to the queue")


def delete(client: Client, given: argparse.Namespace) -> None:
    question = f"Delete all dead jobs of {given.dependency}? Type its name"
    if not given.yes and not (sys.stdin.isatty() and confirmed(question, given.dependency)):
        raise Failed(
            Exit.REFUSED, "not deleted: deleted jobs cannot be brought back. Pass --yes to delete them"
        )
    _change(client, given, "delete", "deleted")


def _change(client: Client, given: argparse.Namespace, act: str, done: str) -> None:
    path = f"backlogs/{part(given.dependency)}/dead-jobs"
    # Jobs that die between the two requests stay as they are.
    until = client.get(path, DeadJobs).now
    made = client.write("POST", f"{path}/{act}", Changed, {"reason": given.reason, "until": until})
    if given.json:
        say_json(made)
        return
    jobs = "1 dead job" if made.jobs == 1 else f"{made.jobs} dead jobs"
    say(f"{jobs} of {clean(given.dependency)} {done}; {made.left} left")
    if made.full:
        say("The queue is full: the others stay dead")
    if made.unreadable:
        say(f"{made.unreadable} could not be read and are removed")
    if made.unknown:
        say("Redis did not answer for a part of them: list the dead jobs again")
