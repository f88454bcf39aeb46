"""Every mutant must be noticed by an example or by a model."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import redis
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.stateful import run_state_machine_as_test

from fuseboard.contract.scripts import Script, read_script
from tests.agents import (
    scripts,
    test_admit_breaker,
    test_admit_changed_rules,
    test_admit_limits,
    test_admit_lost,
    test_admit_settling,
    test_admit_sharing,
    test_report_lua,
)
from tests.agents.models.changed_rules_machine import changed_rules_machine
from tests.agents.models.machines import breaker_machine, limits_machine
from tests.agents.models.mutant import Mutant
from tests.agents.models.mutants import MUTANTS

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


EXAMPLES = (
    test_admit_limits,
    test_admit_changed_rules,
    test_admit_lost,
    test_admit_settling,
    test_admit_sharing,
    test_admit_breaker,
    test_report_lua,
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
    for module in EXAMPLES:
        holders = [module, *(kind() for name, kind in vars(module).items() if name.startswith("Test"))]
        for holder in holders:
            for name in dir(holder):
                if name.startswith("test_"):
                    yield as_example(getattr(holder, name))


def as_example(test: Callable[..., object]) -> Callable[[redis.Redis], object]:
    """A test with its fixtures and parameters filled in."""
    wants = inspect.signature(test).parameters
    rows: list[dict[str, object]] = [{}]
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            names, values = mark.args
            if isinstance(names, str):
                names, values = (names,), [(value,) for value in values]
            rows = [row | dict(zip(names, value, strict=True)) for row in rows for value in values]

    def run(client: redis.Redis) -> None:
        for row in rows:
            client.flushall()
            given = dict(row)
            if "limits" in wants:
                given["limits"] = client
            if "store" in wants:
                given["store"] = scripts.Store(client, policy=test_report_lua.POLICY, guarded=True)
            test(**given)

    return run


def noticed_by(
    client: redis.Redis, read: Callable[[str], Script], *, script: str = "admit", hunt: settings = HUNT
) -> str:
    """Who noticed that ``script`` is mutated; empty when nobody did."""
    for example in examples():
        try:
            example(client)
        except Exception:
            return "an example"
    models = {"the breaker's model": lambda: breaker_machine(client, read("admit"), read("report"))}
    if script == "admit":  # the model of limits runs no other
        models = {
            "the limits' model": lambda: limits_machine(client, read("admit")),
            "the model of changed rules": lambda: changed_rules_machine(client, read("admit")),
            **models,
        }
    for kind, machine in models.items():
        try:
            run_state_machine_as_test(machine(), settings=hunt)
        except Exception:
            return kind
    return ""


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_noticed(
    mutant: Mutant,
    limits: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
):
    with mutated(mutant, monkeypatch) as read:
        limits.script_load(read(mutant.script).text)  # one that does not compile proves nothing
        by = noticed_by(limits, read, script=mutant.script)
    record_property("noticed_by", by)
    assert by, f"nobody noticed: {mutant.name}"


def test_the_unchanged_scripts_pass(limits: redis.Redis):
    """Or every mutant would be noticed for free."""
    read = partial(read_script, clock=scripts.VIRTUAL_CLOCK)
    assert noticed_by(limits, read, hunt=settings(HUNT, max_examples=50)) == ""
