"""What pods and shells depend on is as version 0.1.0 had it, or more."""

from typing import Any

import pytest

from tests.contract.compat import agent_side
from tests.contract.compat.compare import broken_commands, check, missing_names, missing_values
from tests.contract.compat.release import ROOT

COMPARED = {
    "cli": broken_commands,
    "variables_of_agents": missing_names,
    "redis_keys": missing_values,
}


def test_everything_that_is_recorded_is_compared() -> None:
    assert COMPARED.keys() == agent_side.SURFACES.keys()


@pytest.mark.parametrize("name", COMPARED)
def test_it_is_as_recorded(name: str) -> None:
    today: Any = agent_side.SURFACES[name](ROOT)
    check(name, today, COMPARED[name])
