"""How many slots the lower tiers have while the pod's CPU or memory is short."""

#: Above one of these, twice in a row, the lower tiers keep few slots.
HIGH = {"cpu": 0.80, "memory": 0.85}
#: When what was short is below these for this time, they get slots back. The other one does not matter: the
#: memory of a process seldom falls, and a pod may always use half of its CPU.
LOW = {"cpu": 0.50, "memory": 0.60}
LOW_S = 10.0
#: The time between two steps back, and how many there are.
STEP_S = 5.0
STEPS = 4
#: Critical calls keep their slots. These are for standard and optional calls.
FEWEST = (2, 1)


class PressureSteps:
    """``full`` are the slots of each tier, or one number for all together, which never changes."""

    __slots__ = ("_high", "_low_since", "_short", "_stepped", "_was_high", "full", "now")

    def __init__(self, full: tuple[int, ...]) -> None:
        self.full = full
        #: The slots now.
        self.now = full
        self._high = 0
        #: Signals that were high when last measured, and the one that took the slots.
        self._was_high: set[str] = set()
        self._short: set[str] = set()
        self._low_since: float | None = None
        self._stepped = 0.0

    def measure(self, cpu: float | None, memory: float | None, at: float) -> tuple[int, ...]:
        """The slots after this measurement. What is unknown is neither high nor low enough to matter."""
        if len(self.full) == 1:
            return self.now
        used = {"cpu": cpu or 0.0, "memory": memory or 0.0}
        high = {name for name, share in used.items() if share > HIGH[name]}
        self._high = self._high + 1 if high else 0
        if self._high >= 2:
            before = self._short if self.now != self.full else set()
            self._short = before | self._was_high | high
            self.now = (self.full[0], *(min(*pair) for pair in zip(self.full[1:], FEWEST, strict=True)))
        self._was_high = high
        if not all(used[name] < LOW[name] for name in self._short):
            self._low_since = None
        elif self._low_since is None:
            self._low_since = at
        if (
            self.now != self.full
            and self._low_since is not None
            and at - self._low_since >= LOW_S
            and at - self._stepped >= STEP_S
        ):
            self._stepped = at
            self.now = tuple(
                min(most, has + max(1, most // STEPS)) for has, most in zip(self.now, self.full, strict=True)
            )
        return self.now
