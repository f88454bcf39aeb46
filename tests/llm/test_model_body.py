"""How the body of an answer is settled, without a network: once, by its usage, or else by what came.

Two bugs in the settlement are made by hand, and the examples notice each.
"""

import json
import types
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fuseboard.contract.words import Outcome
from fuseboard.decision import Charge, Decision, Permit
from fuseboard.llm import model_call
from fuseboard.llm.dialects import DIALECTS
from fuseboard.llm.dialects.dialect import Asked, Dialect
from fuseboard.llm.document import MAX_END, Document
from fuseboard.llm.estimate import Learned
from fuseboard.llm.stream import MAX_READ
from fuseboard.llm.usage import MEASURES, Usage
from tests.agents.mutating import Mutant, mutated
from tools.demo.model_formats import (
    Answer,
    Charged,
    Chat,
    Completions,
    Embeddings,
    Messages,
    Responses,
    Scenario,
)

CHAT, RESPONSES, EMBEDDINGS, MESSAGES, COMPLETIONS = DIALECTS
#: A dialect, and the vendor's side of it.
SIDES: list[tuple[Dialect, type[Answer]]] = [
    (CHAT, Chat),
    (RESPONSES, Responses),
    (EMBEDDINGS, Embeddings),
    (MESSAGES, Messages),
    (COMPLETIONS, Completions),
]
INPUT, WORDS = 120, 30


class Pod:
    """One call whose estimates are charged, and what becomes of them."""

    def __init__(self) -> None:
        self.settled: list[tuple[str, int]] = []
        self.reports: list[Outcome] = []
        demand = SimpleNamespace(measures=("calls", *MEASURES), has_estimates=True, holds_slots=False)
        charge = Charge(domain="", demand=demand, at_us=0, token="")
        decision = Decision(allowed=True, charges=(charge,))
        self.permit = Permit(made=decision, dependency="llm", generation=0, settler=self.settle)

    def settle(self, decision: Decision, measure: str, actual: int) -> None:
        self.settled.append((measure, actual))

    def report(self, permit: Permit, outcome: Outcome, *_: Any, **__: Any) -> None:
        if not permit.reported:
            permit.reported = True
            self.reports.append(outcome)

    def soon(self, what: Callable[[], None]) -> None:
        what()

    @property
    def charged(self) -> dict[str, int]:
        """The first correction of each measure counts, as that of an account."""
        return dict(reversed(self.settled))


class Broken(Exception):
    """The connection is lost."""


def answer(side: type[Answer], stream: bool) -> tuple[list[bytes], Charged]:
    """The parts of an answer, and its bill."""
    charged = Charged(fresh=INPUT, output=WORDS, body={"stream_options": {"include_usage": True}})
    made = side(Scenario(words=WORDS), charged)
    if not stream:
        text = json.dumps(made.whole()).encode()
        return [text[at : at + 50] for at in range(0, len(text), 50)], charged
    made.begin()
    for _ in range(WORDS):
        made.word()
    made.end()
    return [event.encode() for event in made.events], charged


def body_of(
    module: types.ModuleType, pod: Pod, dialect: Dialect, parts: Iterator[bytes], stream: bool, **headers: str
) -> Any:
    call = module.ModelCall(
        dialect,
        Asked("m", stream, 1000),
        "llm",
        model="m",
        price=None,
        letters=400,
        learned=Learned(),
        hides=False,
        options={},
    )
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    kind = "text/event-stream" if stream else "application/json"

    class Stream:
        def __iter__(self) -> Iterator[bytes]:
            return parts

        def close(self) -> None:
            """Nothing is open."""

    return module.ModelBody(call, Stream(), pod, pod.permit, 0.0, {"content-type": kind} | named, Broken)


def broken_after(parts: list[bytes], count: int) -> Iterator[bytes]:
    yield from parts[:count]
    raise Broken


def a_whole_answer_costs_its_bill(module: types.ModuleType, stream: bool) -> None:
    for dialect, side in SIDES:
        if stream and side is Embeddings:
            continue
        parts, charged = answer(side, stream)
        if side is Embeddings:
            charged.output = 0
        pod = Pod()
        body = body_of(module, pod, dialect, iter(parts), stream)
        assert list(body.parts()) == parts
        body.close()
        body.close()
        counted = charged.fresh + charged.written + (charged.cached if dialect.counts_cached else 0)
        assert pod.charged["input_tokens"] == counted
        assert pod.charged["tokens"] == counted + charged.output
        assert pod.charged["cached_tokens"] == charged.cached
        assert pod.charged["written_tokens"] == charged.written
        assert body._call.learned.answers == 1
        assert pod.reports == [Outcome.OK]


def a_broken_stream_costs_what_came(module: types.ModuleType) -> None:
    for dialect, side in SIDES:
        if side is Embeddings:
            continue
        parts, charged = answer(side, True)
        for count in range(len(parts) - 2):
            pod = Pod()
            body = body_of(module, pod, dialect, broken_after(parts, count), True)
            with pytest.raises(Broken):
                list(body.parts())
            assert pod.charged != {}
            body.close()
            words = b"".join(parts[:count]).count(b" word")
            assert words <= pod.charged["output_tokens"] <= 1.25 * words + 1
            if side is Messages and count:
                assert pod.charged["input_tokens"] == charged.fresh + charged.written
            else:
                assert pod.charged["input_tokens"] == 134  # 400 letters
            assert pod.reports == [Outcome.FAILURE]


