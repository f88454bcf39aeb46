"""Asks a dependency again while its answer is not good enough, and keeps the best one."""

import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, TypeAlias

from msgspec import Struct

from fuseboard.calling import deadline
from fuseboard.calling.retries import Retries
from fuseboard.contract.protection import Retry
from fuseboard.decision import Permit
from fuseboard.errors import Misconfigured

logger = logging.getLogger("fuseboard.fallbacks")

#: Judges an answer from 0 to 1. Async or not.
Quality: TypeAlias = Callable[[Any], float | Awaitable[float]]

#: Further tries of one call, at most.
MAX_TRIES = 5


class Try(Struct, frozen=True):
    """One try of a call. The call gets it, so that it can ask in another way."""

    #: From 1.
    number: int = 1

    def temperature(self, first: float = 0.7, *, step: float = 0.2, least: float = 0.3) -> float:
        """The temperature of this try: ``step`` lower with each one, and never below ``least``."""
        return round(max(min(first, least), first - step * (self.number - 1)), 6)


class QualityRule(Struct, frozen=True):
    """The quality that is enough, and how often to ask again. Raises ``Misconfigured``."""

    judge: Quality
    at_least: float
    tries: int

    def __post_init__(self) -> None:
        if not 0 < self.at_least <= 1:
            raise Misconfigured(f"at_least is a quality above 0 and at most 1, not {self.at_least!r}")
        if type(self.tries) is not int or not 0 <= self.tries <= MAX_TRIES:
            raise Misconfigured(f"tries must be 0 to {MAX_TRIES} further ones, not {self.tries!r}")


class Tries:
    """The tries of one call. It neither calls nor waits."""

    def __init__(self, rule: QualityRule, retries: Retries, dependency: str, permits: list[Permit]) -> None:
        self._rule, self._retries, self._dependency = rule, retries, dependency
        self._permits = permits
        self._began = monotonic()
        self.made = 0
        #: The best answer, and its quality; ``None`` if that is not known.
        self.best: Any = None
        self.quality: float | None = None

    def next(self) -> Try:
        self.made += 1
        self._began = monotonic()
        return Try(self.made)

    def judged(self, answer: Any, quality: Any) -> bool:
        """Whether to ask again. ``quality`` is ``None`` if the judge has failed: that says nothing bad."""
        known = isinstance(quality, int | float) and not isinstance(quality, bool) and quality == quality
        if not known:
            if quality is not None:
                # Also what a function of a blocking chain has returned to be awaited.
                self.judge_failed(TypeError(f"a quality is a number, not {type(quality).__name__}"))
            if self.made == 1:
                self.best = answer
            return False
        if self.made == 1 or self.quality is None or quality > self.quality:
            self.best, self.quality = answer, float(quality)
        return quality < self._rule.at_least and self._may_ask_again()

    def judge(self, answer: Any) -> Any:
        """The quality of an answer, or what must be awaited for it."""
        return self._rule.judge(answer)

    def failed(self, error: Exception) -> None:
        """A further try failed: the best answer so far is the answer."""
        logger.warning("quality.try_failed dependency=%s error=%s", self._dependency, type(error).__name__)

    def judge_failed(self, error: Exception) -> None:
        logger.warning("quality.unknown dependency=%s error=%s", self._dependency, type(error).__name__)

    @property
    def is_low(self) -> bool:
        return self.quality is not None and self.quality < self._rule.at_least

    def end(self) -> None:
        if self.is_low:
            logger.warning(
                "quality.low dependency=%s quality=%.2f at_least=%.2f tries=%d",
                self._dependency,
                self.quality,
                self._rule.at_least,
                self.made,
            )

    def _may_ask_again(self) -> bool:
        if self.made > self._rule.tries or self._a_budget_warns():
            return False
        left_s = deadline.left_s()
        # The next try takes about as long as this one.
        if left_s is not None and left_s < monotonic() - self._began:
            return False
        return self._withdraw()

    def _a_budget_warns(self) -> bool:
        return any(
            limit.warning and limit.period is not None
            for permit in self._permits
            for limit in permit.decision.limits
        )

    def _withdraw(self) -> bool:
        """A try takes a retry from the budget of the dependency."""
        retries = self._retries
        retry = retries.settings(self._dependency) or Retry()
        with retries.lock:
            part = retries.part_unlocked(self._dependency)
            taken = retries.withdraw(part, retry, retries.clock(), troubled=False)
            return taken is not None or retries.observes()
