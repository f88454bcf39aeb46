"""One call to a model: what it reserves, and what it is charged in the end."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from fuseboard.agent import Agent
from fuseboard.agent_api.options import CallOptions
from fuseboard.blocking import Agent as BlockingAgent
from fuseboard.calling.classification import Verdict, examine
from fuseboard.calling.failures import kind_of
from fuseboard.calling.observer import ModelSpan
from fuseboard.contract.models import Price, micro_usd
from fuseboard.decision import Permit
from fuseboard.integrations.guarded_request import STREAM_KIND
from fuseboard.integrations.http_bodies import Body, is_stream
from fuseboard.llm.dialects import Dialect
from fuseboard.llm.dialects.dialect import Asked
from fuseboard.llm.document import Document
from fuseboard.llm.estimate import Learned, stepped
from fuseboard.llm.stream import EventReader, data_of
from fuseboard.llm.usage import MEASURES, MICRO_USD, SETTLED, Usage
from fuseboard.reporting.usage_tallies import UsageTallies, Used


class ModelCall:
    """A request, whatever its attempts."""

    __slots__ = (
        "asked",
        "dependency",
        "dialect",
        "hides",
        "learned",
        "ledger",
        "letters",
        "model",
        "options",
        "price",
        "span",
    )

    def __init__(
        self,
        dialect: Dialect,
        asked: Asked,
        dependency: str,
        *,
        model: str,
        price: Price | None,
        letters: int,
        learned: Learned,
        hides: bool,
        options: CallOptions,
        ledger: UsageTallies | None = None,
        span: ModelSpan | None = None,
    ) -> None:
        self.dialect, self.asked, self.dependency = dialect, asked, dependency
        #: The name of the published model, whatever alias the request has; else the name in the request.
        self.model = model
        #: The price when the call began, which applies until it ends; ``None`` for none.
        self.price = price
        #: Letters in the body of the request.
        self.letters = letters
        self.learned = learned
        #: The event with the usage was not asked for by the client.
        self.hides = hides
        self.options = options
        #: The usage of the call is added here; the agent of an application's test has none.
        self.ledger = ledger
        #: Shows the call to people, if OpenTelemetry is on.
        self.span = span

    def reserve(self, measures: Mapping[str, int | None]) -> dict[str, int]:
        """The costs to state: at least 1 of each measure, because a call of no cost cannot be corrected."""
        known = self.learned.next_input(self.letters)
        guessed = max(0, self.learned.next_output(self.asked.most))
        amounts = {
            "tokens": (known, guessed),
            "input_tokens": (known, 0),
            "fresh_tokens": (known, 0),
            "output_tokens": (0, guessed),
        }
        if self.price is not None:
            sure = micro_usd(self.price, fresh=known)
            amounts[MICRO_USD] = (sure, micro_usd(self.price, fresh=known, output=guessed) - sure)
        return {measure: stepped(*amounts.get(measure, (0, 0)), most) for measure, most in measures.items()}

    def settle(self, permit: Permit, usage: Usage, *, wasted: bool = False, shown: bool = False) -> None:
        """By what the vendor has reported; for what it has not, by what came.

        ``wasted``: the answer did not come to its end. ``shown``: its span has the usage.
        """
        dialect, learned = self.dialect, self.learned
        estimated = not (usage.has_input and usage.has_output)
        if usage.has_input and usage.has_output:
            counted = usage.amount("input_tokens", counts_cached=dialect.counts_cached)
            learned.add(self.letters, counted, usage)
        if not usage.has_input:
            usage.fresh = learned.input_of(self.letters)
        if not usage.has_output:
            usage.output = max(usage.output, learned.output_of(usage.letters))
        for measure in permit.estimated.intersection(MEASURES):
            permit.settle(measure, usage.amount(measure, counts_cached=dialect.counts_cached))
        if self.price is not None and MICRO_USD in permit.estimated:
            permit.settle(MICRO_USD, usage.cost(self.price))
        self._enter(usage, wasted=wasted, estimated=estimated, shown=shown)

    def keep_estimate(self, *, wasted: bool) -> None:
        """The answer says nothing of its usage. The reserve stays, and the ledger gets what was learned."""
        learned = self.learned
        usage = Usage(fresh=learned.input_of(self.letters), output=learned.next_output(self.asked.most))
        self._enter(usage, wasted=wasted, estimated=True)

    def _enter(self, usage: Usage, *, wasted: bool, estimated: bool, shown: bool = False) -> None:
        price, cost, saved = self.price, 0, 0
        if price is not None:
            cost = usage.cost(price)
            saved = micro_usd(price, fresh=usage.input, output=usage.output) - cost
        if self.span is not None and not shown:
            self.show(usage, wasted=wasted, estimated=estimated)
        if self.ledger is None:
            return
        used = Used(
            calls=usage.calls,
            fresh=usage.fresh,
            cached=usage.cached,
            written=usage.written,
            output=usage.output,
            micro_usd=cost,
            wasted=usage.calls * wasted,
            wasted_micro_usd=cost * wasted,
            estimated=usage.calls * estimated,
            estimated_micro_usd=cost * estimated,
            unpriced=usage.calls * (price is None),
            saved_micro_usd=saved,
        )
        self.ledger.add(self.model, self.dependency, self.options.get("tenant", ""), used)

    def show(self, usage: Usage, *, wasted: bool = False, estimated: bool = False) -> None:
        """Put the usage into the span."""
        span, price = self.span, self.price
        if span is None:
            return
        with suppress(Exception):  # an exporter must not fail the call
            span.used(
                fresh=usage.fresh,
                cached=usage.cached,
                written=usage.written,
                output=usage.output,
                micro_usd=None if price is None else usage.cost(price),
                estimated=estimated,
                wasted=wasted,
            )

    def ended(self, error: str = "") -> None:
        """The call is over, and its answer is read. ``error`` is the kind of its failure."""
        if self.span is not None:
            with suppress(Exception):
                self.span.end(error)


def settle_unanswered(permit: Permit) -> None:
    """No model has got the request: it cost nothing."""
    for measure in permit.estimated.intersection(SETTLED):
        permit.settle(measure, 0)


class ModelBody(Body):
    """The body of a good answer. Its usage is settled when it ends, breaks off or is left."""

    def __init__(
        self,
        call: ModelCall,
        stream: Any,
        agent: Agent | BlockingAgent,
        permit: Permit,
        elapsed_s: float,
        headers: Mapping[str, str],
        late: Callable[[str], Exception],
    ) -> None:
        super().__init__(stream, agent, permit, elapsed_s, headers, late)
        self._call = call
        self._usage = Usage()
        self._settled = self._ended = self._shown = False
        self._events: EventReader | None = None
        self._document: Document | None = None
        plain = "json" not in (headers.get("content-type") or "")
        if self._encoded:
            return  # the request asks for no encoding, and this vendor has one: its estimate stays
        if is_stream(headers) or (call.asked.streams and plain):
            self._events = EventReader(self._read_event, hides=call.hides)
        else:
            self._document = Document()

    def look(self, part: bytes) -> bytes:
        kept = part
        if self._events is not None:
            kept = self._events.feed(part)
            if self._call.span is not None:
                self._show_early()
        elif self._document is not None:
            self._document.add(part)
        super().look(part)
        return kept

    def rest(self) -> bytes:
        self._ended = True
        return self._events.finish() if self._events is not None else b""

    def failed(self, verdict: Verdict) -> None:
        self._settle()
        super().failed(verdict)
        self._call.ended(self._permit.failure[0] if self._permit.failure is not None else STREAM_KIND)

    def ended(self) -> None:
        self._settle()
        super().ended()
        self._call.ended()

    def broke(self, error: BaseException) -> None:
        self._settle()
        super().broke(error)
        self._call.ended(kind_of(examine(error)))

    def __del__(self) -> None:
        if not self._settled and not self._permit.reported:
            self._settled = True
            call, permit, usage = self._call, self._permit, self._usage
            if self._events is not None:
                shown = self._shown
                self._agent.soon(lambda: call.settle(permit, usage, wasted=not usage.has_output, shown=shown))
            else:
                self._agent.soon(lambda: call.keep_estimate(wasted=True))
            self._agent.soon(call.ended)
        super().__del__()

    def _read_event(self, event: bytes) -> bool:
        dialect = self._call.dialect
        for hint in dialect.hints:
            if hint in event:
                break
        else:
            return False
        try:
            return dialect.read_event(data_of(event), self._usage)
        except Exception:
            return False  # an event that this agent does not know must not break the answer

    def _settle(self) -> None:
        """Once. A whole answer that is left early was made all the same: its estimate stays."""
        if self._settled:
            return
        self._settled = True
        if self._knows_usage():
            # The usage comes last, and a client may leave after it.
            wasted = self._events is not None and not (self._ended or self._usage.has_output)
            self._call.settle(self._permit, self._usage, wasted=wasted, shown=self._shown)
        else:
            self._call.keep_estimate(wasted=not self._ended)

    def _show_early(self) -> None:
        """When the usage is whole: a client that has a span itself ends it at the last event it reads."""
        if not self._shown and self._usage.has_input and self._usage.has_output:
            self._shown = True
            self._call.show(self._usage)

    def _knows_usage(self) -> bool:
        """Whether the answer has its usage, or could be counted as it came."""
        if self._document is None:
            return self._events is not None
        if not self._ended:
            return False
        try:
            self._document.read(self._call.dialect, self._usage)
        except Exception:
            return False  # an answer that this agent does not know
        finally:
            self._document = None
        return self._usage.has_input
