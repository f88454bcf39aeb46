"""A transport that knows calls to language models, below any client: the wire is guarded, not the client.

``fuseboard.llm.httpx`` and ``fuseboard.llm.httpx2`` have the transports of both libraries.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import time
from typing import Any, Unpack

from fuseboard.agent import Agent
from fuseboard.agent_api.options import CallOptions, TransportOptions, list_options
from fuseboard.blocking import Agent as BlockingAgent
from fuseboard.calling.classification import MAY_BE_CHARGED, classify, examine
from fuseboard.calling.current_tenant import current_tenant
from fuseboard.calling.failures import kind_of
from fuseboard.calling.observer import ModelSpan, Observer
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract.models import Model, price_at
from fuseboard.contract.words import is_slug
from fuseboard.decision import Permit
from fuseboard.errors import Refused
from fuseboard.integrations.http_bodies import Body
from fuseboard.integrations.httpx_family import Guard
from fuseboard.llm.dialects import Dialect, dialect_of
from fuseboard.llm.dialects.dialect import Asked
from fuseboard.llm.estimate import estimates_of, letters_in
from fuseboard.llm.model_call import ModelBody, ModelCall, settle_unanswered
from fuseboard.llm.usage import measures_of

#: The key of a request's ``extensions`` that has its call.
_CALL = "fuseboard.model_call"
#: The header in which a client of OpenAI or Anthropic counts its own repetitions of a request.
_REPEATED = "x-stainless-retry-count"
_NOT_REPEATED = (
    "the request failed before, and this client tried to repeat it: it was not sent, because the retry policy"
    " of the dependency decides. Leave max_retries at 0, and pass retry=True to fuseboard.guard"
)
#: Longer names of models, which clients may make up, are cut.
MAX_MODEL = 200
#: The longest name of a dependency.
MAX_NAME = 64


class ModelGuard(Guard[Any]):
    """The part of an ``LlmTransport`` that both libraries, and both kinds of clients, share.

    It reserves the tokens of a call before the request is sent, and settles them by the usage in the answer.
    Requests that ask no model, such as those for files, cost a call and nothing else.

    Without ``dependency``, a request belongs to the pool of its model, if the policy has the model and it has
    one; else to the dependency with the name of its host. So ``gpt-5.2`` may have its own limits, and
    ``api.openai.com`` has those of all other models. The price of the model applies in any dependency. The
    tenant is that of the request that is served, or of ``fuseboard.tenant``, unless ``tenant`` names one.

    ``add_usage``: ask for the usage of streamed chat completions. Its event is hidden from a client that did
    not ask for it.
    """

    #: The error for a request that the client repeats itself: ``fuseboard.guard`` lets no client do that. Any
    #: client that takes a transport may.
    _not_repeated: Callable[..., Exception] | None = None

    @list_options(transport=None)
    def __init__(
        self,
        agent: Agent | BlockingAgent,
        *,
        dependency: str = "",
        transport: Any = None,
        add_usage: bool = True,
        **options: Unpack[TransportOptions],
    ) -> None:
        super().__init__(agent, dependency=dependency, transport=transport, **options)  # type: ignore[call-arg, misc]
        self._add_usage = add_usage
        self._estimates = estimates_of(agent)

    async def handle_async_request(self, request: Any) -> Any:
        request = self._prepared(request)
        try:
            answer = await super().handle_async_request(request)  # type: ignore[misc]
        except BaseException as error:
            _end(request, error)
            raise
        return self._final(request, answer)

    def handle_request(self, request: Any) -> Any:
        request = self._prepared(request)
        try:
            answer = super().handle_request(request)  # type: ignore[misc]
        except BaseException as error:
            _end(request, error)
            raise
        return self._final(request, answer)

    def _final(self, request: Any, answer: Any) -> Any:
        """The answer, which the client does not ask for again."""
        call = request.extensions.get(_CALL)
        if call is not None and answer.status_code >= 300:
            call.ended("" if answer.status_code < 400 else f"HTTP {answer.status_code}")
        if self._not_repeated is not None and answer.status_code >= 400:
            answer.headers["x-should-retry"] = "false"
        return answer

    def _prepared(self, request: Any) -> Any:
        """The request to send, with its call."""
        if self._not_repeated is not None and request.headers.get(_REPEATED, "0") != "0":
            raise self._not_repeated(message=_NOT_REPEATED, request=request)
        # A request that follows a redirect has the extensions of the one before.
        request.extensions = {name: value for name, value in request.extensions.items() if name != _CALL}
        dialect = dialect_of(request.method, request.url.path)
        if dialect is None or not self._repeats(request):
            return request  # nothing to count, or a body that is not known before it is sent
        # Such a request has no ``content``.
        body = b"".join(request.stream)
        asked, added = Asked(), None
        # The vendor will say what is wrong with a body. If it finds nothing, the call has its costs still.
        with suppress(ValueError, RecursionError):
            asked = dialect.asked(body)
            added = dialect.with_usage(body) if asked.streams and self._add_usage else None
        if added is not None:
            request = self._with_body(request, added)
        # An answer is read while it is handed on.
        request.headers["accept-encoding"] = "identity"
        call = self._model_call(dialect, asked, request.url.host, letters_in(body), hides=added is not None)
        request.extensions = {**request.extensions, _CALL: call}
        return request

    def _with_body(self, request: Any, body: bytes) -> Any:
        headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
        return self._library.Request(
            request.method, request.url, headers=headers, content=body, extensions=request.extensions
        )

    def _model_call(
        self, dialect: Dialect, asked: Asked, host: str, letters: int, *, hides: bool
    ) -> ModelCall:
        snapshot = self._snapshot()
        model = snapshot.model(asked.model) if snapshot is not None else None
        dependency = self._dependency_of(host, model)
        name = model.name if model is not None else asked.model[:MAX_MODEL]
        price = price_at(model, time()) if model is not None else None
        options = self._options_now()
        counters = getattr(self._agent, "counters", None)
        call = ModelCall(
            dialect,
            asked,
            dependency,
            model=name,
            price=price,
            letters=letters,
            learned=self._estimates.find(dependency, dialect.path, name),
            hides=hides,
            options=options,
            ledger=counters.usage if counters is not None else None,
            span=self._span(dialect, asked, name, dependency, host),
        )
        tenant = options.get("tenant", "")
        measures = measures_of(snapshot, dependency, tenant, priced=price is not None)
        if measures:
            options["costs"] = call.reserve(measures)
            options["spend_costs"] = True
        return call

    def _span(
        self, dialect: Dialect, asked: Asked, model: str, dependency: str, host: str
    ) -> ModelSpan | None:
        observer: Observer | None = getattr(self._agent, "observer", None)
        if observer is None:
            return None
        with suppress(Exception):  # a defect of OpenTelemetry must not fail the call
            return observer.model_called(
                operation=dialect.operation,
                provider=dialect.provider,
                asked=asked.model[:MAX_MODEL],
                model=model,
                dependency=dependency,
                host=host,
            )
        return None

    def _options_now(self) -> CallOptions:
        options = super()._options_now()
        return {**options, "tenant": options.get("tenant") or current_tenant()}

    def _snapshot(self) -> Snapshot | None:
        # The agent of an application's test has no configuration.
        configuration = getattr(self._agent, "configuration", None)
        return configuration.snapshot if configuration is not None else None

    def _dependency_of(self, host: str, model: Model | None = None) -> str:
        """The names in a request choose among published models only: no request may choose a dependency."""
        if self._dependency:
            return self._dependency
        if model is not None and model.pool:
            return model.pool
        return host if is_slug(host) else named_by(host)

    def _call_of(self, request: Any) -> tuple[str, CallOptions]:
        call = request.extensions.get(_CALL)
        if call is not None:
            return call.dependency, call.options
        dependency, options = self._dependency_of(request.url.host), self._options_now()
        if dialect_of(request.method, request.url.path) is None:
            # It asks no model, so limits on tokens and money do not miss it.
            measures = measures_of(self._snapshot(), dependency, "", priced=True)
            options["costs"] = dict.fromkeys(measures, 0) if measures else None
        return dependency, options

    async def _send(self, request: Any, given: Any, permit: Permit) -> Any:
        try:
            answer = await super()._send(request, given, permit)  # type: ignore[safe-super]
        except Exception as error:
            if classify(error).sent:
                _keep_estimate(request)
            else:
                settle_unanswered(permit)
            raise
        except BaseException:
            _keep_estimate(request)
            raise
        if answer.status_code in MAY_BE_CHARGED:
            _keep_estimate(request)
        return answer

    def _succeed(self, permit: Permit, answer: Any, elapsed_s: float, request: Any, given: Any) -> None:
        if answer.status_code >= 300:
            settle_unanswered(permit)  # a redirect: the request that follows it reserves its own
        super()._succeed(permit, answer, elapsed_s, request, given)

    def _body_of(self, request: Any, answer: Any) -> Callable[..., Body]:
        call = request.extensions.get(_CALL)
        # A redirect is no answer of a model, and is not in the ledger.
        return Body if call is None or answer.status_code >= 300 else partial(ModelBody, call)


def _end(request: Any, error: BaseException) -> None:
    """The call has no answer."""
    call = request.extensions.get(_CALL)
    if call is not None:
        call.ended(str(error.decision.reason) if isinstance(error, Refused) else kind_of(examine(error)))


def _keep_estimate(request: Any) -> None:
    """The vendor has the request, and charges what it has made of it."""
    call = request.extensions.get(_CALL)
    if call is not None:
        call.keep_estimate(wasted=True)


def named_by(host: str) -> str:
    """The name of the dependency of a host that is no such name, like an IPv6 address."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", host)[-MAX_NAME:].strip("._-") or "unknown-host"
