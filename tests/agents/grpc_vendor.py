"""A gRPC server behind a real socket. The text of a request says how the call ends."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

#: The kinds of calls, and whether the client and the server send a stream.
KINDS = {
    "unary_unary": (False, False),
    "unary_stream": (False, True),
    "stream_unary": (True, False),
    "stream_stream": (True, True),
}


def retry_info(wait_ms: int) -> bytes:
    """The details of a status that asks to wait."""
    delay = Duration()
    delay.FromMilliseconds(wait_ms)
    detail = AnyMessage()
    detail.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status_pb2.Status(code=8, message="spent", details=[detail]).SerializeToString()


class GrpcVendor:
    """Requests: ``ok``, a number of messages, ``hang`` or ``hang 1`` after one, ``fail 1 STATUS`` after one,
    ``STATUS``, ``STATUS pushback 250``, ``STATUS info 250``.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.timeouts: list[float | None] = []
        #: A call that hung has ended here, too.
        self.ended = threading.Event()
        #: A call that never answers is not waited for, so there are as many threads as tests hang calls.
        self._server = grpc.server(ThreadPoolExecutor(max_workers=32))
        self._server.add_generic_rpc_handlers((self._handlers(),))
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(None).wait()

    def _handlers(self) -> Any:
        made = {}
        for name, (client_streams, server_streams) in KINDS.items():
            method = self._many if server_streams else self._one
            make = getattr(grpc, f"{name}_rpc_method_handler")
            serve = self._joined(method) if client_streams else method
            made[name] = make(serve, request_deserializer=bytes.decode, response_serializer=str.encode)
        return grpc.method_handlers_generic_handler("vendor", made)

    def _joined(self, method: Any) -> Any:
        return lambda requests, context: method(" ".join(requests), context)

    def _one(self, asked: str, context: Any) -> str:
        return next(self._many(asked, context), "")

    def _many(self, asked: str, context: Any) -> Iterator[str]:
        self.calls += 1
        self.timeouts.append(context.time_remaining())
        word, *more = asked.split()
        # The server runs no more of this method when the client has left.
        left = word == "hang" and not context.add_callback(self.ended.set)
        if word in ("hang", "fail"):
            for number in range(int(more[0]) if more else 0):
                yield str(number)
        if word == "hang":
            if not left:
                self.ended.wait(60)
        elif word == "fail":
            self._abort(more[1], (), context)
        elif word.isdigit():
            yield from map(str, range(int(word)))
        elif word == "ok":
            yield "fine"
        else:
            self._abort(word, more, context)

    def _abort(self, status: str, more: Any, context: Any) -> None:
        if more and more[0] == "pushback":
            context.set_trailing_metadata((("grpc-retry-pushback-ms", more[1]),))
        elif more:
            context.set_trailing_metadata((("grpc-status-details-bin", retry_info(int(more[1]))),))
        context.abort(grpc.StatusCode[status], "no")


@pytest.fixture
def grpc_vendor() -> Iterator[GrpcVendor]:
    vendor = GrpcVendor()
    yield vendor
    vendor.stop()


def stub(channel: Any, kind: str) -> Any:
    """The method of this kind on a channel, sync or of an event loop."""
    return getattr(channel, kind)(
        f"/vendor/{kind}", request_serializer=str.encode, response_deserializer=bytes.decode
    )
