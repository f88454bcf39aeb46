"""How many decisions one Redis core supports: the real commands of both, sent the same way.

One of our commands decides the calls of 200 callers of 20 tenants in one tick; one command of
``limits`` decides one call. Both are recorded from the wire and replayed over one connection, with the
same number in flight.
"""

import asyncio
import statistics
from unittest import mock

import redis.asyncio.connection

from fuseboard.store.single_store import SingleStore
from fuseboard.store.store import pack
from tools.bench.side_by_side import ours, peers
from tools.bench.side_by_side.bars import Results, say
from tools.bench.side_by_side.figures import cpu_of

CALLERS, TENANTS = 200, 20
AT_ONCE = 16
ROUNDS = 9
DECISIONS_PER_ROUND = {"ours": 100_000, "limits": 8_000}


async def measure(url: str, redis_pid: int, results: Results) -> None:
    async with ours.running(url, "one-core") as pod:
        commands = {"ours": await _our_command(pod), "limits": await _their_command(url)}
        per_command = {"ours": CALLERS, "limits": 1}
        costs: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(-1, ROUNDS):
            for name, command in commands.items():
                times = DECISIONS_PER_ROUND[name] // per_command[name] // AT_ONCE
                before = cpu_of(redis_pid)
                await _replay(pod.store, command, times)
                cost = (cpu_of(redis_pid) - before) * 1e6 / (times * AT_ONCE * per_command[name])
                if number >= 0:
                    costs[name].append(cost)
    for name, found in costs.items():
        say(f"one Redis core, {name}: {1e6 / statistics.median(found):,.0f} decisions per CPU-second")
    pairs = zip(costs["limits"], costs["ours"], strict=True)
    results.ratios["one_redis_core_vs_limits"] = statistics.median(theirs / own for theirs, own in pairs)


async def _our_command(pod: ours.Pod) -> bytes:
    recorded: list[bytes] = []
    run = pod.store.run

    def record(script, keys, arguments, on_reply):
        recorded.append(pack("EVALSHA", script.sha, len(keys), *keys, *arguments))
        run(script, keys, arguments, on_reply)

    call = pod.call(TENANTS)
    # Two, because a caller that was alone last time is sent alone.
    await asyncio.gather(call(0), call(1))
    # Without the store's time there is no deadline, so the recording stays valid.
    timeless = mock.patch.object(pod.admission.health, "store_time_us", return_value=0)
    with timeless, mock.patch.object(pod.store, "run", record):
        await asyncio.gather(*(call(number) for number in range(CALLERS)))
    if len(recorded) != 1:
        raise SystemExit(f"{CALLERS} callers of one tick made {len(recorded)} questions, not one")
    return recorded[0]


async def _their_command(url: str) -> bytes:
    call = await peers.limits_moving(url)
    await call(0)
    recorded: list[bytes] = []
    send = redis.asyncio.connection.AbstractConnection.send_packed_command

    async def record(self, command, *rest, **options):
        recorded.append(b"".join(command) if isinstance(command, list | tuple) else command)
        await send(self, command, *rest, **options)

    with mock.patch.object(redis.asyncio.connection.AbstractConnection, "send_packed_command", record):
        await call(0)
    if len(recorded) != 1 or b"EVALSHA" not in recorded[0]:
        raise SystemExit(f"limits sent {len(recorded)} commands for one call, not one script")
    return recorded[0]


async def _replay(store: SingleStore, command: bytes, times: int) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(times):
        done = loop.create_future()
        waiting = AT_ONCE

        def answered(reply: object) -> None:
            nonlocal waiting
            waiting -= 1
            if isinstance(reply, Exception):
                raise SystemExit(f"a replayed command failed: {reply}")
            if waiting == 0:
                done.set_result(None)  # noqa: B023 - all answered before the next turn

        for _ in range(AT_ONCE):
            store.ask(command, answered)
        await done
