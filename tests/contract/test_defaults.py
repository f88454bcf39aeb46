"""The wire leaves defaults out, so a changed default changes what a pod of another version reads."""

import json
from pathlib import Path

import msgspec
import pytest

from fuseboard.contract import budgets, descriptors, limits, models, policy, protection, sync
from fuseboard.contract.limits import HOT_PER_S, LEASE_MS
from fuseboard.contract.policy import Tuning

RECORDED = Path(__file__).parent / "defaults.json"


def structs() -> dict[str, type[msgspec.Struct]]:
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}": kind
        for module in (budgets, descriptors, limits, models, policy, protection, sync)
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__
    }


def defaults_of(kind: type[msgspec.Struct]) -> dict[str, object]:
    found = {}
    for field in msgspec.structs.fields(kind):
        if not field.required:
            value = field.default
            if value is msgspec.NODEFAULT:
                value = field.default_factory() if callable(field.default_factory) else None
            found[field.name] = json.loads(msgspec.json.encode(value) or b"null")
    return found


def recorded() -> dict[str, dict[str, object]]:
    return json.loads(RECORDED.read_text())


@pytest.mark.parametrize("name", structs())
def test_no_default_has_changed(name: str):
    """Add a new field to ``defaults.json``. Never edit or remove a line of it."""
    assert defaults_of(structs()[name]) == recorded().get(name, {})


def test_no_document_is_gone():
    assert set(recorded()) <= set(structs())


def test_the_figures_of_an_outage_are_those_that_the_documents_give():
    tuning = Tuning()
    assert (tuning.store_failures, tuning.failure_window_ms) == (3, 5_000)
    assert (tuning.store_timeouts, tuning.timeout_window_ms) == (100, 10_000)
    assert (tuning.probe_interval_ms, tuning.ramp_ms) == (10_000, 30_000)
    assert (tuning.store_deadline_us, tuning.reserved_percent) == (5_000, 10)
    assert (HOT_PER_S, LEASE_MS) == (5_000, 500)
