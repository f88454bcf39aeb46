"""The bounds of a sidecar for a node: one user of its socket cannot use them up."""

import asyncio
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseboard import Agent
from fuseboard.serving import http1
from fuseboard.serving.call import begin
from fuseboard.serving.exchange import JSON, Answer, Request
from fuseboard.serving.http1 import Bounds, Connections
from fuseboard.serving.listeners import Listeners
from fuseboard.sidecar.permits import Kept
from fuseboard.sidecar.routes import Sidecar
from tests.sidecar.peers import GET, Echo, Served
from tests.sidecar.test_sidecar_interleavings import Pod
from tests.waiting import eventually

MOST = 9


def test_a_user_displaces_its_own_permits_and_leaves_room() -> None:
    ended: list[str] = []
    kept = Kept[str]("p", ended.append, most=MOST, fair=True)
    first = [kept.keep(f"first {number}", 60, uid=1) for number in range(20)]
    assert (len(kept), ended) == (5, [f"first {number}" for number in range(15)])
    second = [kept.keep(f"second {number}", 60, uid=2) for number in range(3)]
    assert ended[15:] == ["second 0"]
    assert kept.keep("third", 60, uid=3)
    assert [kept.take(name) for name in first[15:]] == [f"first {number}" for number in range(15, 20)]
    assert [kept.take(name) for name in second] == [None, "second 1", "second 2"]
    assert kept.take_all() == ["third"]


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=200))
def test_whatever_users_do_a_new_one_gets_a_permit_at_the_cost_of_a_user_that_has_more(
    steps: list[tuple[int, bool]],
) -> None:
    ended: list[int] = []
    kept, names = Kept[int]("p", ended.append, most=MOST, fair=True), list[tuple[str, int]]()
    for uid, takes in steps:
        if takes and names:
            kept.take(names.pop()[0])
            continue
        had, before = sum(owner == uid for _, owner in names), len(ended)
        names.append((kept.keep(uid, 60, uid=uid), uid))
        assert len(kept) <= MOST
        if len(ended) > before:
            # Only its own made room: four users with one each leave five of nine free.
            assert ended[before:] == [uid]
            assert had > 0


def test_a_single_application_may_have_all() -> None:
    kept = Kept[str]("p", lambda _: None, most=MOST)
    for uid in (*[1] * MOST, 2):
        kept.keep("one", 60, uid=uid)
    assert (len(kept), kept.displaced) == (MOST, 1)


async def test_a_user_that_waits_often_leaves_room_for_others() -> None:
    pod = Pod()
    pod.go.clear()
    sidecar = Sidecar(cast(Agent, pod), most_waiting=4, fair=True)

    def ask(uid: int) -> object:
        body = b'{"dependency": "payments"}'
        asked = Request(method="POST", path="/v1/calls", headers={"content-type": JSON}, body=body, uid=uid)
        handled = sidecar.handle(asked)
        return handled if isinstance(handled, Answer) else begin(handled, lambda _: None)

    waiting = [ask(1), ask(1)]
    refused = ask(1)
    assert isinstance(refused, Answer)
    assert (refused.status, sidecar.busy, sidecar.waiting) == (503, 1, 2)
    waiting.append(ask(2))
    assert sidecar.waiting == 3
    pod.go.set()
    await eventually(lambda: sidecar.waiting == 0)


async def test_a_user_with_many_connections_displaces_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    uid = 1
    monkeypatch.setattr(http1, "peer_uid", lambda _: uid)
    listeners, connections, echo = Listeners(), Connections(Bounds(connections=4), fair=True), Echo()
    one = Served(echo, connections, await listeners.listen_tcp(echo, connections, "127.0.0.1", 0))
    first = [await one.peer() for _ in range(2)]
    for peer in first:
        assert (await peer.ask(GET))[0] == 200
    third = await one.peer()
    assert (await third.ask(GET))[0] == 200
    assert await first[0].is_closed()
    uid = 2
    other = await one.peer()
    assert (await other.ask(GET))[0] == 200
    assert (await first[1].ask(GET))[0] == (await third.ask(GET))[0] == 200
    assert (len(connections), connections.displaced) == (3, 1)
    one.leave()
    await asyncio.sleep(0)
    await listeners.stop()
