"""Fits a conversation into the context window of a model."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct

from fuseboard.errors import FuseboardError, Misconfigured
from fuseboard.llm.history import Count, Message, begins_a_turn, counted, is_system, units

#: Makes one message of old ones, of at most so many tokens.
Summarize: TypeAlias = Callable[[list[Message], int], Message]

#: A summary is so many times shorter.
SHORTER = 4


class Shares(Struct, frozen=True, kw_only=True):
    """The parts of a window, in tokens. The output and the margin are left free."""

    system: int = 2_000
    history: int = 20_000
    documents: int = 8_000
    output: int = 2_000
    margin: int = 5_000


class Fitted(Struct, frozen=True, kw_only=True):
    """The messages and documents to send."""

    messages: list[Message]
    documents: list[str]
    #: All of it, with the system's text.
    tokens: int
    #: Messages that were left out, those in a summary among them, and documents that were left out.
    dropped_messages: int = 0
    dropped_documents: int = 0
    is_summarized: bool = False


class ContextTooLarge(FuseboardError):
    """The part of a request that may not be cut is larger than its room. Both in tokens."""

    def __init__(self, what: str, tokens: int, room: int) -> None:
        super().__init__(f"{what} has {tokens:,} tokens, and there is room for {room:,}: make it shorter")
        self.tokens, self.room = tokens, room


def fit(
    messages: Sequence[Message],
    *,
    window: int = 128_000,
    system: str = "",
    documents: Sequence[str] = (),
    shares: Shares = Shares(),  # noqa: B008 - it is immutable
    count: Count = counted,
    summarize: Summarize | None = None,
) -> Fitted:
    """The newest messages that fit into the window, and the first documents. Changes nothing itself.

    All numbers are tokens, by ``count``. System messages stay, wherever they are. The others are kept from
    the newest to the oldest without a hole, and a use of a tool with its answers or not at all. They begin
    with a message of the user if that is possible, as Anthropic demands. The last one is always kept.
    ``documents`` are in order of relevance: the first ones are kept until their share, or what the history
    leaves, is full. ``summarize`` gets the messages that would be left out, and how many tokens its message
    may have: a quarter of theirs.

    Raises ``ContextTooLarge`` if the system's text or the last message does not fit.
    """
    if min(shares.system, shares.history, shares.documents, shares.output, shares.margin) < 0 or window < 1:
        raise Misconfigured("the window and its shares are numbers of tokens of at least 0")
    fixed = [message for message in messages if is_system(message)]
    told = (count(system) if system else 0) + sum(map(count, fixed))
    free = window - shares.output - shares.margin
    if told > min(shares.system, free):
        raise ContextTooLarge("the text of the system", told, min(shares.system, free))
    room = free - told
    history = _History([message for message in messages if not is_system(message)], count)
    start, summary = history.cut(min(shares.history, room), room, summarize)
    kept = _in_order(messages, start, summary)
    used = history.tokens_from(start) + (count(summary) if summary is not None else 0)
    given = _first(documents, min(shares.documents, room - used), count)
    return Fitted(
        messages=kept,
        documents=given,
        tokens=told + used + sum(map(count, given)),
        dropped_messages=start,
        dropped_documents=len(documents) - len(given),
        is_summarized=summary is not None,
    )


class _History:
    """The messages that may be cut."""

    def __init__(self, messages: list[Message], count: Count) -> None:
        self._messages, self._count = messages, count
        self._starts = [run.start for run in units(messages)]
        #: The tokens of the messages from each place to the end.
        self._sums = [0]
        for message in reversed(messages):
            self._sums.append(self._sums[-1] + count(message))
        self._sums.reverse()

    def tokens_from(self, start: int) -> int:
        return self._sums[start]

    def cut(self, share: int, room: int, summarize: Summarize | None) -> tuple[int, Message | None]:
        """Where to begin, and a summary of what comes before."""
        if self._sums[0] <= share:
            return 0, None
        last = self._starts[-1]
        if self._sums[last] > room:
            raise ContextTooLarge("the last message", self._sums[last], room)
        # The last message may have more than the share of the history: the documents get less.
        most = max(share, self._sums[last])
        start = self._first_start(most)
        if summarize is None:
            return start, None
        # With a summary, less of the rest has room: its quarter is reserved first.
        start = self._first_start(
            max(self._sums[last], most - (self._sums[0] - self._sums[start]) // SHORTER)
        )
        left = min((self._sums[0] - self._sums[start]) // SHORTER, most - self._sums[start])
        if left < 1 or start == 0:
            return start, None
        summary = summarize(self._messages[:start], left)
        return start, summary if self._count(summary) <= left else None

    def _first_start(self, most: int) -> int:
        """The earliest place whose rest has at most so many tokens."""
        starts = [start for start in self._starts if self._sums[start] <= most]
        turns = [start for start in starts if begins_a_turn(self._messages[start])]
        return min(turns or starts)


def _in_order(messages: Sequence[Message], start: int, summary: Message | None) -> list[Message]:
    """System messages, and the others from the place ``start`` among them. A summary is where they begin."""
    kept: list[Message] = []
    place = 0
    for message in messages:
        if is_system(message):
            kept.append(message)
            continue
        if place == start and summary is not None:
            kept.append(summary)
        if place >= start:
            kept.append(message)
        place += 1
    return kept


def _first(documents: Sequence[str], most: int, count: Count) -> list[str]:
    kept: list[str] = []
    for document in documents:
        most -= count(document)
        if most < 0:
            break
        kept.append(document)
    return kept
