"""A small OpenID Connect provider on loopback, whose claims the test sets."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs

import jwt

SECRET = "only for the tests, and long enough for HS256"


@dataclass
class Provider:
    url: str = ""
    #: The claims about every person who logs in.
    person: dict[str, Any] = field(default_factory=dict)
    #: Requests to the token endpoint.
    asked: list[dict[str, str]] = field(default_factory=list)
    broken: bool = False


@contextmanager
def provider() -> Iterator[Provider]:
    state = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.endswith("/.well-known/openid-configuration"):
                self.answer(
                    {
                        "issuer": state.url,
                        "authorization_endpoint": f"{state.url}/authorize",
                        "token_endpoint": f"{state.url}/token",
                        "userinfo_endpoint": f"{state.url}/userinfo",
                        "jwks_uri": f"{state.url}/keys",
                        "token_endpoint_auth_methods_supported": ["client_secret_post"],
                    }
                )
            else:
                self.answer(state.person)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            state.asked.append({name: values[0] for name, values in parse_qs(body).items()})
            if state.broken:
                self.answer({"error": "invalid_grant"}, 400)
                return
            now = int(time.time())
            says = {**state.person, "iss": state.url, "aud": "fuseboard", "iat": now, "exp": now + 60}
            token = jwt.encode(says, SECRET, algorithm="HS256")
            self.answer({"access_token": "a", "token_type": "Bearer", "id_token": token})

        def answer(self, document: dict[str, Any], status: int = 200) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Writes no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
