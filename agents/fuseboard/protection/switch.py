"""Something that is on or off, and does not flutter between the two."""


class Switch:
    """Goes on when it has to, and off when it may. Each state lasts at least ``steady_s``."""

    __slots__ = ("_since", "_steady_s", "changes", "on")

    def __init__(self, steady_s: float) -> None:
        self._steady_s = steady_s
        self._since: float | None = None
        self.on = False
        self.changes = 0

    def judge(self, now: float, enter: bool, leave: bool) -> bool:
        """``leave`` must hold for the whole time before it goes off."""
        if self.on:
            if not leave:
                self._since = now
            elif self._since is None or now - self._since >= self._steady_s:
                self._turn(now, on=False)
        elif enter and (self._since is None or now - self._since >= self._steady_s):
            self._turn(now, on=True)
        return self.on

    def _turn(self, now: float, *, on: bool) -> None:
        self.on, self._since = on, now
        self.changes += 1
