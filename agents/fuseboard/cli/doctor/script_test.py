"""Runs every script of the agent with the agent's own code, on a dependency that is never called."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

import hiredis
import msgspec

from fuseboard.composition import compose_admission
from fuseboard.configuration.checked_config import CheckedConfig
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.contract import keys
from fuseboard.contract.policy import (
    BreakerPolicy,
    ConfigHead,
    Dependency,
    Limit,
    Policy,
    Tier,
    Tuning,
    encode_policy,
    hash_of,
)
from fuseboard.contract.scripts import (
    BACKLOG,
    BACKLOG_CHANGE,
    BACKLOG_END,
    BACKLOG_KEEP,
    BACKLOG_LOOK,
    BACKLOG_SUBMIT,
    BACKLOG_TAKE,
    IDEMPOTENCY,
    LOCK,
    Script,
)
from fuseboard.contract.words import Algorithm, ConfigSource, Mode, Outcome, Period
from fuseboard.errors import Refused
from fuseboard.reporting.counters import Counters
from fuseboard.settings import AgentSettings
from fuseboard.store import Store, open_store
from fuseboard.store.store import ConnectionLostError, OnReply, Reply, Word, ignore

DEPENDENCY = "fuseboard-doctor"
TENANT = "(fuseboard doctor)"
WAIT_S = 2.0

_RING = Limit(name="ring", limit=1_000_000, window_ms=1000, algorithm=Algorithm.SLIDING_WINDOW)
_LIMITS = (
    _RING,
    Limit(name="bucket", limit=1_000_000, window_ms=1000, burst=1_000_000),
    msgspec.structs.replace(_RING, name="period", algorithm=Algorithm.FIXED_WINDOW, period=Period.HOUR),
    msgspec.structs.replace(_RING, name="slots", algorithm=Algorithm.CONCURRENCY),
    msgspec.structs.replace(_RING, name="tokens", measure="tokens"),
)


class RecordingStore:
    """A store that records the errors of its scripts, and how long they took."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.errors: list[str] = []
        self.took_s: list[float] = []
        self.answers = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def run(
        self, script: Script, keys: tuple[bytes, ...], arguments: Sequence[Word], on_reply: OnReply
    ) -> None:
        asked = monotonic()

        def answered(reply: Reply) -> None:
            self.answers += 1
            self.took_s.append(monotonic() - asked)
            if isinstance(reply, Exception):
                self.errors.append(f"{script.name}: {reply}")
            on_reply(reply)

        self._store.run(script, keys, arguments, answered)