def an_error_event_costs_what_came(module: types.ModuleType) -> None:
    for dialect, side in ((CHAT, Chat), (MESSAGES, Messages)):
        made = side(Scenario(), Charged(fresh=INPUT, body={}))
        made.begin()
        for _ in range(4):
            made.word()
        made.fail({"code": 429, "type": "rate_limit_error", "message": "slower"})
        pod = Pod()
        body = body_of(module, pod, dialect, iter([event.encode() for event in made.events]), True)
        list(body.parts())
        body.close()
        assert pod.charged["output_tokens"] == 5  # 20 letters
        assert pod.reports == [Outcome.NEUTRAL]


def a_whole_answer_that_is_left_keeps_its_estimate(module: types.ModuleType) -> None:
    parts, _ = answer(Chat, False)
    pod = Pod()
    body = body_of(module, pod, CHAT, iter(parts), False)
    next(body.parts())
    body.close()
    assert pod.settled == []
    assert pod.reports == [Outcome.OK]


def an_answer_without_usage_keeps_its_estimate(module: types.ModuleType) -> None:
    for text in (b'{"object": "list"}', b"[]", b"no"):
        pod = Pod()
        body = body_of(module, pod, CHAT, iter([text]), False)
        assert list(body.parts()) == [text]
        body.close()
        assert pod.settled == []


def a_compressed_answer_is_handed_on_and_keeps_its_estimate(module: types.ModuleType) -> None:
    for stream in (True, False):
        parts, _ = answer(Chat, stream)
        pod = Pod()
        body = body_of(module, pod, CHAT, iter(parts), stream, content_encoding="gzip")
        assert list(body.parts()) == parts
        body.close()
        assert pod.settled == []
        assert pod.reports == [Outcome.OK]


def a_forgotten_stream_is_settled(module: types.ModuleType) -> None:
    parts, _ = answer(Messages, True)
    pod = Pod()
    body = body_of(module, pod, MESSAGES, iter(parts), True)
    reading = body.parts()
    for _ in range(6):
        next(reading)
    reading.close()
    body.__del__()
    assert pod.charged["output_tokens"] == 5
    assert pod.reports == [Outcome.OK]


EXAMPLES: list[Callable[[types.ModuleType], None]] = [
    lambda module: a_whole_answer_costs_its_bill(module, False),
    lambda module: a_whole_answer_costs_its_bill(module, True),
    a_broken_stream_costs_what_came,
    an_error_event_costs_what_came,
    a_whole_answer_that_is_left_keeps_its_estimate,
    an_answer_without_usage_keeps_its_estimate,
    a_compressed_answer_is_handed_on_and_keeps_its_estimate,
    a_forgotten_stream_is_settled,
]
MUTANTS = [
    Mutant(
        "the usage of a stream that breaks is not settled",
        "    def broke(self, error: BaseException) -> None:\n        self._settle()\n",
        "    def broke(self, error: BaseException) -> None:\n",
    ),
    Mutant(
        "an error event is settled as an answered error",
        "    def failed(self, verdict: Verdict) -> None:\n        self._settle()\n",
        "    def failed(self, verdict: Verdict) -> None:\n",
    ),
    Mutant(
        "a call is settled twice",
        "            return\n        self._settled = True\n",
        "            return\n",
    ),
    Mutant(
        "what came counts instead of the usage",
        "        if not usage.has_output:\n            usage.output",
        "        if usage.letters:\n            usage.output",
    ),
    Mutant(
        "the input that the vendor has reported is estimated",
        "        if not usage.has_input:\n            usage.fresh",
        "        if not usage.has_output:\n            usage.fresh",
    ),
    Mutant(
        "what was read from the cache always counts",
        "usage.amount(measure, counts_cached=dialect.counts_cached)",
        "usage.amount(measure, counts_cached=True)",
    ),
    Mutant(
        "an answer that reports no usage costs what is guessed",
        "        return self._usage.has_input\n",
        "        return True\n",
    ),
]


@pytest.mark.parametrize("usage_at", ["end", "middle"])
def test_of_a_long_answer_the_end_is_kept(usage_at: str):
    document, usage = Document(), Usage()
    vectors = b'{"data": ["usage", ' + b"0.5, " * 1000
    document.add(vectors)
    for _ in range(2 * MAX_READ // len(vectors)):
        document.add(vectors)
    end = b' 1], "usage" : {"prompt_tokens": 77}, "model": "m"}'
    if usage_at == "middle":
        end = end[:-1] + b', "metadata": "' + b"x" * 2 * MAX_END + b'"}'
        document.add(end)
        document.add(b"x" * MAX_READ)
        with pytest.raises(ValueError, match="no usage"):
            document.read(EMBEDDINGS, usage)
        return
    document.add(end)
    assert len(document._kept) <= MAX_READ
    document.read(EMBEDDINGS, usage)
    assert (usage.input, usage.has_output) == (77, True)


@pytest.mark.parametrize("example", range(len(EXAMPLES)))
def test_an_example_holds(example: int):
    EXAMPLES[example](model_call)


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_of_the_settlement_is_noticed(mutant: Mutant):
    module = mutated(model_call, mutant)
    assert any(notices(example, module) for example in EXAMPLES)


def notices(example: Callable[[types.ModuleType], None], module: types.ModuleType) -> bool:
    try:
        example(module)
    except (Exception, pytest.fail.Exception):
        return True
    return False
