"""One limit of each algorithm, with as few fields as possible."""

from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm, Period


def window(limit: int, seconds: float = 1.0, name: str = "vendor", **more) -> Limit:
    ms = int(seconds * 1000)
    return Limit(name=name, limit=limit, window_ms=ms, algorithm=Algorithm.SLIDING_WINDOW, **more)


def slots(limit: int, seconds: float = 1.0, **more) -> Limit:
    ms = int(seconds * 1000)
    return Limit(name="slots", limit=limit, window_ms=ms, algorithm=Algorithm.CONCURRENCY, **more)


def daily(limit: int, **more) -> Limit:
    return Limit(
        name="daily",
        limit=limit,
        window_ms=86_400_000,
        algorithm=Algorithm.FIXED_WINDOW,
        period=Period.DAY,
        **more,
    )


def bucket(
    limit: int, burst: int | None = None, seconds: float = 1.0, name: str = "requests", **more
) -> Limit:
    burst = limit if burst is None else burst
    return Limit(name=name, limit=limit, window_ms=int(seconds * 1000), burst=burst, **more)
