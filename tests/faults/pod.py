"""A pod: a process with the agent in it and a stream of calls of bounded rate.

``python -m tests.faults.pod history`` reads commands from stdin, one JSON object per line, and
answers each with one line. Every admission is appended to the file ``history`` at once, so that
the history of a killed pod is complete.
"""

import asyncio
import gc
import json
import logging
import os
import sys
import threading
import time
from collections import Counter, deque
from typing import Any

_wall, _wall_ns, _monotonic = time.time, time.time_ns, time.monotonic
_offset_s = {"wall": 0.0, "all": 0.0}


def own_clock() -> None:
    """Make this process's clocks adjustable: everything that imports ``time`` after this sees them."""
    time.time = lambda: _wall() + _offset_s["wall"] + _offset_s["all"]
    time.time_ns = lambda: _wall_ns() + int((_offset_s["wall"] + _offset_s["all"]) * 1e9)
    time.monotonic = lambda: _monotonic() + _offset_s["all"]


if "--own-clock" in sys.argv:
    own_clock()

import fuseboard  # noqa: E402 - after its clock
from fuseboard.contract.words import Outcome  # noqa: E402
from tests.faults.injected import inject  # noqa: E402
from tests.faults.lag import LagSampler  # noqa: E402
from tests.faults.model_calls import ModelCalls  # noqa: E402
from tests.faults.work import Work  # noqa: E402

#: Calls in flight; more are dropped, and counted.
MAX_AT_ONCE = 300
TICK_S = 0.01
#: A call that took longer than this, net of lag, waited for something.
WAITED_S = 0.01


class Figures:
    """What callers of this pod saw since the last reset."""

    def __init__(self, lag: LagSampler) -> None:
        self.began = _monotonic()
        self._lag, self._lag_s = lag, lag.total_s
        self.calls = self.dropped = self.waited = self.over_50_ms = 0
        self.slowest_s = 0.0
        self.answers: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.modes: list[tuple[float, str]] = []

    def as_dict(self) -> dict[str, Any]:
        seen = {name: value for name, value in vars(self).items() if name[0] != "_" and name != "began"}
        return {
            **seen,
            "seconds": _monotonic() - self.began,
            #: The part of it in which the loop did not run although something was due.
            "lag_s": self._lag.total_s - self._lag_s,
        }


