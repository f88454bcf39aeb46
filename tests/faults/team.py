"""Pods of one row that work on jobs or under locks, and what must hold for all of them."""

from collections import Counter
from typing import Any

from tests.faults.effects import Effects, Judged, judge
from tests.faults.ends import Pod
from tests.faults.field import Broken, Field

#: A connection and an answer: the longest that a caller waits for Redis. And what a busy machine adds.
CALLER_S, SLACK_S = 2.0, 1.0
#: A pod ends within this time when it is asked to.
EXIT_S = 10.0
#: Beyond what there was before the fault: the connection to the gateway comes and goes.
SPARE = {"tasks": 1, "threads": 0, "descriptors": 2}


class Saw:
    """What callers of all pods saw."""

    def __init__(self, found: list[dict[str, Any]]) -> None:
        self.outcomes: Counter[str] = Counter()
        self.longest_s: dict[str, float] = {}
        #: Owner -> when it noticed that it had lost its job or lock, in ns of the clock of all processes.
        self.lost_ns: dict[str, int] = {}
        for one in found:
            if one["errors"]:
                raise Broken(f"callers saw {one['errors']}")
            self.outcomes.update(one["outcomes"])
            self.lost_ns |= one["lost_ns"]
            for what, took_s in one["longest_s"].items():
                self.longest_s[what] = max(took_s, self.longest_s.get(what, 0.0))

    def within(self, **most_s: float) -> None:
        """Raise unless each kind of call took at most this time."""
        for what, most in most_s.items():
            if self.longest_s.get(what, 0.0) > most + SLACK_S:
                raise Broken(f"{what} took {self.longest_s[what]:.2f} s, at most {most:g} s; {self.outcomes}")

    def must(self, *outcomes: str) -> None:
        """Raise unless each of them was seen."""
        missing = [outcome for outcome in outcomes if not self.outcomes[outcome]]
        if missing:
            raise Broken(f"no process saw {missing}: {dict(self.outcomes)}")


class Team:
    """``options`` are those of the backlog."""

    def __init__(self, field: Field, name: str, *, redis_url: str = "", **options: Any) -> None:
        self._field = field
        self._path = str(field.folder / f"{name}.effects")
        self._options = options
        self._effects = Effects(self._path)
        field.stack.callback(self._effects.close)
        environment = {"FUSEBOARD_REDIS_URL": redis_url} if redis_url else {}
        self.pods: list[Pod] = [
            field.another_pod(f"{name}-{number}", environment=environment, wait=False) for number in (1, 2, 3)
        ]
        field.all_in("shared", *self.pods, within_s=30)

    def begin(self, workers: int = 0) -> None:
        """Each pod works so many jobs at once. The first one, which submits, works none."""
        for number, pod in enumerate(self.pods):
            pod.do("begin-work", effects=self._path, workers=workers if number else 0, **self._options)

    def remember(self) -> None:
        """What there is before the fault, while the pods are idle. Each has used its thread."""
        self._before = {pod.name: pod.state() for pod in self.pods}

    def saw(self) -> Saw:
        """Since the last time."""
        return Saw([pod.do("saw") for pod in self.pods])

    def judged(self, since_ns: int = 0) -> Judged:
        """Everything so far; ``since_ns``: only the fences with an effect since then."""
        found = judge(self._effects.read(), since_ns)
        if found.wrong:
            raise Broken(found.wrong)
        return found

    def end(self) -> None:
        """The work ends, nothing of it is left, and the processes end by themselves."""
        for number in [(pod, pod.send_command({"do": "end-work"})) for pod in self.pods]:
            number[0].talker.answer(number[1])
        self.saw()
        self._field.until("nothing is left in any pod", lambda: not self._left(), 15)
        for pod in self.pods:
            pod.talker.hang_up()
        for pod in self.pods:
            if status := pod.talker.process.wait(EXIT_S):
                raise Broken(f"{pod.name} ended with {status}")

    def _left(self) -> str:
        found = []
        for pod in self.pods:
            before, now = self._before[pod.name], pod.state()
            found += [
                f"{pod.name} has {now[what]} {what}, once {before[what]}"
                for what, spare in SPARE.items()
                if now[what] > before[what] + spare
            ]
        return "; ".join(found)
