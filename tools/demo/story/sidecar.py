"""A program in another language shares a vendor's limit with a pod in Python, and obeys an operator."""

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

import fuseboard
from controlplane.editing import edits
from controlplane.embedded.children import last_lines, spawn, stop
from controlplane.installation import FOLDER as PROJECT
from fuseboard import blocking
from fuseboard.contract.words import Algorithm, FailurePolicy, Outcome
from tools.demo.seed import DIRECTOR, ENVIRONMENT
from tools.demo.story.asking import another_pod
from tools.demo.story.carrier import register_dependency, sidecar_beside
from tools.demo.story.chapter import Chapter, CheckFailed
from tools.demo.story.operator import send_override
from tools.demo.windows import surely_in_one_window

NAME = "storefront"
DEPENDENCY = "parcel-tracking"
#: The vendor's limit, and for how long both programs ask for more.
LIMIT, WINDOW_S, LASTS_S = 20, 2, 8.0
_PAUSE_S = 0.02
_REASON = "The carrier has an incident"
_LIMITED = "refused vendor_limit"
#: A strict limit also refuses what Redis answers too late, as on a busy machine.
_LATE = "refused store_unavailable"
_WITH_CURL = "tools.demo.storefront_curl"


class Call(msgspec.Struct, frozen=True):
    """What one program saw of one call; milliseconds since 1970: Redis counted it between both."""

    asked: float
    decided: float
    #: ``made`` and the status of the vendor, or ``refused`` and the reason.
    how: str

    @property
    def is_made(self) -> bool:
        return self.how.startswith("made")


Calls = Callable[[], list[Call]]


def sidecar(chapter: Chapter) -> str:
    """Both programs together never exceed the limit, and a trip by hand stops the other one, too."""
    revision = _register()
    with (
        another_pod(chapter, f"{NAME}-python") as agent,
        _beside(chapter, revision) as variables,
        _program(chapter, variables) as (language, calls),
    ):
        chapter.until("the other program to call", lambda: any(call.is_made for call in calls()), within_s=20)
        begun = time.time() * 1000
        own = _call_for(agent, LASTS_S)
        other = [call for call in calls() if call.asked >= begun]
        said = _judge(own, other, language)
        trip_ms = _act(chapter, calls, "forced_open", "refused forced_open", within_s=1)
        tripped = len(calls())
        time.sleep(1)
        missed = [call.how for call in calls()[tripped:] if call.how != "refused forced_open"]
        if missed:
            raise CheckFailed(f"forced open by hand, {language} saw {Counter(missed)}")
        reset_ms = _act(chapter, calls, "reset", "made 200", within_s=5)
    return (
        f"{said}; forced open by hand, {language} is refused after {trip_ms:.0f} ms, and after the reset it"
        f" calls in {reset_ms:.0f} ms"
    )


def _judge(own: list[Call], other: list[Call], language: str) -> str:
    made = [sum(call.is_made for call in calls) for calls in (own, other)]
    everything = Counter(call.how for call in [*own, *other])
    spans = [(call.asked, call.decided) for call in [*own, *other] if call.is_made]
    worst = surely_in_one_window(spans, WINDOW_S * 1000)
    said = (
        f"the vendor allows {LIMIT} calls in any {WINDOW_S} s: Python made {made[0]}, {language} {made[1]},"
        f" and no window had more than {worst}; {everything[_LIMITED]} were refused"
    )
    if worst > LIMIT or not all(made) or everything.keys() - {_LATE} != {"made 200", _LIMITED}:
        raise CheckFailed(f"{said}; the programs saw {dict(everything)}")
    return said


def _register() -> int:
    """The dependency with its limit; returns the revision that has it."""
    usual: dict[str, Any] = {"environment": ENVIRONMENT, "reason": _REASON, "actor": DIRECTOR}
    register_dependency(DEPENDENCY, "Parcel tracking", "The last known place of the parcel is shown.")
    return edits.set_vendor_limit(
        dependency=DEPENDENCY,
        name="contract",
        limit=LIMIT,
        window_s=WINDOW_S,
        algorithm=Algorithm.SLIDING_WINDOW,
        failure_policy=FailurePolicy.FAIL_CLOSED,
        expected_version=None,
        **usual,
    )


def _call_for(agent: blocking.Agent, for_s: float) -> list[Call]:
    """The calls of the pod in Python."""
    calls, until = [], time.monotonic() + for_s
    while time.monotonic() < until:
        asked = time.time() * 1000
        try:
            permit = agent.admit_call(DEPENDENCY)
            how = "made 200"
        except fuseboard.Refused as refused:
            how = f"refused {refused.decision.reason}"
        calls.append(Call(asked, time.time() * 1000, how))
        if calls[-1].is_made:
            agent.report(permit, Outcome.OK)
        time.sleep(_PAUSE_S)
    return calls


def _act(chapter: Chapter, calls: Calls, act: str, how: str, *, within_s: float) -> float:
    """Send the form of the breaker; milliseconds until the first such call of the other program."""
    to_wall_clock = time.time() - time.monotonic()
    sent = (send_override(chapter, DEPENDENCY, act, _REASON) + to_wall_clock) * 1000

    def times_ms() -> list[float]:
        return [call.decided - sent for call in calls() if call.asked >= sent and call.how == how]

    chapter.until(f"the other program to see {how!r}", lambda: bool(times_ms()), within_s=within_s)
    return min(times_ms())


@contextmanager
def _beside(chapter: Chapter, revision: int) -> Iterator[dict[str, str]]:
    """A sidecar that decides by this revision; the variables of the program beside it."""
    with sidecar_beside(chapter, NAME, DEPENDENCY, revision) as (url, token_file):
        yield {
            "SIDECAR_URL": url,
            "SIDECAR_TOKEN_FILE": str(token_file),
            # A call without a decision is outside of the limit: on a busy machine, the program waits longer.
            "SIDECAR_TIMEOUT_MS": "10000",
            "DEPENDENCY": DEPENDENCY,
            "VENDOR_URL": f"{chapter.demo.url('vendor')}/{DEPENDENCY}/call",
            "PAUSE_MS": str(int(_PAUSE_S * 1000)),
        }


@contextmanager
def _program(chapter: Chapter, variables: dict[str, str]) -> Iterator[tuple[str, Calls]]:
    """The other program: in Node where it is installed, else curl."""
    file, node = chapter.demo.processes.logs / f"{NAME}-program.log", shutil.which("node")
    program = [node, "tools/demo/storefront.mjs"] if node else [sys.executable, "-m", _WITH_CURL]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FUSEBOARD_")}
    with file.open("wb") as log:
        process = spawn(program, log=log, environment=environment | variables, directory=PROJECT)

    def calls() -> list[Call]:
        if process.poll() is not None:
            raise CheckFailed(f"the other program ended; {last_lines(file)}")
        whole = file.read_bytes().rpartition(b"\n")[0].splitlines()
        return [msgspec.json.decode(line, type=Call) for line in whole]

    try:
        yield "Node" if node else "curl", calls
    finally:
        stop(process, grace_s=5.0)