class Pod:
    def __init__(self, history: str) -> None:
        self.agent = fuseboard.from_env()
        self.history = os.open(history, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.lag = LagSampler(self._look)
        self.figures = Figures(self.lag)
        self.work = Work(self.agent, self.lag)
        self.models = ModelCalls(self.agent)
        self.mix: list[str] = []
        self.rate = 0.0
        #: Dependencies whose calls fail here.
        self.failing: set[str] = set()
        self.vendor_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._mode = ""
        self._position = 0

    def _look(self) -> None:
        if self.agent.mode != self._mode:
            self._mode = self.agent.mode
            self.figures.modes.append((_wall(), self._mode))

    # Calls

    async def traffic(self) -> None:
        last = _monotonic()
        due = 0.0
        while True:
            await asyncio.sleep(TICK_S)
            now = _monotonic()
            # After a pause of this process, missed calls are not made up for.
            due += self.rate * min(now - last, 0.1)
            last = now
            while due >= 1 and self.mix:
                due -= 1
                self._begin(self.mix[self._position % len(self.mix)])
                self._position += 1

    def _begin(self, target: str) -> None:
        if len(self._tasks) >= MAX_AT_ONCE:
            self.figures.dropped += 1
            return
        task = asyncio.create_task(self._call(target))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, target: str) -> None:
        figures = self.figures
        began = _monotonic()
        try:
            answer = await self.ask(target)
        except Exception as error:  # the agent promises that there is none
            figures.errors[f"{type(error).__name__}: {error}"[:200]] += 1
            return
        ended = _monotonic()
        figures.calls += 1
        figures.answers[answer["reason"] or "allowed"] += 1
        net = ended - began - answer["vendor_s"]
        if net > WAITED_S:
            net -= self.lag.between(began, ended)
            figures.waited += net > WAITED_S
            figures.over_50_ms += net > 0.05
            figures.slowest_s = max(figures.slowest_s, net)

    async def ask(self, target: str) -> dict[str, Any]:
        """``t:acme`` is a request of a tenant, ``d:search`` a call to a dependency."""
        kind, _, name = target.partition(":")
        vendor_s = 0.0
        if kind == "t":
            decision = await self.agent.admit_request(name)
        else:
            try:
                permit = await self.agent.admit_call(name)
            except fuseboard.Refused as refused:
                decision = refused.decision
            else:
                decision = permit.decision
                if self.vendor_s:
                    began = _monotonic()
                    await asyncio.sleep(self.vendor_s)
                    vendor_s = _monotonic() - began
                self.agent.report(permit, Outcome.FAILURE if name in self.failing else Outcome.OK)
        source = _source(decision)
        if decision.allowed:
            self._note(target, decision, source)
        limits = decision.limits
        return {
            "allowed": decision.allowed,
            "reason": str(decision.reason or ""),
            "rule": decision.rule,
            "mode": decision.mode,
            "source": source,
            "revision": decision.revision,
            "limit": limits[0].limit if limits else None,
            "limits": [one.limit for one in limits],
            "remaining": limits[0].remaining if limits else None,
            "retry_after_ms": decision.retry_after_ms,
            "vendor_s": vendor_s,
        }

    def _note(self, target: str, decision: fuseboard.Decision, source: str) -> None:
        at_us = decision.charges[0].at_us if source == "s" else _wall_ns() // 1000
        os.write(self.history, f"{at_us} {target} {source}\n".encode())

    # Commands

    async def do(self, command: dict[str, Any]) -> object:
        what = command.pop("do")
        if what == "load":
            self.rate, self.mix = command["rate"], command["mix"]
            self.vendor_s = command.get("vendor_s", 0.0)
            return None
        if what == "fail":
            self.failing = set(command["dependencies"])
            return None
        if what == "figures":
            figures = self.figures
            if command.get("begin_anew"):
                self.figures = Figures(self.lag)
            return figures.as_dict()
        if what == "ask":
            return await self.ask(command["target"])
        if what == "state":
            return self.state()
        if what == "hog":
            return await self._hog(**command)
        if what == "jump":
            _offset_s[command["clock"]] += command["seconds"]
            return None
        if what == "inject":
            return inject(**command)
        if what in Work.COMMANDS:
            return await self.work.do(what, **command)
        if what in ModelCalls.COMMANDS:
            return await self.models.do(what, **command)
        raise ValueError(f"nobody knows how to {what}")

    async def _hog(self, for_s: float, chunk_s: float) -> None:
        """Block the loop in chunks, as a garbage collection or a large document does."""
        until = _monotonic() + for_s
        while (now := _monotonic()) < until:
            while _monotonic() < now + chunk_s:
                pass
            await asyncio.sleep(0)

    def state(self) -> dict[str, Any]:
        agent = self.agent
        applied, counters = agent.configuration.applied, agent.counters
        gc.collect()
        return {
            "mode": agent.mode,
            "cause": agent._runtime.admission.mode_cause,
            "head": [applied.epoch, applied.revision, applied.hash],
            "source": applied.source,
            "status": applied.status,
            "error": applied.error,
            "live_servers": agent.configuration.live_servers,
            "defects": agent.defects,
            "breakers": {view.dependency: view.state for view in agent.views()},
            "overrides": {
                view.dependency: str(view.override) for view in agent.views() if view.override is not None
            },
            "timeouts": counters.store_timeouts,
            "store_errors": counters.store_errors,
            "answers": counters.store_answers,
            "local": counters.local_decisions,
            "tasks": sum(not task.done() for task in asyncio.all_tasks()) - len(self._tasks),
            "threads": threading.active_count(),
            "descriptors": _descriptors(),
            "rss_kib": _rss_kib(),
        }


def _source(decision: fuseboard.Decision) -> str:
    """Charged by Redis, locally, or nowhere."""
    if not decision.charges:
        return "n"
    return "l" if decision.charges[0].local else "s"


def _descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # no descriptor is left to look with
        return -1


def _rss_kib() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    except OSError:
        return -1


async def serve(pod: Pod) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    began = _monotonic()
    async with pod.agent:
        say({"ready_s": _monotonic() - began, "at": _wall()})
        work = [asyncio.create_task(pod.traffic()), asyncio.create_task(pod.lag.run())]
        doing: deque[asyncio.Task[None]] = deque()
        while line := await reader.readline():
            doing.append(asyncio.create_task(_answer(pod, json.loads(line))))
            while doing and doing[0].done():
                doing.popleft()
        for task in work:
            task.cancel()
        await pod.work.end_work()
        await pod.models.end()


async def _answer(pod: Pod, command: dict[str, Any]) -> None:
    number = command.pop("number")
    try:
        say({"number": number, "answer": await pod.do(command)})
    except Exception as error:
        say({"number": number, "error": f"{type(error).__name__}: {error}"})


def say(words: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    asyncio.run(serve(Pod(sys.argv[1])))
