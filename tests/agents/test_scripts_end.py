"""No arguments make a script of the agent run on: in the ACL profile ``hardened``, a pod starts no other.

Each case is a question that an agent never asks, with the most that one request can contain. A script
may refuse it, but it must end: a server that is blocked answers nobody.
"""

import msgspec
import pytest
import redis

from controlplane.embedded.valkey import Valkey
from fuseboard.contract.scripts import ADMIT, DRAIN, REPORT, SETTLE, Script

#: Redis answers BUSY after 5 s. A blocked machine is slow, an endless loop is not.
BOUND_S = 4.0
HUGE = 1e15
RING = (1, 10.0, 1_000_000, 10, 0, 0, 10.0, 10)
SLOTS = (4, HUGE, 1_000_000, 0, 0, 0, HUGE, 0)
BUCKET = (2, HUGE, 1_000_000, HUGE, 0, 0, HUGE, HUGE)
GUARD = tuple(f"{{d:end}}:{name}" for name in ("override", "breaker", "cooldown"))
AFTER = tuple(f"{{d:end}}:{name}" for name in ("outcomes", "evidence", "transitions"))

Case = tuple[Script, tuple[str, ...], tuple[object, ...]]


def key_names(count: int) -> tuple[str, ...]:
    return tuple(f"{{d:end}}:limit:{number}" for number in range(count))


def admit(rules: tuple[float, ...], *groups: tuple[float, ...], keys: int = 1) -> Case:
    asked = [0, "token", 0, 1, 1, *rules, *(number for group in groups for number in group)]
    return ADMIT, key_names(keys), (msgspec.msgpack.encode(asked),)


def chains(classes: int, limits: int) -> Case:
    """In each class, every group needs two limits, and shares each with one other group.

    It takes a part of both that the smaller one determines, so many rounds pass until one is spent.
    """
    asked: list[object] = [0, "token", 0, limits]
    for size in range(limits):
        limit = 1000 * 4.0**size
        asked += (size + 1, 2, limit, 3.6e9, limit, 0, 0, limit, limit)
    for number in range(classes):
        for group in range(limits + 1):
            own = [place for place in (group - 1, group) if 0 <= place < limits]
            asked += (99 - number, 1e15, len(own))
            for place in own:
                # The limit of the group before it is known, the other one has the next key.
                known = number * limits + place + 1 if place < group else 0
                asked += (known, place + 1, 1)
    return ADMIT, key_names(classes * limits), (msgspec.msgpack.encode(asked),)


def guarded(probes: float, count: float) -> Case:
    asked = [0, "t", 1, probes, HUGE, HUGE, 0, "web-1", 0, 0, 0, 50, count, 0]
    return ADMIT, (*GUARD, *AFTER), (msgspec.msgpack.encode(asked),)


def report(*, window: float = 30, probes: int = 0) -> Case:
    numbers = (1, 1, 1, 0, 1, 5, 50, 50, 20, window, 2, 1000, 1000, 2, 0, 0)
    outcomes = ("none", 0) * probes
    return REPORT, (*GUARD, *AFTER), ("web-1", *numbers, "channel", "end", *outcomes)


