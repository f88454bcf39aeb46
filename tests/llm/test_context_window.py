"""``fit`` on thousands of made-up conversations of both vendors."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from fuseboard import Misconfigured
from fuseboard.llm import ContextTooLarge, Shares, fit
from fuseboard.llm.history import counted, is_system, units

#: An acceptance figure: conversations that are cut at random windows.
HISTORIES = 10_000


def words(random: Random, most: int) -> str:
    return "word " * random.randrange(1, most)


def openai_tools(random: Random, number: int) -> Iterator[dict[str, Any]]:
    names = [f"call-{number}-{n}" for n in range(random.randrange(1, 4))]
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in names]
    yield {"role": "assistant", "content": None, "tool_calls": calls}
    for name in names:
        yield {"role": "tool", "tool_call_id": name, "content": words(random, 60)}


def anthropic_tools(random: Random, number: int) -> Iterator[dict[str, Any]]:
    names = [f"use-{number}-{n}" for n in range(random.randrange(1, 4))]
    used = [{"type": "tool_use", "id": name, "name": "f", "input": {}} for name in names]
    yield {"role": "assistant", "content": [{"type": "text", "text": "I look."}, *used]}
    answers = [{"type": "tool_result", "tool_use_id": name, "content": words(random, 60)} for name in names]
    yield {"role": "user", "content": answers}


def responses_tools(random: Random, number: int) -> Iterator[dict[str, Any]]:
    yield {"type": "reasoning", "id": f"r-{number}", "summary": []}
    yield {"type": "function_call", "call_id": f"c-{number}", "name": "f", "arguments": "{}"}
    yield {"type": "function_call_output", "call_id": f"c-{number}", "output": words(random, 60)}


def conversation(random: Random) -> list[dict[str, Any]]:
    tools = random.choice([openai_tools, anthropic_tools, responses_tools])
    found: list[dict[str, Any]] = []
    for number in range(random.randrange(1, 12)):
        if random.random() < 0.1:
            found.append({"role": random.choice(["system", "developer"]), "content": words(random, 8)})
        found.append({"role": "user", "content": words(random, 120)})
        for n in range(random.randrange(3)):
            found += tools(random, 10 * number + n)
        if random.random() < 0.9:
            found.append({"role": "assistant", "content": words(random, 120)})
    return found


def ids(message: dict[str, Any]) -> tuple[set[str], set[str]]:
    """The uses of tools that a message asks for, and those that it answers."""
    blocks = message.get("content") if isinstance(message.get("content"), list) else []
    asks = {call["id"] for call in message.get("tool_calls") or ()}
    asks |= {block["id"] for block in blocks or () if block["type"] == "tool_use"}
    answers = {block["tool_use_id"] for block in blocks or () if block["type"] == "tool_result"}
    if message.get("role") == "tool":
        answers.add(message["tool_call_id"])
    kind = message.get("type")
    if kind in ("function_call", "function_call_output"):
        (asks if kind == "function_call" else answers).add(message["call_id"])
    return asks, answers


def summarize(messages: list[Any], most: int) -> dict[str, Any]:
    return {"role": "user", "content": "x" * max(0, (most - 12) * 3)}


def test_a_fitted_history_is_never_over_its_window_has_no_hole_and_whole_uses_of_tools():
    random = Random(20)
    cut = refused = summarized = 0
    for _ in range(HISTORIES):
        messages = conversation(random)
        documents = [words(random, 90) for _ in range(random.randrange(4))]
        window = random.randrange(150, 2500)
        shares = Shares(system=60, history=random.randrange(50, 1500), documents=200, output=50, margin=20)
        hook = summarize if random.random() < 0.3 else None
        try:
            fitted = fit(
                messages, window=window, documents=documents, shares=shares, system="Be kind.", summarize=hook
            )
        except ContextTooLarge:
            refused += 1
            continue
        total = counted("Be kind.") + sum(map(counted, fitted.messages)) + sum(map(counted, fitted.documents))
        assert fitted.tokens == total <= window - 50 - 20
        assert fitted.documents == documents[: len(documents) - fitted.dropped_documents]
        assert [one for one in fitted.messages if is_system(one)] == [
            one for one in messages if is_system(one)
        ]
        others = [one for one in messages if not is_system(one)]
        kept = [one for one in fitted.messages if not is_system(one)]
        if fitted.is_summarized:
            summary = kept.pop(0)
            assert summary["content"].strip("x") == ""
            summarized += 1
        assert kept == others[fitted.dropped_messages :]
        assert kept
        asked: set[str] = set()
        answered: set[str] = set()
        for message in kept:
            asks, answers = ids(dict(message))
            asked, answered = asked | asks, answered | answers
        assert answered <= asked
        assert kept[0].get("type") != "function_call"
        cut += fitted.dropped_messages > 0
    # The windows are of all kinds.
    assert min(cut, refused, summarized) > HISTORIES // 50


def test_what_fits_is_left_as_it_is():
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    fitted = fit(messages, documents=["one", "two"])
    assert (fitted.messages, fitted.documents) == (messages, ["one", "two"])
    assert (fitted.dropped_messages, fitted.dropped_documents, fitted.is_summarized) == (0, 0, False)
    assert fit([]).messages == []


def test_a_small_message_is_not_kept_beyond_one_that_was_left_out():
    sizes = {"a": 10, "b": 500, "c": 10, "d": 10}
    messages = [{"role": "user", "content": name} for name in sizes]
    shares = Shares(history=100)
    fitted = fit(messages, shares=shares, count=lambda one: sizes[one["content"]])
    assert [one["content"] for one in fitted.messages] == ["c", "d"]


def test_a_history_begins_with_a_person_if_it_can():
    roles = ["user", "assistant", "user", "assistant", "user"]
    messages = [{"role": role, "content": str(place)} for place, role in enumerate(roles)]
    four = fit(messages, shares=Shares(history=4), count=lambda _: 1).messages
    assert [one["content"] for one in four] == ["2", "3", "4"]


def test_a_summary_has_a_quarter_of_what_it_replaces():
    messages = [{"role": "user", "content": str(number)} for number in range(20)]
    asked: list[tuple[int, int]] = []

    def brief(old: list[Any], most: int) -> dict[str, str]:
        asked.append((len(old), most))
        return {"role": "user", "content": "summary"}

    def count(one: Any) -> int:
        return 10 if one["content"] != "summary" else 20

    fitted = fit(messages, shares=Shares(history=120), count=count, summarize=brief)
    ((old, most),) = asked
    assert most <= old * 10 // 4
    assert [one["content"] for one in fitted.messages[:2]] == ["summary", str(old)]
    assert sum(map(count, fitted.messages)) <= 120
    # A summary that is too long is not used.
    fitted = fit(
        messages, shares=Shares(history=120), count=lambda _: 10, summarize=lambda *_: {"content": "s"}
    )
    assert sum(10 for _ in fitted.messages) <= 120


def test_documents_get_what_the_history_leaves():
    messages = [{"role": "user", "content": "long"}]
    shares = Shares(system=10, history=50, documents=100, output=10, margin=0)

    def count(one: Any) -> int:
        return 80 if isinstance(one, dict) else 10

    fitted = fit(messages, window=120, documents=[str(n) for n in range(9)], shares=shares, count=count)
    assert (fitted.tokens, fitted.documents, fitted.dropped_documents) == (110, ["0", "1", "2"], 6)


def test_a_text_that_may_not_be_cut_and_does_not_fit_is_an_error_that_says_what_to_do():
    with pytest.raises(ContextTooLarge, match=r"the text of the system has \d,\d+ tokens") as caught:
        fit([], system="word " * 5_000)
    assert (caught.value.room, caught.value.tokens > 2_000) == (2_000, True)
    with pytest.raises(ContextTooLarge, match=r"the last message has .* make it shorter"):
        fit([{"role": "user", "content": "word " * 5_000}], window=8_000)
    with pytest.raises(Misconfigured, match="at least 0"):
        fit([], shares=Shares(output=-1))


def test_uses_of_tools_that_cross_are_one_unit():
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [{"id": "a"}]},
        {"role": "assistant", "tool_calls": [{"id": "b"}]},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "assistant", "content": "done"},
    ]
    assert units(messages) == [range(0, 1), range(1, 5), range(5, 6)]
    assert units([{"role": "tool", "tool_call_id": "unknown"}]) == [range(0, 1)]
