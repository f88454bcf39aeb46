"""What pods and shells depend on is as version 0.1.0 had it, or more."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contract.compat import agent_side, release
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


#: Reads documents with the code of the version that runs it, and prints what it understood.
READS = """
import json, sys
from fuseboard.contract.policy import decode_policy, decode_tenant, encode_policy, encode_tenant
policy, tenant = (line.encode() for line in sys.stdin.read().splitlines())
found = encode_policy(decode_policy(policy)), encode_tenant(decode_tenant(tenant))
print(json.dumps([document.decode() for document in found]))
"""
NEW = ("accounts", "budgets", "models")


@pytest.mark.parametrize("names", [("policy.budgets", "tenant.budgets"), ("policy.models", "tenant.1")])
@pytest.mark.parametrize("commit", [release.FIRST.commit, "239105b8"])
def test_agents_before_budgets_and_models_accept_a_policy_with_them_and_ignore_them(
    commit: str, names: tuple[str, str]
) -> None:
    source = release.source(commit)
    golden = Path(__file__).parents[1] / "golden"
    documents = [(golden / f"{name}.json").read_text().strip() for name in names]
    read = subprocess.run(
        [sys.executable, "-c", READS],
        input="\n".join(documents),
        env={"PYTHONPATH": str(source / "agents")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [json.loads(found) for found in json.loads(read.stdout)] == [
        without(json.loads(document)) for document in documents
    ]


def without(document: Any) -> Any:
    if isinstance(document, list):
        return [without(each) for each in document]
    if isinstance(document, dict):
        return {name: without(value) for name, value in document.items() if name not in NEW}
    return document
