"""Checks Redis "limits": can it be reached, is it suitable, and may the agent use it?"""

import asyncio
import re
import time
from contextlib import closing

import hiredis

from fuseboard.cli.doctor.findings import Finding, clock_finding, fail, ok, skip, warn
from fuseboard.cli.doctor.script_test import DEPENDENCY, ScriptTest
from fuseboard.configuration.redis_source import FAILURES, RedisSource
from fuseboard.contract import keys
from fuseboard.contract.policy import Policy, Tuning
from fuseboard.contract.store_url import OPTIONS, StoreUrl, unknown_options
from fuseboard.contract.words import Algorithm
from fuseboard.errors import Misconfigured
from fuseboard.explain.found_configuration import find_configuration
from fuseboard.settings import AgentSettings
from fuseboard.store import Store, open_store
from fuseboard.store.store import ConnectionLostError
from fuseboard.store.subscription import Subscription
from fuseboard.store.tls import tls_context

CALLS = 200
#: The timeout of the connection without a password, with its answer.
LOGIN_S = 1.0
OLDEST = 7

_FAILURES = (OSError, TimeoutError, hiredis.ReplyError, ConnectionLostError)


async def check_redis(settings: AgentSettings) -> list[Finding]:
    url = StoreUrl.parse(settings.redis_url)
    where = url.socket or ",".join(str(address) for address in url.addresses)
    store = open_store(settings.redis_url)
    try:
        await store.connect(2.0)
    except _FAILURES as error:
        return [_unreachable(settings, where, error), skip("Redis: other checks", "Redis cannot be reached")]
    try:
        began = time.time()
        seconds, micros = _pair(await store.call("TIME"))
        took_s = time.time() - began
        ahead_s = began + took_s / 2 - seconds - micros / 1_000_000
        findings = [
            ok("redis", f"{where} answers in {took_s * 1000:.1f} ms ({url.kind})"),
            await _check_version(store),
            await _check_eviction(store),
            clock_finding("clock of Redis", "Redis's", ahead_s, took_s / 2),
            await _check_login(url),
            *check_options(settings.redis_url),
        ]
    except _FAILURES as error:
        return [_unreachable(settings, where, error)]
    finally:
        await store.close()
    configuration, tuning = await _check_configuration(settings)
    return [*findings, *configuration, *await _check_scripts(settings, tuning)]


def check_options(url: str) -> list[Finding]:
    if not (unknown := unknown_options(url)):
        return []
    does = f"agents ignore these options of FUSEBOARD_REDIS_URL: {', '.join(unknown)}"
    do = f"remove them; known are {', '.join(OPTIONS)}. User, password and database belong before the '?'"
    return [warn("options of the URL", does, do)]


def _unreachable(settings: AgentSettings, where: str, error: Exception) -> Finding:
    text = str(error) or type(error).__name__
    if isinstance(error, hiredis.ReplyError) and text.startswith(("WRONGPASS", "NOAUTH", "ERR AUTH")):
        do = "set user and password in FUSEBOARD_REDIS_URL, and percent-encode all but letters and digits"
    elif isinstance(error, hiredis.ReplyError) and text.startswith("NOPERM"):
        do = _rights_to_give(settings.environment)
    elif "LOADING" in text:
        do = "wait: Redis is loading its data from disk"
    else:
        do = "is Redis running, is FUSEBOARD_REDIS_URL its address seen from here, and is there a firewall?"
    return fail("redis", f"{where}: {text}", do)


async def _check_version(store: Store) -> Finding:
    try:
        text = _text(await store.call("INFO", "server"))
    except hiredis.ReplyError as error:
        return skip("redis version", f"this user may not run INFO ({error})")
    valkey, redis = _field(text, "valkey_version"), _field(text, "redis_version")
    name = f"Valkey {valkey}" if valkey else f"Redis {redis}"
    major = (redis or "0").partition(".")[0]
    if major.isdigit() and int(major) >= OLDEST:
        return ok("redis version", name)
    return fail("redis version", f"{name} is too old for '#!lua' scripts", f"use Redis {OLDEST} or Valkey")


async def _check_eviction(store: Store) -> Finding:
    try:
        text = _text(await store.call("INFO", "memory"))
    except hiredis.ReplyError as error:
        return skip("eviction policy", f"this user may not run INFO ({error})")
    policy, most = _field(text, "maxmemory_policy"), _field(text, "maxmemory_human")
    if policy == "noeviction":
        return ok("eviction policy", f"noeviction, maxmemory {most or 'unlimited'}")
    return fail(
        "eviction policy",
        f"{policy or 'unknown'}: a full Redis would drop counters and breakers",
        "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf",
    )


async def _check_login(url: StoreUrl) -> Finding:
    """Check that access without a password is refused."""
    if url.socket or url.kind == "sentinel":
        return skip("default user", "checked only for a single server or a Cluster with an address")
    host, port = url.addresses[0]
    try:
        async with asyncio.timeout(LOGIN_S):
            reader, writer = await asyncio.open_connection(
                host, port, ssl=tls_context(url.ca_file) if url.tls else None
            )
            with closing(writer):
                writer.write(b"PING\r\n")
                answer = await reader.readline()
    except (OSError, TimeoutError) as error:
        return skip("default user", f"the check without a password failed ({error})")
    if not answer.startswith(b"+PONG"):
        return ok("default user", "unauthenticated access is refused")
    says = "anyone who reaches Redis can change limits and breakers: the default user has no password"
    do = "ACL SETUSER default off, or requirepass; and a separate user for agents"
    local = host in ("127.0.0.1", "::1", "localhost")
    return warn("default user", says, do) if local else fail("default user", says, do)


