"""The services for Envoy over HTTP/1.1, behind Envoy's filter ``grpc_http1_reverse_bridge``.

Envoy turns its request of gRPC into a POST whose body is the message, and the answer into one of gRPC.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

from fuseboard.envoy.access_log import EXPORT, EXPORT_OVER_HTTP, AccessLog
from fuseboard.envoy.asks import InvalidMessage
from fuseboard.envoy.service import SHOULD_RATE_LIMIT, Answered, RateLimitService
from fuseboard.serving.exchange import Answer, Request

PROTOBUF = "application/x-protobuf"

Export: TypeAlias = Callable[[bytes], Coroutine[Any, Any, Answered]]


def methods(service: RateLimitService, log: AccessLog) -> Mapping[str, Export]:
    """The methods of gRPC that Envoy calls, by their paths."""
    return {SHOULD_RATE_LIMIT: service.answer, EXPORT: log.answer}


class Bridge:
    """Each path has a function over bytes. ``/v1/logs`` is that of OpenTelemetry over HTTP."""

    def __init__(self, service: RateLimitService, log: AccessLog) -> None:
        self._paths: Mapping[str, Export] = {**methods(service, log), EXPORT_OVER_HTTP: log.answer}

    def handle(self, request: Request) -> Answer | Coroutine[Any, Any, Answer]:
        serve = self._paths.get(request.path)
        if serve is None:
            return _text(404, f"this listener answers {', '.join(self._paths)}")
        if request.method != "POST":
            return _text(405, "use POST")._replace(headers=(("allow", "POST"),))
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != PROTOBUF:
            return _text(415, f"send content-type: {PROTOBUF}")
        return _answer(serve, request.body)


async def _answer(serve: Export, body: bytes) -> Answer:
    try:
        answered = await serve(body)
    except InvalidMessage as error:
        return _text(400, str(error))
    return Answer(200, answered.body, PROTOBUF, unsent=answered.unsent)


def _text(status: int, detail: str) -> Answer:
    """No decision: Envoy lets the request pass, unless its filter says otherwise."""
    return Answer(status, detail.encode(), "text/plain; charset=utf-8")
