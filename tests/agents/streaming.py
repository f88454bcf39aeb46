"""A vendor of language models behind a real socket: it streams the parts that a test gives it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def chat(text: str) -> bytes:
    """One part of OpenAI's stream."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
OPENAI_ERROR = b'data: {"error": {"message": "sorry", "type": "server_error", "code": "server_error"}}\n\n'
ANTHROPIC_ERROR = (
    b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}\n\n'
)


def message(text: str) -> bytes:
    """One part of Anthropic's stream."""
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
    return b"event: content_block_delta\ndata: " + json.dumps(delta).encode() + b"\n\n"


def begin_message() -> bytes:
    usage = {"input_tokens": 3, "output_tokens": 0}
    begun = {"id": "1", "type": "message", "role": "assistant", "model": "m", "content": []}
    begun |= {"stop_reason": None, "stop_sequence": None, "usage": usage}
    start = {"type": "message_start", "message": begun}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in (start, block)
    )


class StreamingVendor:
    """``parts``: seconds to wait before each part, and the part. ``ended`` ends every wait.

    With ``cuts``, the connection closes after the last part, where more should follow.
    """

    def __init__(self) -> None:
        self.parts: list[tuple[float, bytes]] = []
        self.headers = {"Content-Type": "text/event-stream"}
        self.status = 200
        self.cuts = False
        self.requests = 0
        self.ended = threading.Event()
        self.url = ""


@contextmanager
def streaming_vendor() -> Iterator[StreamingVendor]:
    vendor = StreamingVendor()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            vendor.requests += 1
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(vendor.status)
            for name, text in vendor.headers.items():
                self.send_header(name, text)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for delay_s, part in vendor.parts:
                    if delay_s and vendor.ended.wait(delay_s):
                        return
                    self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                if vendor.cuts:
                    self.close_connection = True
                    return
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    vendor.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield vendor
    finally:
        vendor.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
