"""How much of limits is spent now, such as those of a vendor: read from their counters in Redis."""

import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

import redis
from redis.client import NEVER_DECODE, Pipeline

from controlplane.policies.limits import LimitColumns
from controlplane.redis.read_many import ask_many
from fuseboard.contract import keys
from fuseboard.contract.words import Algorithm

#: A sliding window begins with the microseconds of a part, the newest part, and the sum.
_HEAD = 3


def spent_limits(environment: str, dependency: str, limits: Sequence[LimitColumns]) -> dict[str, int]:
    """Limit -> what is spent, or the slots in use. A limit is absent if its counter cannot be read."""
    named = {limit.name: keys.vendor_limit(environment, dependency, limit.name) for limit in limits}
    spent = read_spent({named[limit.name]: limit.algorithm for limit in limits})
    return {name: spent[key] for name, key in named.items() if key in spent}


def read_spent(counters: Mapping[str, str]) -> dict[str, int]:
    """Key -> what is spent, or the slots in use. ``counters``: key -> the algorithm of its limit.

    A key is absent if its counter cannot be read.
    """
    now_us = time.time() * 1_000_000

    def ask(pipeline: Pipeline, key: str) -> object:
        if counters[key] == Algorithm.CONCURRENCY:
            return pipeline.zcount(key, now_us, "+inf")
        # Windows and buckets are binary, and the client reads texts.
        return pipeline.execute_command("GET", key, **{NEVER_DECODE: True})  # type: ignore[no-untyped-call]

    try:
        answers = ask_many(counters, ask)
    except redis.RedisError:
        return {}
    spent = {key: spent_of(counters[key], answer, now_us) for key, answer in answers.items()}
    return {key: amount for key, amount in spent.items() if amount is not None}


def spent_of(algorithm: str, stored: Any, now_us: float) -> int | None:
    """``lua/parts/limits.lua`` writes them. ``None`` for what cannot be read."""
    if stored is None:
        return 0
    try:
        match algorithm:
            case Algorithm.CONCURRENCY:
                return int(stored)
            case Algorithm.FIXED_WINDOW:
                return int(bytes(stored).split()[1])
            case Algorithm.SLIDING_WINDOW:
                return _window(stored, now_us)
            case _:
                return _bucket(stored, now_us)
    except (TypeError, ValueError, IndexError, OverflowError, struct.error, ZeroDivisionError):
        return None


def _window(stored: bytes, now_us: float) -> int:
    ring: tuple[float, ...] = struct.unpack(f">{len(stored) // 8}d", stored)
    part_us, newest, parts = ring[0], int(ring[1]), ring[_HEAD:]
    oldest = int(now_us // part_us) - (len(parts) - 1)
    counted = range(max(oldest, newest - len(parts) + 1), newest + 1)
    return round(sum(parts[index % len(parts)] for index in counted))


def _bucket(stored: bytes, now_us: float) -> int:
    full_us: float
    limit: float
    window_us: float
    full_us, _, limit, window_us = struct.unpack(">4d", stored)
    return round(max(0.0, full_us - now_us) * limit / window_us)
