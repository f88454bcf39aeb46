"""The two clocks, as one value that tests can turn."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    #: Seconds that never jump. All decisions use them.
    monotonic: Callable[[], float] = time.monotonic
    #: Unix seconds, for rows and answers only.
    wall: Callable[[], float] = time.time
