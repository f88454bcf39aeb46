"""Every branch of every script is taken by an example or by a model.

The scripts of the backlog have examples and a model of their own. Here they take only what they share.
"""

import re

import pytest
import redis
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from fuseboard.contract.scripts import Script, read_script
from tests.agents import backlog_scripts, scripts, test_backlog_scripts
from tests.agents.models.machines import breaker_machine, limits_machine
from tests.agents.models.test_mutants import HUNT, examples

CHANNEL = "branches"
END = b"that was all"
BRANCH = re.compile(r"\b(then|else|do)\b")


def marked(name: str, clock: str, seen: set[str]) -> tuple[Script, dict[str, str]]:
    """The script, saying each branch it takes on a line not ``seen``; and its branches with their lines."""
    branches: dict[str, str] = {}

    def mark(word: re.Match[str]) -> str:
        label = f"{name}:{len(branches) + 1}"
        branches[label] = line
        if line in seen:
            return word[0]
        # Not a key: examples compare the whole contents of the store.
        return f"{word[0]} redis.call('PUBLISH', '{CHANNEL}', '{label}') "

    lines = []
    for line in read_script(name, clock=clock).text.splitlines():
        code, dashes, comment = line.partition("--")
        lines.append(BRANCH.sub(mark, code) + dashes + comment)
    return Script(name=name, text="\n".join(lines), sha="0" * 40), branches


def test_every_branch_is_taken(limits: redis.Redis, monkeypatch: pytest.MonkeyPatch):
    listener = limits.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(CHANNEL)
    all_branches: dict[str, str] = {}
    #: Lines. A part that several scripts share is seen when one of them takes it.
    seen: set[str] = set()

    def read(name: str, *, clock: str = scripts.VIRTUAL_CLOCK) -> Script:
        # No branch is said again: the listener reads only between two runs, and the server closes a
        # connection on which 8 MB wait for a minute.
        script, branches = marked(name, clock, seen)
        all_branches.update(branches)
        return script

    def drain() -> None:
        limits.publish(CHANNEL, END)
        # Not by asking until nothing is there: half a message would be an error, and a late one missed.
        while (message := listener.get_message(timeout=20)) is None or message["data"] != END:
            if message is not None:
                seen.add(all_branches[message["data"].decode()])

    monkeypatch.setattr(scripts, "read_script", read)
    for example in examples():
        example(limits)
        drain()
    # Only jobs of a backlog are granted strictly in order.
    monkeypatch.setattr(backlog_scripts, "read_script", read)
    limits.flushall()
    test_backlog_scripts.test_an_expensive_head_is_not_overtaken_and_its_wait_is_exact(limits)
    drain()
    # What Hypothesis draws depends on the modules that are loaded: what a few examples miss, more take.
    for most in (30, 100, 400, 1600):
        few = settings(HUNT, max_examples=most)
        run_state_machine_as_test(limits_machine(limits, read("admit")), settings=few)
        drain()
        run_state_machine_as_test(breaker_machine(limits, read("admit"), read("report")), settings=few)
        drain()
        lines = {line for label, line in all_branches.items() if not label.startswith("backlog_")}
        missed = {line.strip() for line in lines - seen}
        if not missed:
            break
    listener.close()
    assert len(all_branches) > 150
    assert not missed, "\n".join(sorted(missed))
