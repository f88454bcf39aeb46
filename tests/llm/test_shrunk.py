"""``shrunk`` cuts what a model has found too large, and no more than it must."""

import copy
from random import Random
from typing import Any

import msgspec
import pytest

from fuseboard import Misconfigured
from fuseboard.llm import shrinking, shrunk
from fuseboard.llm.estimate import letters_in
from fuseboard.llm.history import is_system
from fuseboard.testing import FakeAgent, no_sleep
from tests.agents.retry_world import HttpError
from tests.llm.test_context_window import conversation, ids

LONG = "This is a sentence. " * 100


def letters(messages: Any) -> int:
    return len(msgspec.json.encode(messages))


def test_the_longest_text_of_a_user_ends_at_a_sentence():
    messages = [
        {"role": "system", "content": LONG},
        {"role": "user", "content": "Short. " * 5},
        {"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": LONG}]},
    ]
    before = copy.deepcopy(messages)
    small: Any = shrunk(messages, 0.75)
    assert messages == before
    assert small[:2] == messages[:2]
    image, text = small[2]["content"]
    assert image == {"type": "image_url"}
    assert LONG.startswith(text["text"])
    assert text["text"].endswith("sentence.")
    assert 0.7 * letters(messages) < letters(small) <= 0.75 * letters(messages)


def test_a_text_without_sentences_is_cut_where_it_must():
    (small,) = shrunk([{"role": "user", "content": "x" * 4000}], 0.5)
    assert 1900 <= len(small["content"]) <= 2000


def test_thousands_of_conversations_keep_their_system_and_whole_uses_of_tools():
    random = Random(3)
    shorter = 0
    for _ in range(2_000):
        messages = conversation(random)
        small: Any = shrunk(messages)
        assert letters(small) <= letters(messages)
        assert [one for one in small if is_system(one)] == [one for one in messages if is_system(one)]
        asked: set[str] = set()
        for message in small:
            asks, answers = ids(message)
            asked |= asks
            assert answers <= asked
        assert small[-1].get("role") == messages[-1].get("role")
        shorter += letters(small) <= 0.75 * letters(messages)
    assert shorter > 1_500


def test_what_cannot_be_cut_is_equal():
    messages = [{"role": "system", "content": LONG}, {"role": "user", "content": "Hello"}]
    assert shrunk(messages) == messages
    assert shrunk([]) == []


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": f"answer {number}"} for number in range(2_000)],
        [{"role": "user", "content": "A question of some length. " * 12} for _ in range(1_000)],
        [
            {
                "role": "user",
                "content": [{"type": "text", "text": "A part of it. " * 60} for _ in range(1_000)],
            }
        ],
    ],
    ids=["messages", "texts", "blocks"],
)
def test_a_long_conversation_is_counted_a_few_times_and_not_once_for_each_text(
    messages: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    counted = 0

    def count(body: bytes) -> int:
        nonlocal counted
        counted += len(body)
        return letters_in(body)

    monkeypatch.setattr(shrinking, "letters_in", count)
    small = shrunk(messages, 0.5)
    assert 0.4 * letters(messages) < letters(small) <= 0.5 * letters(messages)
    assert counted <= 6 * letters(messages)


def test_a_text_of_points_is_searched_once():
    """A search for their end from each of them would take minutes."""
    (small,) = shrunk([{"role": "user", "content": f"It ends. {'.' * 400_000}"}], 0.5)
    assert 199_000 < len(small["content"]) < 200_100


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"{'a' * 250}. {'b' * 60}", f"{'a' * 250}."),
        (f'{"a" * 250}." ) {"b" * 60}', f'{"a" * 250}."'),
        (f"{'a' * 250}\n{'b' * 60}", "a" * 250),
        (f"{'a' * 250}?!\t{'b' * 60}", f"{'a' * 250}?!"),
    ],
)
def test_a_text_is_cut_after_what_ends_a_sentence(text: str, kept: str):
    (small,) = shrunk([{"role": "user", "content": text}], 0.85)
    assert small["content"] == kept


@pytest.mark.parametrize("part", [0, 1, 1.5])
def test_a_part_is_a_part(part: float):
    with pytest.raises(Misconfigured, match="between 0 and 1"):
        shrunk([], part)


async def test_a_request_that_is_too_large_is_asked_again_with_less():
    agent = FakeAgent()
    asked: list[int] = []
    messages: list[Any] = [{"role": "user", "content": LONG}]

    def smaller(_: Any) -> bool:
        nonlocal messages
        before, messages = messages, shrunk(messages, 0.75)
        return messages != before

    async def ask() -> None:
        async for attempt in agent.retrying("llm", shrink=smaller):
            async with attempt:
                asked.append(letters(messages))
                raise HttpError(413)

    with no_sleep(), pytest.raises(HttpError):
        await ask()
    assert len(asked) == 3
    assert asked == sorted(asked, reverse=True)