CASES: dict[str, Case] = {
    "a group backwards": admit(BUCKET, (50, 1, -1)),
    "a group backwards, in general": admit(SLOTS, (50, 1, 1, 0, 1, 1), (50, 1, -1)),
    "a group of no number": admit(BUCKET, (50, 1, float("nan"))),
    "endless rules": (ADMIT, key_names(1), (msgspec.msgpack.encode([0, "token", 0, HUGE, 1, *RING]),)),
    "a ring of many": admit((1, 10, 1_000_000, HUGE, 0, 0, 10, HUGE), (50, 1, 1, 0, 1, 1)),
    "a ring of no time": admit((1, 10, 0, 10, 0, 0, 10, 10), (50, 99, 1, 0, 1, 1)),
    "a ring of a moment": admit((1, 10, 1e-300, 10, 0, 0, 10, 10), (50, 99, 1, 0, 1, 1)),
    "a ring of ages": admit((1, 10, 1e308, 10, 0, 0, 10, 10), (50, 99, 1, 0, 1, 1)),
    "a ring of no number": admit((1, 10, float("nan"), 10, 0, 0, 10, 10), (50, 99, 1, 0, 1, 1)),
    "slots for all": admit(SLOTS, (50, HUGE, 1, 0, 1, 1)),
    "many slots": admit(SLOTS, (50, 900_000, 1, 0, 1, 1)),
    "many groups": admit(RING, (50, 3, 1, 0, 1, 1), *[(50, 3, 1, 1, 1, 1)] * 200_000),
    "groups of many limits": admit(RING, *[(50, 3, 1, 0, 1, 1)] * 4000, keys=4000),
    "rounds": chains(1, 20),
    "classes of many rounds": chains(90, 10),
    "probes for all": guarded(HUGE, HUGE),
    "a long window": report(window=HUGE),
    "a window of no number": report(window=float("nan")),
    "many probes": report(probes=500_000),
    "a correction of a ring of many": (
        SETTLE,
        key_names(1),
        (msgspec.msgpack.encode([[1, 10, 1_000_000, HUGE, 0, 0, 10, HUGE], 1, 1, 0, []]),),
    ),
    "a charge of a ring of no time": (
        DRAIN,
        ("{d:end}:told", "{d:end}:offline", *key_names(1)),
        ("segment", 60, 60, msgspec.msgpack.encode([[1, 10, 0, 10, 0, 0, 10, 10], [], 1, 1])),
    ),
}


@pytest.mark.parametrize("function", [False, True], ids=["script", "function"])
@pytest.mark.parametrize("case", CASES)
def test_finding_8_no_arguments_make_it_run_on(valkey: Valkey, case: str, function: bool) -> None:
    script, keys, arguments = CASES[case]
    with redis.Redis.from_url(valkey.url, socket_timeout=BOUND_S) as client:
        # A half-open breaker with very many permits: every pod can write it.
        permits = " ".join(f"p{number}=9000000000000000" for number in range(200_000))
        client.set(GUARD[1], f"half_open 1 0 1 1 0 open_time_over {permits}")
        if function:
            client.function_load(script.library)
        else:
            client.script_load(script.text)
        refusal = ""
        try:
            client.execute_command(*script.words(function=function), len(keys), *keys, *arguments)
        except redis.ResponseError as error:
            refusal = str(error)
        assert not refusal.startswith(("NOSCRIPT", "ERR Function not found"))


@pytest.mark.parametrize(("classes", "limits"), [(1, 20), (90, 10)])
def test_many_rounds_leave_no_call_that_every_limit_allows(valkey: Valkey, classes: int, limits: int) -> None:
    """Rounds were counted over all classes: those after the 500th got one each, or the script failed."""
    script, keys, arguments = chains(classes, limits)
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
        sha = client.script_load(script.text)
        reply = msgspec.msgpack.decode(client.evalsha(sha, len(keys), *keys, *arguments))
    figures = reply[5]
    groups = classes * (limits + 1)
    granted, blocked = figures[: 3 * groups : 3], figures[1 : 3 * groups : 3]
    left = figures[3 * groups :: 3]
    assert all(place > 0 for place in blocked), "each group wants more than there is"
    assert all(left[place - 1] == 0 for place in blocked), "and is blocked by what is spent"
    first = granted[: limits + 1]
    assert all(granted[at : at + limits + 1] == first for at in range(0, groups, limits + 1))


@pytest.mark.parametrize(("probes", "more"), [(10_000, ()), (10_000, ("window_calls", 50))])
def test_a_report_of_as_many_probes_as_it_says_is_taken(
    valkey: Valkey, probes: int, more: tuple[object, ...]
) -> None:
    """Its message said 10,000, and it took 9,990."""
    for count, refused in ((probes, False), (probes + 1, True)):
        script, keys, arguments = report(probes=count)
        arguments = (*arguments[:19], *more, *arguments[19:])
        with redis.Redis.from_url(valkey.url) as client:
            client.flushall()
            sha = client.script_load(script.text)
            if refused:
                with pytest.raises(redis.ResponseError, match="at most 10000 probes"):
                    client.evalsha(sha, len(keys), *keys, *arguments)
            else:
                assert client.evalsha(sha, len(keys), *keys, *arguments)
