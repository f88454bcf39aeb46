"""Every mutant must be noticed by an example or by a model: who watches the watchmen."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.stateful import run_state_machine_as_test

from fuseboard.store.scripts import Script, read_script
from tests.agents import scripts, test_admit_lua, test_report_lua
from tests.agents.models.machines import breaker_machine, limits_machine
from tests.agents.models.mutants import MUTANTS, Mutant

HUNT = settings(
    max_examples=400,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    verbosity=Verbosity.quiet,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@contextmanager
def mutated(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Script]]:
    """Put the mutant's text in place of the script's, for everything that reads scripts."""

    def read(name: str, *, clock: str = scripts.VIRTUAL_CLOCK) -> Script:
        script = read_script(name, clock=clock)
        if name != mutant.script:
            return script
        assert mutant.old in script.text, f"{mutant.name!r} no longer matches the script"
        text = script.text.replace(mutant.old, mutant.new)
        # A name of its own: EVALSHA by the original's digest would run the original.
        return Script(name=name, text=text, sha="0" * 40)

    with monkeypatch.context() as patch:
        patch.setattr(scripts, "read_script", read)
        yield read


def examples() -> Iterator[Callable[[redis.Redis], object]]:
    """The written examples, as functions of a client."""
    for module in (test_admit_lua, test_report_lua):
        holders = [module, *(kind() for name, kind in vars(module).items() if name.startswith("Test"))]
        for holder in holders:
            for name in dir(holder):
                if name.startswith("test_"):
                    yield as_example(getattr(holder, name))


def as_example(test: Callable[..., object]) -> Callable[[redis.Redis], object]:
    if "store" in inspect.signature(test).parameters:
        takes_both = "limits" in inspect.signature(test).parameters

        def run(client: redis.Redis) -> object:
            store = scripts.Store(client, policy=test_report_lua.POLICY, guarded=True)
            return test(store, client) if takes_both else test(store)

        return run
    return test


def noticed_by(client: redis.Redis, read: Callable[[str], Script]) -> str:
    """Who noticed; empty when nobody did."""
    for example in examples():
        client.flushall()
        try:
            example(client)
        except Exception:
            return "an example"
    for kind, machine in (
        ("the limits' model", lambda: limits_machine(client, read("admit"))),
        ("the breaker's model", lambda: breaker_machine(client, read("admit"), read("report"))),
    ):
        try:
            run_state_machine_as_test(machine(), settings=HUNT)
        except Exception:
            return kind
    return ""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_noticed(
    mutant: Mutant,
    limits: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
):
    with mutated(mutant, monkeypatch) as read:
        limits.script_load(read(mutant.script).text)  # one that does not compile proves nothing
        by = noticed_by(limits, read)
    record_property("noticed_by", by)
    assert by, f"nobody noticed: {mutant.name}"
