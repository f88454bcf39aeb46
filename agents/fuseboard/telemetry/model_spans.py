"""A span for each call to a model, by the semantic conventions for generative AI. It has no text of calls."""

from opentelemetry.trace import Span, SpanKind, StatusCode, get_current_span, get_tracer
from opentelemetry.util.types import AttributeValue

from fuseboard.telemetry import words


class ModelSpans:
    """The part of an ``Observer`` that shows calls to models."""

    def __init__(self) -> None:
        self._tracer = get_tracer("fuseboard")

    def model_called(
        self, *, operation: str, provider: str, asked: str, model: str, dependency: str, host: str
    ) -> "CallSpan | None":
        around = get_current_span()
        if around.is_recording() and words.OPERATION in (getattr(around, "attributes", None) or {}):
            # The client shows its calls itself, as that of Anthropic does, or an instrumentation does it.
            # A second span would double the tokens.
            return CallSpan(around, _names(asked, model), ours=False)
        named: dict[str, AttributeValue] = {
            words.OPERATION: operation,
            words.PROVIDER: provider,
            words.SERVER_ADDRESS: host,
            words.DEPENDENCY: dependency,
        }
        names = _names(asked, model)
        span = self._tracer.start_span(
            f"{operation} {asked}".rstrip(), kind=SpanKind.CLIENT, attributes={**named, **names}
        )
        return CallSpan(span, names) if span.is_recording() else None


def _names(asked: str, model: str) -> dict[str, AttributeValue]:
    return {words.REQUEST_MODEL: asked, words.MODEL: model} if asked else {}


class CallSpan:
    """A ``ModelSpan``. ``ours``: it was begun here, so it is ended here. Another one keeps what it says."""

    def __init__(self, span: Span, named: dict[str, AttributeValue], *, ours: bool = True) -> None:
        self._span, self._named, self._ours = span, named, ours
        #: The sums of all attempts.
        self._tokens: dict[str, int] = {}

    def used(
        self,
        *,
        fresh: int,
        cached: int,
        written: int,
        output: int,
        micro_usd: int | None,
        estimated: bool,
        wasted: bool,
    ) -> None:
        if not self._span.is_recording():
            return  # it was of the application, and is over
        tokens = {
            words.INPUT_TOKENS: fresh + cached + written,
            words.CACHE_READ_TOKENS: cached,
            words.CACHE_WRITTEN_TOKENS: written,
            words.OUTPUT_TOKENS: output,
        }
        if micro_usd is not None:
            tokens[words.COST_MICRO_USD] = micro_usd
        flags: dict[str, AttributeValue] = {words.ESTIMATED: estimated, words.WASTED: wasted}
        self._span.add_event(words.USAGE_EVENT, {**self._named, **tokens, **flags})
        for name, amount in tokens.items():
            self._tokens[name] = self._tokens.get(name, 0) + amount
        said = {} if self._ours else getattr(self._span, "attributes", None) or {}
        known = {**self._named, **self._tokens, **flags}
        self._span.set_attributes(
            {
                name: value
                for name, value in known.items()
                if not (name.startswith("gen_ai.") and name in said)
            }
        )

    def end(self, error: str = "") -> None:
        if not self._ours or not self._span.is_recording():
            return
        if error:
            self._span.set_attribute(words.ERROR_TYPE, error)
            self._span.set_status(StatusCode.ERROR)
        self._span.end()
