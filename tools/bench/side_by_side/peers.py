"""What a team would use instead, each in its fast set-up: hiredis, one shared client, a large pool."""

import asyncio

import limits
import redis.asyncio
from limits.aio.storage import RedisStorage
from limits.aio.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter
from purgatory import AsyncCircuitBreakerFactory
from purgatory.service._async.unit_of_work import AsyncRedisUnitOfWork
from pyrate_limiter import Duration, Limiter, Rate, RedisBucket
from throttled.asyncio import RateLimiterType, Throttled, rate_limiter, store

from fuseboard.store.single_store import SingleStore
from fuseboard.store.store import pack
from tools.bench.side_by_side.figures import Call

#: More than callers, so that no peer waits for a connection.
POOL = 500


def _storage(url: str) -> RedisStorage:
    # Its other Redis bridge, coredis, costs about half as much again.
    return RedisStorage(f"async+{url}", implementation="redispy", max_connections=POOL)


async def limits_moving(url: str) -> Call:
    """One moving window for all callers."""
    limiter, item = MovingWindowRateLimiter(_storage(url)), limits.parse("1000000/minute")

    async def call(number: int) -> None:
        if not await limiter.hit(item, "one"):
            raise SystemExit("limits refused a call: its limit is too low for this machine")

    return call


async def throttled_gcra(url: str) -> Call:
    throttle = Throttled(
        using=RateLimiterType.GCRA.value,
        quota=rate_limiter.per_sec(10_000_000, burst=10_000_000),
        store=store.RedisStore(server=url, options={"CONNECTION_POOL_KWARGS": {"max_connections": POOL}}),
    )

    async def call(number: int) -> None:
        await throttle.limit("one")

    return call


async def pyrate(url: str) -> Call:
    client = redis.asyncio.Redis.from_url(url, max_connections=POOL)
    bucket = await RedisBucket.init([Rate(1_000_000, Duration.SECOND)], client, "pyrate")
    limiter = Limiter(bucket)

    async def call(number: int) -> None:
        await limiter.try_acquire_async("one", blocking=False)

    return call


async def stack(url: str) -> Call:
    """Breaker, vendor limit and tenant quota composed of libraries: four commands in a row."""
    breakers = AsyncCircuitBreakerFactory(uow=AsyncRedisUnitOfWork(f"{url}?max_connections={POOL}"))
    await breakers.initialize()
    vendor, vendor_item = MovingWindowRateLimiter(_storage(url)), limits.parse("1000000/minute")
    quota, quota_item = FixedWindowRateLimiter(_storage(url)), limits.parse("1000000/minute")
    names = [f"tenant-{number:03d}" for number in range(20)]

    async def call(number: int) -> None:
        async with await breakers.get_breaker("payments"):
            if not await vendor.hit(vendor_item, "vendor"):
                raise SystemExit("the stack refused a call: its limit is too low for this machine")
            await quota.hit(quota_item, names[number % 20])

    return call


async def bare_script(opened: SingleStore) -> Call:
    """``return 1`` by EVALSHA, once per call, over a connection like ours."""
    sha = await opened.call("SCRIPT", "LOAD", "return 1")
    assert isinstance(sha, bytes)
    command = pack("EVALSHA", sha, 0)
    loop = asyncio.get_running_loop()

    async def call(number: int) -> None:
        future = loop.create_future()
        opened.ask(command, future.set_result)
        await future

    return call