async def _check_configuration(settings: AgentSettings) -> tuple[list[Finding], Tuning]:
    check = "configuration"
    source = RedisSource(url=settings.redis_url, environment=settings.environment)
    try:
        channel = keys.config_channel(settings.environment).encode()
        subscription = Subscription({channel: lambda _: None}, lambda: None)
        try:
            await source.open_subscription(subscription)
        finally:
            subscription.close()
        found = await find_configuration(settings)
    except Misconfigured as error:
        do = f"run 'python manage.py republish {settings.environment}', or edit anything on the dashboard"
        return [warn(check, f"{error}: nothing is limited", do)], Tuning()
    except FAILURES as error:
        return [fail(check, f"cannot be read: {error}", _rights_to_give(settings.environment))], Tuning()
    finally:
        await source.close()
    policy, head = found.snapshot.policy, found.snapshot.head
    says = f"revision {head.revision}: {len(policy.tiers)} tiers, {len(policy.dependencies)} dependencies"
    finding = warn(check, f"{says}; {found.notes[0]}", "see above") if found.notes else ok(check, says)
    return [finding, *_costs_to_state(policy), *_unused_latency(policy)], policy.tuning


def _costs_to_state(policy: Policy) -> list[Finding]:
    """The costs that callers must state, or limits count nothing. Only a running pod knows if they do."""
    found = []
    for dependency in policy.dependencies:
        measures = sorted({limit.measure for limit in dependency.vendor_limits} - {"calls"})
        if measures:
            costs = ", ".join(f"{measure!r}: estimate" for measure in measures)
            says = f"calls to {dependency.name} must pass costs={{{costs}}}, or its limits do not count them"
            found.append(ok("costs", says))
    return found


def _unused_latency(policy: Policy) -> list[Finding]:
    """Dependencies whose limits are to follow the time of their calls, and cannot."""
    found = []
    for dependency in policy.dependencies:
        if not dependency.latency_rise_percent:
            continue
        says = f"latency_rise_percent of {dependency.name} lowers no limit"
        limits = [limit for limit in dependency.vendor_limits if not limit.shadow]
        if all(limit.algorithm is not Algorithm.CONCURRENCY for limit in limits):
            found.append(warn("limits", says, "give it a limit with the algorithm concurrency"))
        if not policy.tuning.vendor_floor_percent:
            found.append(warn("limits", says, "set vendor_floor_percent in the settings of the environment"))
    return found


async def _check_scripts(settings: AgentSettings, tuning: Tuning) -> list[Finding]:
    """Decide for real, on a separate dependency, and clean up."""
    trial = ScriptTest(settings, tuning)
    took_s = sorted(await trial.run(CALLS))
    if trial.errors:
        says = f"scripts fail: {trial.errors[0]}"
        denied = any(re.search(r"NOPERM|permission|ACL", error) for error in trial.errors)
        do = _rights_to_give(settings.environment) if denied else "see the message; is the server a replica?"
        return [fail("scripts", says, do), skip("latency", "the scripts fail")]
    findings = [ok("scripts", f"all work; the test keys of dependency {DEPENDENCY!r} are removed")]
    if len(took_s) < CALLS:
        says = f"only {len(took_s)} of {CALLS} questions got an answer"
        return [*findings, fail("latency", says, "check the latency of Redis: redis-cli --latency")]
    p50_ms, p99_ms = (took_s[int(len(took_s) * part)] * 1000 for part in (0.5, 0.99))
    deadline_ms = tuning.store_deadline_us / 1000
    says = (
        f"p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms of {CALLS} decisions; the deadline is {deadline_ms:g} ms"
    )
    do = "move Redis closer to the pod, look for a busy host, or raise store_deadline_us"
    if p99_ms > deadline_ms:
        return [*findings, fail("latency", f"{says}: late calls are decided locally", do)]
    return [*findings, warn("latency", says, do) if p99_ms > deadline_ms / 2 else ok("latency", says)]


def _rights_to_give(environment: str) -> str:
    return (
        "grant the agent's user its permissions: the line that 'python manage.py redis_acl' prints, "
        f"or ACL SETUSER <user> ~fb1:{environment}:* "
        f"&fb1:{environment}:* +@connection +@read +@write +@scripting +@pubsub +@transaction +time +info"
    )


def _field(info: str, name: str) -> str:
    found = re.search(rf"^{name}:(.*?)\r?$", info, flags=re.MULTILINE)
    return found.group(1) if found else ""


def _text(reply: object) -> str:
    return reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)


def _pair(reply: object) -> tuple[int, int]:
    if not isinstance(reply, list) or len(reply) != 2:
        raise ConnectionLostError(f"TIME was answered with {reply!r}")
    return int(reply[0]), int(reply[1])
