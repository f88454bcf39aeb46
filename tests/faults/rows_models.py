"""Calls to language models while something breaks: each is counted once, or by at most its reserve."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg

from tests.faults.ends import Pod
from tests.faults.field import CONTROL_PLANE, Broken, Field
from tests.faults.matrix import row
from tests.faults.model_calls import MOST_WORDS
from tests.faults.seen import WORK
from tests.llm.vendor import Vendor, serving

#: The dependency that the model belongs to, which has no other limit.
POOL, MODEL, BUDGET = "open-road", "gpt-of-the-rows", "models-month"
#: Micro-USD per token.
_INPUT, _OUTPUT = 1, 10
_AMOUNT = 1_000_000_000
#: Words that a reader has before the fault, and of the whole answer.
_BEFORE, _WORDS = 20, 60
_HOUR_S = 3_600
_CALLS = 5
_SPENT = "SELECT coalesce(sum(calls), 0), coalesce(sum(micro_usd), 0) FROM ledger_usageday WHERE model = %s"
_HOURS = (
    "SELECT at, sum(calls) FROM ledger_usagehour WHERE model = %s AND whose = 1 AND name = %s"
    " GROUP BY at ORDER BY at"
)


@contextmanager
def _selling(field: Field, model: str) -> Iterator["_Sales"]:
    """A vendor whose model pods can call, its price, and a budget that counts the money."""
    with serving() as vendor:
        try:
            yield _Sales(field, vendor, model)
        finally:
            # Other rows call the dependency without costs.
            field.edit("remove_budget", budget=BUDGET, expected_version=None)
            field.edit("remove_model", model=model, expected_version=None)


class _Sales:
    def __init__(self, field: Field, vendor: Vendor, model: str) -> None:
        self.field, self.vendor, self.model = field, vendor, model
        self.price(_INPUT, _OUTPUT, since="2025-12-01")
        fields: dict[str, Any] = {"dependency": POOL, "amount": _AMOUNT, "period": "month"}
        field.edit("set_budget", budget=BUDGET, expected_version=None, **fields)
        self.applied()
        self._spent = self._counted()
        self._ledger = self.ledger()

    def price(self, input_: int, output: int, *, since: str) -> None:
        """Micro-USD per token from then on."""
        price = {"input": input_ * 1_000_000, "output": output * 1_000_000}
        edit: dict[str, Any] = {"model": self.model, "pool": POOL, "prices": {since: price}}
        self.field.edit("set_model", expected_version=None, **edit)

    def applied(self) -> None:
        """Every pod decides by the newest configuration."""
        head = self.field.director.ask({"do": "head"})
        pods = [*self.field.pods, *self.field.others]
        self.field.until("pods apply it", lambda: all(pod.state()["head"][:2] == head for pod in pods), 30)

    def shared(self, pod: Pod) -> None:
        """Redis decides the calls of a pod that has just begun."""
        self.field.all_in("shared", pod, within_s=60)

        def counted() -> bool:
            before = self.spent()
            self.ended(pod, self.ask(pod))
            return self.spent() > before

        self.field.until(f"the calls of {pod.name} to be counted", counted, 60)
        self.counts(self.billed)

    def ask(self, pod: Pod, *, stream: bool = True) -> str:
        """Begin a call; return its number."""
        return str(pod.do("ask-model", url=self.vendor.url, model=self.model, stream=stream))

    def ended(self, pod: Pod, number: str, *, within_s: float = 30.0) -> dict[str, Any]:
        self.field.until("an answer ends", lambda: self.answer(pod, number)["ended"], within_s)
        return self.answer(pod, number)

    @staticmethod
    def answer(pod: Pod, number: str) -> dict[str, Any]:
        found: dict[str, Any] = pod.do("model-answers")[number]
        return found

    def half_read(self, pod: Pod) -> str:
        """Begin a stream that waits in the middle until ``vendor.held`` is set."""
        self.vendor.held.clear()
        self.vendor.will(words=_WORDS, holds_after=_BEFORE)
        number = self.ask(pod)
        self.field.until(
            f"{_BEFORE} words", lambda: self.answer(pod, number)["parts"] >= _BEFORE, within_s=30
        )
        return number

    @property
    def billed(self) -> int:
        """What the vendor charges for all calls, by the first price."""
        return sum(one.input * _INPUT + one.output * _OUTPUT for one in self.vendor.bill)

    def spent(self) -> int:
        """What Redis has counted since the row began."""
        return self._counted() - self._spent

    def _counted(self) -> int:
        return int(self.field.director.ask({"do": "spent", "budget": BUDGET}))

    def ledger(self) -> tuple[int, int]:
        """Calls and micro-USD in Postgres."""
        with psycopg.connect(self.field.postgres.url) as database:
            found = database.execute(_SPENT, [self.model]).fetchone()
        assert found is not None
        return int(found[0]), int(found[1])

    def counts(self, micro_usd: int) -> float:
        return self.field.until(
            f"the budget to have counted {micro_usd} micro-USD", lambda: self.spent() == micro_usd, 20
        )

    def in_ledger(self, calls: int, micro_usd: int) -> float:
        return self.field.until(
            f"{calls} calls and {micro_usd} micro-USD in the ledger",
            lambda: self.ledger() == (calls, micro_usd),
            90,
        )


def _most_reserved(vendor: Vendor) -> int:
    """The largest reserve of one call: its input, and an answer as long as it may be, a quarter more."""
    return int(1.25 * (2 * vendor.bill[-1].input * _INPUT + MOST_WORDS * _OUTPUT))


@row("57", "stream-redis-frozen")
def stream_redis_frozen(field: Field) -> str:
    """Redis freezes in the middle of a stream: the reader has all of it, and the money is counted once."""
    with _selling(field, f"{MODEL}-57") as sales:
        vendor, pod = sales.vendor, field.pods[0]
        field.load(WORK, 60)
        number = sales.half_read(pod)
        field.freeze()
        began = time.monotonic()
        vendor.held.set()
        answer = sales.ended(pod, number)
        took_s = time.monotonic() - began
        field.until("the pod decides locally", lambda: pod.state()["mode"] == "local", 60)
        alone = sales.ended(pod, sales.ask(pod))
        field.thaw()
        field.all_in("shared", within_s=60)
        field.until(
            "the money of both calls to be counted", lambda: sales.spent() >= sales.billed, within_s=60
        )
        spent, billed = sales.spent(), sales.billed
        ledger_s = sales.in_ledger(2, billed)
    if (answer["parts"], answer["error"], alone["error"]) != (_WORDS, "", ""):
        raise Broken(f"the reader has {answer}, the next one {alone}")
    if spent > billed + 2 * _most_reserved(vendor):
        raise Broken(f"the budget counted {spent} micro-USD for a bill of {billed}")
    return (
        f"all {_WORDS} words {took_s:.2f} s after the freeze; another call was answered meanwhile; the budget"
        f" counted {spent} of {billed} micro-USD, the ledger exactly these, {ledger_s:.1f} s later"
    )


@row("58", "stream-pod-killed")
def stream_pod_killed(field: Field) -> str:
    """A pod dies in the middle of a stream: its reserve stays, nothing else, and others call on."""
    dying = field.another_pod("dies-in-stream")
    with _selling(field, f"{MODEL}-58") as sales:
        vendor = sales.vendor
        sales.shared(dying)
        before = sales.spent()
        sales.half_read(dying)
        reserved = sales.spent() - before
        dying.kill()
        vendor.held.set()
        number = sales.ask(field.pods[0])
        answer = sales.ended(field.pods[0], number)
        died, last = vendor.bill[-2:]
        sales.counts(before + reserved + last.input * _INPUT + last.output * _OUTPUT)
    if answer["error"] or not 0 < reserved <= _most_reserved(vendor):
        raise Broken(f"reserved {reserved} micro-USD; the next call: {answer}")
    charged = died.input * _INPUT + died.output * _OUTPUT
    return (
        f"killed after {_BEFORE} words: its reserve of {reserved} micro-USD stays in the budget until the"
        f" period ends, where the vendor charges {charged}; the next call is counted exactly"
    )


@row("59", "models-without-control-plane")
def without_control_plane(field: Field) -> str:
    """The control plane is down for an hour by the pod's clocks: the ledger has each call in its hour."""
    pod = field.another_pod("an-hour", own_clock=True)
    with _selling(field, f"{MODEL}-59") as sales, ExitStack() as stack:
        field.processes.kill(*CONTROL_PLANE)
        stack.callback(field.processes.wait_until_ready, CONTROL_PLANE)
        stack.callback(field.processes.begin, *CONTROL_PLANE)
        for _ in range(2):
            for number in [sales.ask(pod) for _ in range(_CALLS)]:
                answer = sales.ended(pod, number)
                if answer["error"] or answer["parts"] != Vendor().usual.words:
                    raise Broken(f"without the control plane: {answer}")
            pod.do("jump", clock="all", seconds=_HOUR_S)
        sales.counts(sales.billed)
        stack.close()
        ledger_s = sales.in_ledger(2 * _CALLS, sales.billed)
        with psycopg.connect(field.postgres.url) as database:
            hours = database.execute(_HOURS, [sales.model, "faults"]).fetchall()
    if [int(calls) for _, calls in hours] != [_CALLS, _CALLS] or (
        (hours[1][0] - hours[0][0]).total_seconds() != _HOUR_S
    ):
        raise Broken(f"the ledger has these hours: {hours}")
    return (
        f"{2 * _CALLS} calls in two hours without it: the budget counted the bill, and the ledger has"
        f" {_CALLS} calls in each hour, {ledger_s:.1f} s after it was back"
    )


