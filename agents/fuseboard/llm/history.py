"""Messages of a conversation, in the formats of OpenAI and Anthropic, as far as they must stay together."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from fuseboard.llm.estimate import INPUT_LETTERS, letters_in

Message: TypeAlias = Mapping[str, Any]
#: Counts the tokens of a text or of a message.
Count: TypeAlias = Callable[[Any], int]

#: Messages of these roles are never cut.
SYSTEM = frozenset({"system", "developer"})


def counted(text_or_message: Any) -> int:
    """Tokens, by the letters: more than most models count."""
    return math.ceil(letters_in(msgspec.json.encode(text_or_message)) / INPUT_LETTERS)


def is_system(message: Message) -> bool:
    return message.get("role") in SYSTEM


def begins_a_turn(message: Message) -> bool:
    """A person or a program asks something, and no tool answers."""
    return message.get("role") == "user" and not any(_answered(message))


def units(messages: Sequence[Message]) -> list[range]:
    """Runs of messages that stay together, such as a use of tools with all its answers. In order, without
    gaps.
    """
    asked: dict[str, int] = {}
    runs: list[range] = []
    for place, message in enumerate(messages):
        begins = min([asked[name] for name in _answered(message) if name in asked], default=place)
        if place and messages[place - 1].get("type") == "reasoning":
            begins = min(begins, place - 1)  # vendors refuse it without what it has led to
        while runs and runs[-1].stop > begins:
            begins = min(begins, runs.pop().start)
        runs.append(range(begins, place + 1))
        for name in _asked(message):
            asked[name] = place
    return runs


def _asked(message: Message) -> Iterator[str]:
    """The ids of the uses of tools that a message asks for."""
    for call in message.get("tool_calls") or ():
        yield str(call.get("id"))
    if message.get("type") == "function_call":
        yield str(message.get("call_id"))
    for block in _blocks(message):
        if block.get("type") == "tool_use":
            yield str(block.get("id"))


def _answered(message: Message) -> Iterator[str]:
    """The ids of the uses of tools that a message answers."""
    if message.get("role") == "tool":
        yield str(message.get("tool_call_id"))
    if message.get("type") == "function_call_output":
        yield str(message.get("call_id"))
    for block in _blocks(message):
        if block.get("type") == "tool_result":
            yield str(block.get("tool_use_id"))


def _blocks(message: Message) -> Iterator[Mapping[str, Any]]:
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        yield from (block for block in content if isinstance(block, Mapping))
