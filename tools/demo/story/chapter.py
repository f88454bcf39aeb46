"""What every checkpoint uses: the running demo, browsers of its users, calls to the pods."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import redis

from tools.demo.browser import Browser
from tools.demo.scenario import PODS
from tools.demo.services import Demo

T = TypeVar("T")


class CheckFailed(Exception):
    """A checkpoint failed; the message says what it saw."""


class CheckSkipped(Exception):
    """A checkpoint cannot run on this machine; the message says what it needs."""


@dataclass(frozen=True)
class Checkpoint:
    name: str
    #: Returns the evidence; raises ``CheckFailed``.
    tell: Callable[["Chapter"], str]
    #: Whether it may raise ``CheckSkipped``.
    may_skip: bool = False


@dataclass(frozen=True)
class Answer:
    """One response of a pod. Times are ``time.monotonic()``."""

    sent_at: float
    at: float
    status: int
    headers: httpx.Headers
    body: dict[str, Any]

    @property
    def mode(self) -> str:
        return str(self.headers.get("X-Fuseboard-Mode", ""))

    @property
    def revision(self) -> int:
        return int(self.headers.get("X-Fuseboard-Revision", "0"))

    @property
    def refused_because(self) -> str:
        """Why the call to the dependency was refused; empty when it was made."""
        return str(self.body.get("refused_because") or "")


class Chapter:
    """One run of the checkpoints."""

    def __init__(self, demo: Demo, limits_url: str) -> None:
        self.demo = demo
        self.limits_url = limits_url
        self.limits = redis.Redis.from_url(limits_url, decode_responses=True)
        #: The receiver of alerts, see ``tools.demo.story.alerts``.
        self.sink: Any = None
        self._browsers: dict[str, Browser] = {}
        self._stack = ExitStack()
        self._clients = {
            pod: self._stack.enter_context(httpx.Client(base_url=demo.url(pod), timeout=5.0)) for pod in PODS
        }

    def close(self) -> None:
        self._stack.close()
        for browser in self._browsers.values():
            browser.close()
        self.limits.close()

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Enter a context until the end of the run."""
        return self._stack.enter_context(context)

    def browser(self, role: str) -> Browser:
        """The browser of the user with this role, logged in."""
        if role not in self._browsers:
            browser = self._browsers[role] = Browser(self.demo.url("web"))
            page = browser.log_in(role, self.demo.seeded.logins[role])
            if page.status_code != 200 or "/login" in str(page.url):
                raise CheckFailed(f"{role} cannot log in: status {page.status_code} at {page.url.path}")
        return self._browsers[role]

    def ask(self, pod: str, dependency: str, tenant: str) -> Answer:
        return ask(self._clients[pod], dependency, tenant)

    def until(self, what: str, holds: Callable[[], bool], *, within_s: float) -> float:
        """Poll until ``holds`` is true; return the milliseconds it took. Raises ``CheckFailed``.

        ``within_s`` is for an idle machine; a busy one gets more time, as ``Demo.patience`` says.
        """
        most_s = within_s * self.demo.patience
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > most_s:
                raise CheckFailed(f"{what}: not within {most_s:.0f} s")
            time.sleep(0.05)
        return (time.monotonic() - began) * 1000

    def watch(self, dependency: str, tenant: str) -> "Watch":
        return Watch(self.demo, dependency, tenant)


def ask(client: httpx.Client, dependency: str, tenant: str) -> Answer:
    sent_at = time.monotonic()
    answer = client.get(f"/{dependency}", headers={"X-Tenant": tenant})
    return Answer(sent_at, time.monotonic(), answer.status_code, answer.headers, answer.json())


class Watch:
    """Sends every pod the same request about 30 times per second, and keeps the responses."""

    PACE_S = 0.03

    def __init__(self, demo: Demo, dependency: str, tenant: str) -> None:
        self._ask = (dependency, tenant)
        self._urls = {pod: demo.url(pod) for pod in PODS}
        self._patience = demo.patience
        self._stop = threading.Event()
        self.answers: dict[str, list[Answer]] = {pod: [] for pod in PODS}
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(pod,)) for pod in PODS]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, pod: str) -> None:
        with httpx.Client(base_url=self._urls[pod], timeout=5.0) as client:
            while not self._stop.wait(self.PACE_S):
                try:
                    self.answers[pod].append(ask(client, *self._ask))
                except (httpx.HTTPError, ValueError) as error:
                    self.errors.append(f"{pod}: {error!r}")

    def first(
        self, what: str, holds: Callable[[Answer], bool], *, since: float, within_s: float
    ) -> dict[str, float]:
        """Milliseconds from ``since`` until the first such response of each pod. Raises ``CheckFailed``.

        ``within_s`` is for an idle machine, as in ``Chapter.until``.
        """
        most_s = within_s * self._patience
        deadline = time.monotonic() + most_s
        while True:
            found = {
                pod: next((a.at for a in list(answers) if a.sent_at >= since and holds(a)), None)
                for pod, answers in self.answers.items()
            }
            times = {pod: (at - since) * 1000 for pod, at in found.items() if at is not None}
            if len(times) == len(found):
                return times
            if time.monotonic() > deadline:
                missing = ", ".join(sorted(found.keys() - times.keys()))
                raise CheckFailed(f"{missing} did not {what} within {most_s:.0f} s; {self._last()}")
            time.sleep(0.01)

    def _last(self) -> str:
        last = {
            pod: f"{answers[-1].status} {answers[-1].body}"
            for pod, answers in self.answers.items()
            if answers
        }
        return f"last answers: {last}; errors: {self.errors[-1:] or 'none'}"


def slowest(times: dict[str, float]) -> str:
    """``34 ms (shop-1 12, shop-2 34, shop-3 20)``."""
    each = ", ".join(f"{pod} {ms:.0f}" for pod, ms in sorted(times.items()))
    return f"{max(times.values()):.0f} ms ({each})"
