"""Every exception of the agent can be pickled and copied, for pools of processes and job engines."""

import pickle
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from fuseboard import Refused
from fuseboard.cli.ctl.exit_codes import Exit
from fuseboard.contract.words import Reason
from fuseboard.decision import Charge, Decision
from fuseboard.errors import FuseboardError, LockLost, LockTaken, StoreUnavailable
from fuseboard.integrations.guarded_request import ModelCallRefused
from fuseboard.reporting.heartbeat import HeartbeatFailure
from tests.portable import check_pool, check_portable, example_of, exceptions_of, import_all


class Signer:
    """It has the key of a pod, and cannot be pickled."""

    def sign(self, _: Decision) -> str:
        return "a-token"

    def explain_url(self, token: str) -> str:
        return f"http://control.example.com/#{token}"

    def __reduce__(self) -> Any:
        raise AssertionError("the key of the pod leaves the process")


DECISION = Decision(
    allowed=False,
    reason=Reason.QUOTA,
    retry_after_ms=1500,
    rule="requests",
    tenant="acme",
    charges=(Charge("d:payments", object(), 1, "token"),),
    signer=Signer(),
)


def request_of(kind: type[BaseException]) -> Any:
    """A request with the key of a vendor, as the library of this exception makes it."""
    secret = {"Authorization": "Bearer secret"}
    if "requests" in {base.__module__.partition(".")[0] for base in kind.__mro__}:
        requests = pytest.importorskip("requests")
        return requests.Request("POST", "http://vendor/", headers=secret, data=iter([b"part"])).prepare()
    if "aiohttp" in {base.__module__.partition(".")[0] for base in kind.__mro__}:
        return SimpleNamespace(headers=secret)
    if issubclass(kind, httpx.RequestError):
        return httpx.Request("POST", "http://vendor/", headers=secret)
    httpx2 = pytest.importorskip("httpx2")
    return httpx2.Request("POST", "http://vendor/", headers=secret)


EXAMPLES: dict[str, Any] = {
    "answered": False,
    "legacy": True,
    "after_s": 2.5,
    "code": next(iter(Exit)),
    "content": b"{}",
    "decision": DECISION,
    "event": "paid",
    "event_id": "order-7",
    "kept": True,
    "result": b"receipt-7",
    "delay": 100,
    "failure": next(iter(HeartbeatFailure)),
    "message": "it failed",
    "name": "nightly",
    "poisoned": True,
    "reason": Reason.BULKHEAD_FULL,
    "request": request_of,
    "retry_after_s": 12.5,
    "room": 100,
    "tokens": 120,
    "what": "the last message",
    "why": "its time is over",
}


@pytest.fixture(scope="module")
def errors() -> list[BaseException]:
    import_all("fuseboard")
    with suppress(FuseboardError):  # httpx2 is not in this environment
        from fuseboard.integrations.httpx2 import CallRefused  # noqa: F401 - made on first use
    # Half of a class: what a client of models raises is derived from this and from its own error.
    kinds = [kind for kind in exceptions_of("fuseboard") if kind is not ModelCallRefused]
    return [example_of(kind, EXAMPLES) for kind in kinds]


def test_every_exception_survives_pickling_and_copying(errors: list[BaseException]) -> None:
    assert {LockTaken, LockLost, StoreUnavailable, Refused} <= {type(error) for error in errors}
    for error in errors:
        check_portable(error)


def test_a_pool_of_processes_survives_every_exception(errors: list[BaseException]) -> None:
    check_pool(errors)


def test_a_refusal_keeps_its_decision_and_neither_its_key_nor_its_request(
    errors: list[BaseException],
) -> None:
    for error in errors:
        if isinstance(error, Refused):
            stored = pickle.dumps(error)
            assert b"secret" not in stored
            loaded = pickle.loads(stored)  # noqa: S301 - our own
            assert loaded.decision.explain() == DECISION.explain()
            assert (loaded.decision.signer, loaded.decision.charges) == (None, ())


def test_a_class_of_the_application_survives_too() -> None:
    check_portable(OutOfStock("cup", left=0))


class OutOfStock(FuseboardError):
    """An application may derive its own exceptions."""

    def __init__(self, item: str, *, left: int) -> None:
        super().__init__(f"{item}: {left} left")
        self.item, self.left = item, left


def test_a_release_before_can_load_a_refusal() -> None:
    kind, arguments, *_ = Refused(DECISION).__reduce__()
    assert kind is Refused
    assert [type(one) for one in arguments] == [Decision]


def test_an_exception_of_which_only_the_text_was_stored_keeps_class_and_text() -> None:
    for error in (
        Refused(DECISION),
        LockTaken("nightly", 12.5),
        LockLost("a", "b"),
        StoreUnavailable("late"),
    ):
        again = type(error)(*error.args)
        assert str(again) == str(error)
