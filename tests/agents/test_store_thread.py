"""The thread of the store: questions that wait for one connection share its outcome."""

import asyncio
import gc
import signal
import time
from collections.abc import Iterator

import pytest

from controlplane.embedded.valkey import Valkey
from fuseboard.errors import StoreUnavailable
from fuseboard.primitives import store_thread
from fuseboard.primitives.store_thread import CONNECT_S, StoreThread
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("usual_answers")

#: Questions of so many threads wait at once. One after the other, they would fail in as many timeouts.
ASKERS = 20


@pytest.fixture
def thread(valkey: Valkey) -> Iterator[StoreThread]:
    thread = StoreThread(valkey.url)
    yield thread
    _thaw(valkey)
    asyncio.run(thread.stop())


def _freeze(valkey: Valkey) -> None:
    assert valkey.process is not None
    valkey.process.send_signal(signal.SIGSTOP)


def _thaw(valkey: Valkey) -> None:
    assert valkey.process is not None
    valkey.process.send_signal(signal.SIGCONT)


def test_questions_that_wait_for_one_connection_fail_together(thread: StoreThread, valkey: Valkey):
    _freeze(valkey)
    began = time.monotonic()
    answers = [thread.submit(thread.command("PING")) for _ in range(ASKERS)]
    took_s = []
    for answer in answers:
        with pytest.raises(StoreUnavailable):
            answer.result(ASKERS * CONNECT_S + 5)
        took_s.append(time.monotonic() - began)
    assert took_s[0] >= CONNECT_S
    assert took_s[-1] < ASKERS / 2 * CONNECT_S


def test_the_next_question_after_a_failed_connection_opens_another_one(thread: StoreThread, valkey: Valkey):
    _freeze(valkey)
    with pytest.raises(StoreUnavailable):
        thread.submit(thread.command("PING")).result(PATIENCE_S)
    _thaw(valkey)
    assert thread.submit(thread.command("PING")).result(PATIENCE_S) == b"PONG"


def test_a_caller_that_leaves_does_not_end_the_connection_of_the_others(
    thread: StoreThread, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
):
    """Also when it is the one that began to connect."""
    monkeypatch.setattr(store_thread, "CONNECT_S", PATIENCE_S)
    _freeze(valkey)
    first, *others = [thread.submit(thread.command("PING")) for _ in range(3)]
    time.sleep(0.2)  # all wait for the connection
    assert not any(answer.done() for answer in others)
    first.cancel()
    _thaw(valkey)
    assert [answer.result(PATIENCE_S) for answer in others] == [b"PONG"] * 2


def test_an_attempt_that_all_callers_left_is_not_logged_as_lost(
    thread: StoreThread, valkey: Valkey, caplog: pytest.LogCaptureFixture
):
    _freeze(valkey)
    left = thread.submit(thread.command("PING"))
    wait_until(lambda: thread._connecting is not None)
    left.cancel()
    wait_until(lambda: thread._connecting is not None and thread._connecting.done())
    _thaw(valkey)
    assert thread.submit(thread.command("PING")).result(PATIENCE_S) == b"PONG"  # another attempt replaces it
    del left  # it leads to the attempt
    gc.collect()
    assert "never retrieved" not in caplog.text
