"""``once`` of a fake agent: in memory, by its clock, for ``with`` and for ``async with``."""

from types import TracebackType
from typing import Any, Self

from fuseboard.errors import AlreadyDone, ClaimLost, InProgress
from fuseboard.primitives.api import KEEP_S, LEASE_S
from fuseboard.primitives.once import EventId, check_once, decoded_result, encoded_result
from fuseboard.testing.fake_locks import FakeBlock
from fuseboard.testing.time import ManualClock


class FakeOnce(FakeBlock):
    """A claim like ``fuseboard.primitives.once.Once``."""

    def __init__(
        self, events: "FakeEvents", event: str, event_id: EventId, keep_s: float, lease_s: float
    ) -> None:
        self.event, self.event_id = check_once(event, event_id, keep_s, lease_s)
        self.fence = 0
        self._events, self._keep_s, self._lease_s = events, keep_s, lease_s
        self._result = b""

    @property
    def valid(self) -> bool:
        claim = self._events.claimed.get((self.event, self.event_id))
        return self.fence > 0 and claim is not None and claim[0] == self.fence

    def check(self) -> None:
        if not self.valid:
            raise ClaimLost(self.event, self.event_id)

    def keep(self, result: Any) -> None:
        self._result = encoded_result(result)

    def __enter__(self) -> Self:
        now = self._events.clock()
        known = (self.event, self.event_id)
        if known in self._events.done and self._events.done[known][0] > now:
            raise AlreadyDone(*known, *decoded_result(self._events.done[known][1]))
        if known in self._events.claimed and self._events.claimed[known][1] > now:
            raise InProgress(*known, self._events.claimed[known][1] - now)
        # The agent renews it while the block runs, so it does not end by the clock.
        self.fence = self._events.claim_event(*known, lease_s=float("inf"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        valid, fence, known = self.valid, self.fence, (self.event, self.event_id)
        self.fence = 0
        if not valid:
            if error is None:
                raise ClaimLost(*known)
            return
        del self._events.claimed[known]
        if error is None:
            self._events.done[known] = self._events.clock() + self._keep_s, self._result
        elif not isinstance(error, Exception):
            # Cancelled: it can be worked on again when its lease ends.
            self._events.claimed[known] = fence, self._events.clock() + self._lease_s


class FakeEvents:
    """An event is new until a block or a test works on it."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        #: Event and id -> the number of the claim, and when it ends.
        self.claimed: dict[tuple[str, str], tuple[int, float]] = {}
        #: Event and id -> until when it is remembered, and its result as JSON.
        self.done: dict[tuple[str, str], tuple[float, bytes]] = {}
        self._claims = 0

    def once(
        self, event: str, event_id: EventId, *, keep_s: float = KEEP_S, lease_s: float = LEASE_S
    ) -> FakeOnce:
        return FakeOnce(self, event, event_id, keep_s, lease_s)

    # Methods that script the fake

    def claim_event(self, event: str, event_id: EventId, *, lease_s: float = LEASE_S) -> int:
        """Another process works on the event from now on; the number of its claim."""
        self._claims += 1
        self.claimed[event, str(event_id)] = self._claims, self.clock() + lease_s
        return self._claims

    def finish_event(
        self, event: str, event_id: EventId, result: Any = None, *, keep_s: float = KEEP_S
    ) -> None:
        """Another process has done the work, and kept ``result``; ``None`` for nothing."""
        self.claimed.pop((event, str(event_id)), None)
        encoded = b"" if result is None else encoded_result(result)
        self.done[event, str(event_id)] = self.clock() + keep_s, encoded
