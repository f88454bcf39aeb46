"""Estimates of what a call will use, learned by dependency, endpoint and model in each pod."""

import math
from string import ascii_letters, digits
from weakref import WeakKeyDictionary

from fuseboard.agent_api.arguments import MAX_ACTUAL
from fuseboard.llm.usage import Usage

#: Letters per token before the first answer: the body of a request has names and marks too.
INPUT_LETTERS, OUTPUT_LETTERS = 3.0, 4.0
#: Inputs are estimated so much higher than learned.
MARGIN = 1.05
#: Before so many answers, an output is estimated by what the request allows.
MIN_ANSWERS = 10
#: The part of what is learned that a new answer replaces, once there are many.
LEARNING = 0.02
#: An answer that is shorter says nothing about letters per token.
MIN_TOKENS = 50
#: Estimates are rounded up to a power of this: like calls are decided together.
STEP = 1.25
#: The most that a request without a bound is estimated at before answers are known.
UNBOUNDED = 4096
#: An image, sound or file in base64 counts as so many letters, however long it is: about 1,400 tokens.
DATA_LETTERS = 4096
#: Models that a pod learns apart. A request may contain any name.
MAX_MODELS = 1000

#: The longest beginning of a URL with data.
MAX_KIND = 200
_BASE64 = f"{ascii_letters}{digits}+/=_-".encode()


def letters_in(body: bytes) -> int:
    """The letters of a request, as far as they are text: no vendor charges an image by its base64."""
    letters = len(body)
    if letters > DATA_LETTERS:
        for text in body.split(b'"'):
            if len(text) > DATA_LETTERS and _is_data(text):
                letters -= len(text) - DATA_LETTERS
    return letters


def _is_data(text: bytes) -> bool:
    """Base64, also in a URL such as ``data:image/png;base64,...``."""
    kind, _, data = text.rpartition(b",")
    return len(kind) <= MAX_KIND and not data.translate(None, _BASE64)


class Learned:
    """The answers of one model at one endpoint. Two threads that add at once may lose one of them."""

    __slots__ = ("answers", "deviation", "input_rate", "mean", "output_rate")

    def __init__(self) -> None:
        self.answers = 0
        #: Tokens per letter.
        self.input_rate, self.output_rate = 1 / INPUT_LETTERS, 1 / OUTPUT_LETTERS
        #: The tokens of an output, and how far from their mean outputs are on average. A few very long ones
        #: move that less than a standard deviation.
        self.mean = self.deviation = 0.0

    def input_of(self, letters: int) -> int:
        """The tokens of an input of so many letters."""
        return math.ceil(letters * self.input_rate)

    def output_of(self, letters: int) -> int:
        """The tokens of an output of so many letters."""
        return math.ceil(letters * self.output_rate)

    def next_input(self, letters: int) -> int:
        return math.ceil(letters * self.input_rate * MARGIN)

    def next_output(self, most: int | None) -> int:
        """The mean and two mean deviations, at most what the request allows."""
        if self.answers < MIN_ANSWERS:
            return UNBOUNDED if most is None else most
        learned = math.ceil(self.mean + 2 * self.deviation)
        return learned if most is None else min(learned, most)

    def add(self, letters: int, counted: int, usage: Usage) -> None:
        """An answer to a request of so many letters. Limits count ``counted`` tokens of its input."""
        self.answers += 1
        rate = max(LEARNING, 1 / self.answers)
        if usage.input >= MIN_TOKENS and letters:
            self.input_rate += rate * (counted / letters - self.input_rate)
        if usage.output >= MIN_TOKENS and usage.letters:
            self.output_rate += rate * (usage.output / usage.letters - self.output_rate)
        self.mean += rate * (usage.output - self.mean)
        self.deviation += rate * (abs(usage.output - self.mean) - self.deviation)


def stepped(known: int, guessed: int = 0, most: int | None = None) -> int:
    """The reserve for tokens that are known to come, and for those of an answer: their sum, rounded up.

    A bound on an answer, and rounding, make no call impossible: the reserve is at most what a limit can ever
    admit, unless what is known alone is more.
    """
    tokens = min(max(1, known + guessed), MAX_ACTUAL)
    rounded = math.ceil(STEP ** math.ceil(math.log(tokens) / math.log(STEP) - 1e-9))
    return rounded if most is None or rounded <= most else max(known, most)


class Estimates:
    """The estimates of one agent. All its clients share them."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], Learned] = {}

    def find(self, dependency: str, endpoint: str, model: str) -> Learned:
        key = (dependency, endpoint, model)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_MODELS:
                self._known.clear()
            known = self._known.setdefault(key, Learned())
        return known


_of_agents: WeakKeyDictionary[object, Estimates] = WeakKeyDictionary()


def estimates_of(agent: object) -> Estimates:
    return _of_agents.setdefault(agent, Estimates())
