"""What a gateway tells web processes of servers while Postgres cannot, and whom it tells."""

import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import msgspec
import pytest

from controlplane.fleet import signing, status_client
from controlplane.fleet.status_client import PATH, StatusAnswer, StatusClient, StatusQuestion
from fuseboard.contract.sync import BreakerView, Counters
from fuseboard.contract.words import BreakerState, Mode, OverrideMode
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat, client, post, ready_gateway
from tests.controlplane.gateway.test_gateway_overrides import hold

HELD = BreakerView(dependency="llm", override=OverrideMode.FORCED_OPEN)
OPEN = BreakerView(dependency="llm", state=BreakerState.OPEN, remaining_ms=60_000)


def question(clock: TurnedClock, **fields: Any) -> bytes:
    usual = {"environment": "production", "at_us": int(clock.wall() * 1_000_000)}
    return msgspec.json.encode(StatusQuestion(**{**usual, **fields}))


async def ask(gateway: Any, body: bytes, authorization: str | None = None) -> Any:
    said = signing.sign(body, salt=status_client._SALT) if authorization is None else authorization
    async with client(gateway) as http:
        return await http.post(PATH, content=body, headers={"authorization": said})


async def told(gateway: Any, clock: TurnedClock) -> StatusAnswer:
    answer = await ask(gateway, question(clock))
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=StatusAnswer)


async def test_the_answer_contains_pods_figures_and_overrides() -> None:
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    await post(gateway, beat("pod-1", breakers=(HELD,), mode=Mode.LOCAL, mode_cause="refused"))
    clock.turn(5)
    await post(gateway, beat("pod-1", breakers=(HELD,), counters=Counters(requests=50)))
    await post(gateway, beat("pod-2", leaving=True))
    gateway.hold(hold(clock.wall()))
    answer = await told(gateway, clock)
    (row,) = answer.servers  # who said goodbye is not told of
    assert (row["name"], row["state"], row["mode"]) == ("pod-1", "online", "shared")
    assert row["breakers"][0]["override"] == "forced_open"
    assert row["last_seen_at"] == clock.wall()
    assert answer.figures["live_servers"] >= 1
    (held,) = answer.holds
    assert (held["dependency"], held["actor"]) == ("llm", "olga")


async def test_the_answer_is_encoded_once_per_second() -> None:
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    await post(gateway, beat("pod-1"))
    first = await told(gateway, clock)
    await post(gateway, beat("pod-2"))
    assert await told(gateway, clock) == first
    clock.turn(1.1)
    assert {row["name"] for row in (await told(gateway, clock)).servers} == {"pod-1", "pod-2"}


async def test_unsigned_and_old_questions_are_refused() -> None:
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    body = question(clock)
    for wrong in (
        "",
        "Bearer x",
        signing.sign(body, salt=status_client._SALT, secret="of another control plane"),
        signing.sign(body, salt="controlplane.breakers.handed"),
    ):
        assert (await ask(gateway, body, wrong)).status_code == 401
    overheard = question(clock, at_us=int((clock.wall() - 3600) * 1_000_000))
    assert (await ask(gateway, overheard)).status_code == 422
    assert (await ask(gateway, question(clock, environment="elsewhere"))).status_code == 503
    assert (await ask(gateway, b'{"environment":"production"}')).status_code == 422
    assert (await ask(gateway, b"x" * 600)).status_code == 413
    async with client(gateway) as http:
        assert (await http.get(PATH)).status_code == 405


class _Served(BaseHTTPRequestHandler):
    body = b""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


def test_of_two_gateways_the_one_that_heard_a_server_last_is_right(settings: Any) -> None:
    def answer(seen: float, mode: str, *others: str) -> bytes:
        rows = [{"name": "moved", "last_seen_at": seen, "mode": mode}]
        rows += [{"name": name, "last_seen_at": 1.0, "mode": "shared"} for name in others]
        figures = {"requests_per_s": 10.0, "live_servers": 3}
        return msgspec.json.encode(
            {"servers": rows, "figures": figures, "holds": [], "again_ms": 60_000, "of_tomorrow": 1}
        )

    bodies = [answer(7.0, "local", "a"), answer(9.0, "shared", "b"), b"<html>"]
    servers = [HTTPServer(("127.0.0.1", 0), type("H", (_Served,), {"body": body})) for body in bodies]
    threads = [Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}) for server in servers]
    for thread in threads:
        thread.start()
    try:
        urls = [f"http://127.0.0.1:{server.server_port}" for server in servers]
        settings.GATEWAY_URLS = [*urls, "http://127.0.0.1:1"]
        gateways = StatusClient()
        found = gateways.ask("production", fresh=True)
        assert (found.answered, found.asked) == (2, 4)
        assert found.servers["moved"]["mode"] == "shared"
        assert set(found.servers) == {"moved", "a", "b"}
        assert found.figures.requests_per_s == 20.0
        settings.GATEWAY_URLS = ["http://127.0.0.1:1"]
        began = time.monotonic()
        assert gateways.ask("production") is found  # they did not wish to be asked again so soon
        assert time.monotonic() - began < 5
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


@pytest.mark.parametrize("urls", [[], ["http://127.0.0.1:1"]])
def test_without_a_gateway_nothing_is_known(settings: Any, urls: list[str]) -> None:
    settings.GATEWAY_URLS = urls
    assert StatusClient().ask("production", fresh=True).answered == 0