@row("60", "price-edited-midstream")
def price_edited(field: Field) -> str:
    """A new price begins in the middle of a stream: that call has the old one, and the next one the new."""
    with _selling(field, f"{MODEL}-60") as sales:
        vendor, pod = sales.vendor, field.pods[0]
        number = sales.half_read(pod)
        sales.price(2 * _INPUT, 2 * _OUTPUT, since=f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}")
        sales.applied()
        vendor.held.set()
        answer = sales.ended(pod, number)
        old = sales.billed
        sales.counts(old)
        following = sales.ended(pod, sales.ask(pod))
        new = 2 * (sales.billed - old)
        sales.counts(old + new)
        sales.in_ledger(2, old + new)
    if answer["error"] or following["error"]:
        raise Broken(f"{answer}, {following}")
    return (
        f"doubled after {_BEFORE} of {_WORDS} words: {old} micro-USD for that call, by its old price,"
        f" and {new} for the next one, in the budget and in the ledger"
    )


@row("61", "pod-lies-about-limit")
def lies_about_limit(field: Field) -> str:
    """One pod reports refusals and a limit of 1: the limit of the fleet falls by less than a tenth."""
    limit, lasts_s = 600, 25.0
    honest_headers = {"x-ratelimit-limit-requests": str(limit), "x-ratelimit-remaining-requests": str(limit)}
    lies = {"x-ratelimit-limit-requests": "1", "x-ratelimit-remaining-requests": "0", "retry-after-ms": "100"}
    pod = field.another_pod("lies-about-limit")
    with _selling(field, f"{MODEL}-61") as sales, serving() as liar, ExitStack() as stack:
        vendor = sales.vendor
        edit = {"dependency": POOL, "name": "per-minute", "limit": limit, "window_s": 60}
        field.edit("set_vendor_limit", algorithm="sliding_window", expected_version=None, **edit)
        stack.callback(
            field.edit, "remove_vendor_limit", dependency=POOL, name="per-minute", expected_version=None
        )
        field.edit("set_tuning", tuning={"vendor_floor_percent": 10})
        stack.callback(field.edit, "set_tuning", tuning={"vendor_floor_percent": 0})
        sales.applied()
        vendor.usual.headers, liar.usual.headers, liar.usual.status = honest_headers, lies, 429

        def applies() -> int:
            """After a call of each pod: the limit of the fleet."""
            for honest in field.pods:
                sales.ask(honest, stream=False)
            pod.do("ask-model", url=liar.url, model=sales.model, stream=False)
            time.sleep(0.2)
            return min(field.pods[0].ask(f"d:{POOL}")["limits"], default=limit)

        lowest, until = limit, time.monotonic() + lasts_s
        while time.monotonic() < until:
            lowest = min(lowest, applies())
        good, bad = vendor.requests, liar.requests
        # What all honest pods hear applies.
        vendor.usual.headers = dict.fromkeys(honest_headers, str(limit // 2))
        field.until("the limit to follow the vendor", lambda: applies() <= limit // 2, 40)
    if lowest < 0.9 * limit:
        raise Broken(f"the limit fell to {lowest} of {limit}")
    return (
        f"{bad} refusals with a limit of 1 at one pod, {good} good answers at the others: the limit"
        f" of the fleet stays at {lowest} of {limit}"
    )
