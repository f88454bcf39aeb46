"""The retries of a fake agent: what a test says decides, not a rate."""

from collections.abc import Callable
from random import Random

from fuseboard.calling.retries import DependencyRetries, Retries
from fuseboard.calling.retry_budget import Withdrawal
from fuseboard.contract.protection import Retry
from fuseboard.testing.time import ManualClock


class FakeRetries(Retries):
    """Allows retries by a number, not by a rate."""

    def __init__(self, policy: Callable[[], Retry], clock: ManualClock) -> None:
        super().__init__(
            settings=lambda _: policy(),
            protection=lambda: None,
            now_us=lambda: int(clock() * 1_000_000),
            live_servers=lambda: 1,
            clock=clock,
            random=Random(0),
        )
        #: ``None`` for any number.
        self.left: int | None = None

    def withdraw(
        self, part: DependencyRetries, retry: Retry, now: float, *, troubled: bool
    ) -> Withdrawal | None:
        if self.left is not None:
            if self.left <= 0:
                return None
            self.left -= 1
        return Withdrawal(now, None, None)

    def give_back(self, part: DependencyRetries, taken: Withdrawal) -> None:
        if self.left is not None:
            self.left += 1