class ScriptTest:
    def __init__(self, settings: AgentSettings, tuning: Tuning) -> None:
        self._environment = settings.environment
        self._lock = keys.lock(self._environment, TENANT)
        self._request = keys.idempotency(self._environment, TENANT, "POST", "/", "")
        self._store = open_store(settings.redis_url)
        self._listening = RecordingStore(self._store)
        configuration = Configuration(environment=settings.environment)
        configuration.apply(_offer(settings.environment, tuning))
        self._changed = asyncio.Event()
        self._admission = compose_admission(
            configuration=configuration,
            counters=Counters(),
            store=self._listening,  # type: ignore[arg-type] # it has whatever the store has
            server="fuseboard-doctor",
            environment=settings.environment,
            on_change=self._changed.set,
        )

    @property
    def errors(self) -> list[str]:
        return self._listening.errors

    async def run(self, calls: int) -> list[float]:
        """The duration of each of ``calls`` decisions. Leaves nothing in Redis."""
        self._admission.start()
        try:
            await self._until(lambda: self._admission.mode is not Mode.LOCAL)
            await self._every_script()
            if self.errors:
                return []
            self._listening.took_s.clear()
            for _ in range(calls):
                await self._admission.admit_request(TENANT)
            return self._listening.took_s[:calls]
        finally:
            await self._forget()
            await self._admission.stop()

    async def _every_script(self) -> None:
        admission = self._admission
        lock, request = self._lock.encode(), self._request.encode()
        for action in ("take", "release"):
            self._listening.run(LOCK, (lock,), (action, TENANT, 1_000_000, 1000, 0), ignore)
        for action in ("begin", "done"):
            arguments = (action, TENANT, 1_000_000, 1000, "an answer", 0)
            self._listening.run(IDEMPOTENCY, (request,), arguments, ignore)
        self._every_script_of_the_backlog()
        with suppress(Refused):
            permit = await admission.admit_call(DEPENDENCY, costs={"tokens": 2})
            admission.settle(permit.decision, "tokens", 1)
            # Trips the breaker, which writes every kind of key.
            admission.report(permit, Outcome.FAILURE)
            await self._until(lambda: self._listening.answers >= 7 + len(BACKLOG) or bool(self.errors))
            if self.errors:
                return  # and the store may have dropped a connection that may not call scripts
            # The script works without the history, but people need it.
            try:
                written = await self._store.call("EXISTS", keys.transitions(self._environment, DEPENDENCY))
            except (OSError, TimeoutError, hiredis.ReplyError, ConnectionLostError) as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                return
            if written != 1:
                self.errors.append("report: no permission to write the history of breakers (XADD)")

    def _every_script_of_the_backlog(self) -> None:
        """One job of a backlog that no worker asks."""
        queue = tuple(
            keys.backlog(self._environment, DEPENDENCY, part).encode() for part in keys.BACKLOG_PARTS
        )
        named = (keys.override, keys.breaker, keys.cooldown, keys.outcomes, keys.evidence, keys.transitions)
        guard = tuple(key(self._environment, DEPENDENCY).encode() for key in named)
        channel = keys.backlog_channel(self._environment)
        job = [DEPENDENCY, "", 5, 0, 0, 1, 1, 1, 0, 1, ["calls", 1], 10, 1000, 100, channel, DEPENDENCY]
        question = [0, "doctor", 1, 1, 1_000_000, 1_000_000, 0, DEPENDENCY, 0, 0, 0]
        pack = msgspec.msgpack.encode
        for script, first, arguments in (
            (BACKLOG_SUBMIT, (), (pack(job), b"")),
            (BACKLOG_TAKE, guard, (pack(question), pack([1, 1_000_000, 1_000_000, []]))),
            (BACKLOG_KEEP, (), (pack([1_000_000, [], [DEPENDENCY, 0]]),)),
            (BACKLOG_END, (), (pack([DEPENDENCY, 0, 1, 0, 1_000_000, "", channel, DEPENDENCY]), b"")),
            (BACKLOG_CHANGE, (), (DEPENDENCY, 1, 1_000_000, channel, DEPENDENCY)),
            (BACKLOG_LOOK, (), (DEPENDENCY,)),
        ):
            self._listening.run(script, (*first, *queue), arguments, ignore)

    async def _until(self, done: Callable[[], bool]) -> None:
        until = monotonic() + WAIT_S
        while not done() and monotonic() < until:  # noqa: ASYNC110 - a person waits, once
            await asyncio.sleep(0.005)

    async def _forget(self) -> None:
        environment = self._environment
        named = (keys.breaker, keys.cooldown, keys.outcomes, keys.evidence, keys.transitions)
        ours = [key(environment, DEPENDENCY) for key in (*named, keys.cooldown_claim)]
        ours += [keys.vendor_limit(environment, DEPENDENCY, limit.name) for limit in _LIMITS]
        ours += [keys.tenant_quota(environment, TENANT, _RING.name), self._lock, self._request]
        ours += [keys.backlog(environment, DEPENDENCY, part) for part in keys.BACKLOG_PARTS]
        # Keys that cannot be removed expire. The errors are reported already.
        with suppress(OSError, TimeoutError, hiredis.ReplyError, ConnectionLostError):
            for key in ours:
                await self._store.call("DEL", key)


def _offer(environment: str, tuning: Tuning) -> CheckedConfig:
    policy = Policy(
        environment=environment,
        default_tier="doctor",
        tiers=(Tier(name="doctor", quotas=(_RING,)),),
        dependencies=(
            Dependency(
                name=DEPENDENCY,
                vendor_limits=_LIMITS,
                breaker=BreakerPolicy(consecutive_failures=1, minimum_servers=1, open_ms=1000),
            ),
        ),
        tuning=tuning,
    )
    document = encode_policy(policy)
    head = ConfigHead(epoch=1, revision=1, hash=hash_of(document))
    return CheckedConfig(
        head=head,
        source=ConfigSource.DISK,
        policy=policy,
        document=document,
        tenants={TENANT: None},
    )
