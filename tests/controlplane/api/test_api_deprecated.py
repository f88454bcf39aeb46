"""Old names of the API still work, are marked and are counted."""

from typing import Any

import pytest
from prometheus_client import REGISTRY

from controlplane.api.api import api
from controlplane.api.http.deprecated import deprecated
from tests.controlplane.api.test_api_everything import WHY
from tests.controlplane.calling import API, problem

BREAKER = f"{API}/breakers/openai"
OVERRIDE = {"mode": "forced_open", "expires_in_s": 60, **WHY}
#: Old operation -> the new one. Both are under a breaker.
RENAMED = {"hold": "override", "release": "end-override"}


def all_uses() -> dict[str, float]:
    """Name -> how often it was used, as /metrics has it."""
    ours = REGISTRY.restricted_registry(["fuseboard_deprecated_use_total"])
    return {sample.labels["name"]: sample.value for family in ours.collect() for sample in family.samples}


def uses(name: str) -> float:
    return all_uses().get(name, 0.0)


def test_an_old_operation_does_what_the_new_one_does_and_is_counted(production: str, call: Any) -> None:
    before = {old: uses(f"POST /breakers/{{dependency}}/{old}") for old in RENAMED}
    for begin, end in (("hold", "release"), ("override", "end-override")):
        assert call("operator", "POST", f"{BREAKER}/{begin}", OVERRIDE).status_code == 200
        assert call("viewer", "GET", BREAKER).json()["override"]["mode"] == "forced_open"
        assert call("operator", "POST", f"{BREAKER}/{end}", WHY).status_code == 200
        assert call("viewer", "GET", BREAKER).json()["override"] is None
    assert {old: uses(f"POST /breakers/{{dependency}}/{old}") - before[old] for old in RENAMED} == {
        "hold": 1,
        "release": 1,
    }


def test_a_request_that_is_not_allowed_uses_nothing(production: str, call: Any) -> None:
    name = "POST /breakers/{dependency}/hold"
    before = uses(name)
    problem(call("viewer", "POST", f"{BREAKER}/hold", OVERRIDE), 403)
    problem(call("operator", "POST", f"{BREAKER}/hold", {"mode": "ajar"}), 422)
    assert uses(name) == before


def test_the_description_marks_exactly_the_old_names() -> None:
    paths = api.get_openapi_schema()["paths"]
    marked = {
        path.rpartition("/")[2]
        for path, methods in paths.items()
        for operation in methods.values()
        if operation.get("deprecated")
    }
    assert marked == RENAMED.keys()
    for old, new in RENAMED.items():
        path = "/api/v1/{environment}/breakers/{dependency}"
        assert f"``{new}``" in paths[f"{path}/{old}"]["post"]["description"]
        assert not paths[f"{path}/{new}"]["post"].get("deprecated")


def test_every_operation_that_is_marked_is_counted() -> None:
    marked = [
        operation
        for bound in api._get_bound_routers()
        for view in bound.path_operations.values()
        for operation in view.operations
        if operation.deprecated
    ]
    assert len(marked) == len(RENAMED)
    assert {f"POST /breakers/{{dependency}}/{old}" for old in RENAMED} <= all_uses().keys()


def test_the_operation_keeps_its_name_and_raises_as_before() -> None:
    @deprecated("POST /anything")
    def old(number: int) -> float:
        """What it is."""
        return 1 / number

    assert (old.__name__, old.__doc__, old(2), uses("POST /anything")) == ("old", "What it is.", 0.5, 1)
    with pytest.raises(ZeroDivisionError):
        old(0)
    assert uses("POST /anything") == 2
