"""Pods learn from whole answers, as from streamed ones, how many letters a token of the output has."""

import json
from typing import Any

import pytest

from fuseboard.llm.dialects import dialect_of
from fuseboard.llm.usage import Usage
from tools.demo.model_formats import ANSWERS, WORD, Charged, Scenario

#: All but embeddings have an output.
PATHS = [path for path in ANSWERS if path != "/v1/embeddings"]
#: Path -> where a whole answer has its text.
TEXTS = {"/v1/messages": "content", "/v1/responses": "output"}


def whole(path: str, words: int = 60) -> dict[str, Any]:
    return ANSWERS[path](Scenario(words=words), Charged(fresh=100, body={"model": "m"})).whole()


def read(path: str, document: dict[str, Any]) -> Usage:
    usage, dialect = Usage(), dialect_of("POST", path)
    assert dialect is not None
    dialect.read_answer(json.dumps(document, separators=(",", ":")).encode(), usage)
    return usage


@pytest.mark.parametrize("path", PATHS)
def test_a_whole_answer_has_letters(path: str) -> None:
    usage = read(path, whole(path))
    assert (usage.input, usage.output, usage.letters) == (100, 60, 60 * len(WORD))


def test_thoughts_and_calls_of_tools_are_letters_too() -> None:
    blocks = [
        {"type": "thinking", "thinking": "hmm"},
        {"type": "tool_use", "id": "t1", "input": {"city": "Rome"}},
    ]
    assert read("/v1/messages", whole("/v1/messages") | {"content": blocks}).letters == 3 + len(
        '{"city":"Rome"}'
    )
    items = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hmm"}]},
        {"type": "function_call", "call_id": "c1", "arguments": '{"city":"Rome"}'},
        {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]},
    ]
    assert read("/v1/responses", whole("/v1/responses") | {"output": items}).letters == 3 + 15 + 2


@pytest.mark.parametrize("path", TEXTS)
@pytest.mark.parametrize("odd", [None, 7, "text", [1], [{"text": 1, "content": 1}], {"a": [[]]}])
def test_a_text_in_another_form_does_not_cost_the_usage(path: str, odd: Any) -> None:
    usage = read(path, whole(path) | {TEXTS[path]: odd})
    assert (usage.input, usage.output, usage.letters) == (100, 60, 0)
