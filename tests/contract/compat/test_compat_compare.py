"""The comparison with the record finds what would break somebody, and lets additions pass."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.compat import openapi, python_api
from tests.contract.compat.compare import (
    broken_commands,
    broken_shapes,
    check,
    missing_names,
    missing_values,
    recorded,
)
from tests.contract.compat.shapes import shape

Change = Callable[[Any], Any]


def changed(name: str, change: Change) -> tuple[Any, Any]:
    old = recorded(name)
    new = copy.deepcopy(old)
    change(new)
    return old, new


def command(tree: Any, *names: str) -> Any:
    found = tree["fuseboard"]
    for name in names:
        found = found["commands"][name]
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: command(t, "ctl")["commands"].pop("hold"), "fuseboard ctl hold: there is no such command"),
        (lambda t: command(t, "ctl", "hold")["options"].pop("--mode"), "--mode is missing"),
        (
            lambda t: command(t, "ctl", "plan")["options"]["--prune"].update(takes="text"),
            "--prune: takes was",
        ),
        (
            lambda t: command(t, "ctl", "plan")["options"].update({"--x": {"required": True}}),
            "--x is new and",
        ),
        (lambda t: command(t, "ctl", "hold")["options"]["--mode"]["choices"].pop(), "metrics_only cannot be"),
        (lambda t: command(t, "ctl", "revisions")["options"]["--limit"].update(default=50), "default was 20"),
        (lambda t: command(t, "ctl", "trip")["arguments"].clear(), "argument 1 (dependency) is missing"),
        (
            lambda t: command(t, "ctl", "trip")["arguments"].append({"name": "x", "required": True}),
            "argument x is new and required",
        ),
        (
            lambda t: command(t, "ctl")["one_of"].append({"options": ["--environment"], "required": True}),
            "one of --environment is required now",
        ),
    ],
)
def test_of_commands(change: Change, said: str) -> None:
    def with_groups(tree: Any) -> None:
        command(tree, "ctl").setdefault("one_of", [])
        change(tree)

    old, new = changed("cli", with_groups)
    (found,) = broken_commands(old, new)
    assert said in found


def test_commands_may_be_added_and_called_otherwise_in_the_help() -> None:
    def add(tree: Any) -> None:
        command(tree, "ctl")["commands"]["override"] = {"options": {"--mode": {"required": True}}}
        command(tree, "ctl", "hold")["options"]["--until"] = {"takes": "text"}
        command(tree, "ctl", "hold")["options"]["--mode"]["choices"].append("later")
        command(tree, "ctl", "hold")["arguments"][0]["name"] = "vendor"

    assert not list(broken_commands(*changed("cli", add)))


def hold_in(document: Any) -> Any:
    return document["schemas"]["HoldIn"]


HOLD = "POST /api/v1/{environment}/breakers/{dependency}/hold"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["operations"].pop(HOLD), f"{HOLD} is missing"),
        (lambda d: d["operations"][HOLD].update(id="hold"), "operationId was controlplane_api_breakers_hold"),
        (lambda d: d["operations"][HOLD]["parameters"].pop("path dependency"), "path dependency is missing"),
        (
            lambda d: d["operations"][HOLD]["parameters"].update({"query x": {"required": True}}),
            "query x is new and required",
        ),
        (lambda d: d["operations"][HOLD]["answers"].pop("409"), "answer 409 is missing"),
        (lambda d: d["operations"][HOLD]["answers"]["200"].update(headers=[]), "no header Idempotency"),
        (lambda d: d["schemas"].pop("Done"), "schema Done is missing"),
        (lambda d: hold_in(d)["properties"].pop("mode"), "HoldIn: field mode is missing"),
        (lambda d: hold_in(d)["required"].remove("mode"), "HoldIn: field mode was required"),
        (lambda d: hold_in(d)["required"].append("until"), "HoldIn: field until is new and required"),
        (lambda d: hold_in(d)["properties"]["mode"]["enum"].pop(), "HoldIn.mode: 'disabled' is missing"),
        (lambda d: hold_in(d)["properties"]["reason"].update(type="integer"), "type was 'string'"),
        (lambda d: hold_in(d)["properties"]["reason"].update(maxLength=9), "maxLength was 500, is 9"),
        (lambda d: hold_in(d)["properties"]["reason"].update(minLength=9), "minLength was 8, is 9"),
        (
            lambda d: d["schemas"]["BreakerOut"]["properties"]["until"]["anyOf"].pop(),
            'BreakerOut.until: anyOf has no {"type": "null"}',
        ),
    ],
)
def test_of_the_api(change: Change, said: str) -> None:
    found = list(openapi.broken(*changed("openapi", change)))
    assert any(said in line for line in found), found


def test_the_api_may_grow() -> None:
    def grow(document: Any) -> None:
        document["operations"]["POST /new"] = document["operations"][HOLD] | {"id": "new"}
        hold_in(document)["properties"]["until"] = {"type": "string"}
        hold_in(document)["properties"]["reason"] |= {"minLength": 1, "maxLength": 501}
        hold_in(document)["properties"]["mode"]["enum"].append("later")
        document["schemas"]["RevisionOut"]["properties"]["at"] = {"type": "string"}
        document["schemas"]["RevisionOut"]["required"].append("at")

    assert not list(openapi.broken(*changed("openapi", grow)))


def test_prose_of_the_api_is_not_compared() -> None:
    document = {
        "paths": {
            "/x": {"get": {"operationId": "x", "summary": "one", "responses": {200: {"description": "a"}}}}
        },
        "components": {
            "schemas": {
                "X": {
                    "title": "X",
                    "properties": {"title": {"type": "string", "title": "Title"}},
                    "type": "object",
                }
            }
        },
    }
    assert openapi.compact(document) == {
        "operations": {"GET /x": {"id": "x", "parameters": {}, "answers": {"200": {}}}},
        "schemas": {"X": {"type": "object", "properties": {"title": {"type": "string"}}}},
    }


def test_of_names_and_values() -> None:
    assert list(missing_names({"a": ["x", "y"]}, {"a": ["y", "z"], "b": []})) == ["  a: x is missing"]
    assert list(missing_names({"a": 1, "b": 2}, {"a": 2})) == ["  a: was 1, is 2", "  b is missing"]
    assert list(missing_values({"old_name": "fb1:x"}, {"new_name": "fb1:x"})) == []
    assert list(missing_values({"name": "fb1:x"}, {"name": "fb1:y"})) == ["  fb1:x (name) is missing"]


def test_of_documents() -> None:
    old = {"a": "number", "b": [{"c": "text", "d": "null"}]}
    assert not list(broken_shapes(old, shape({"a": 1.5, "b": [{"c": "x", "d": 3}, {"e": 1}], "f": True})))
    assert list(broken_shapes(old, shape({"a": "1", "b": [{"d": None}]}))) == [
        "  a was 'number', is 'text'",
        "  b.[].c is missing",
    ]


def test_a_failure_says_what_to_do() -> None:
    with pytest.raises(AssertionError, match=r"(?s)api.forget_old_replies is missing.*Keep the old name"):
        check("celery", {"tasks": [], "beat": {}}, missing_names)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (["tenant", "cost="], ["cost=", "tenant"], ["tenant is no longer argument 1", "cost is no longer"]),
        (["tenant", "*", "wait_s="], ["tenant"], ["wait_s is missing"]),
        (["tenant", "cost="], ["tenant", "cost"], ["cost is required now"]),
        (["tenant"], ["tenant", "*", "why"], ["why is new and required"]),
        (["tenant", "*", "wait_s="], ["tenant", "cost=", "*", "wait_s=", "why="], []),
        (["tenant", "*", "wait_s="], ["tenant", "wait_s="], []),
        (["*", "a="], ["**more"], []),
    ],
)
def test_of_functions(old: list[str], new: list[str], said: list[str]) -> None:
    found = list(python_api.broken({"check": old}, {"check": new}))
    assert len(found) == len(said)
    assert all(words in line for words, line in zip(said, found, strict=True))


def test_of_classes() -> None:
    old = {"Agent": {"has": {"mode": "value"}}, "Mode": {"values": ["shared"]}, "from_env": []}
    new = {"Agent": {"has": {"mode": []}}, "Mode": {"values": ["local"]}}
    assert list(python_api.broken(old, new)) == [
        "  Agent: has: mode: was 'value', is []",
        "  Mode: values: shared is missing",
        "  from_env is missing",
    ]
