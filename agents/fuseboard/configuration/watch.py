"""Listens to Redis for newer configurations, and asks Redis for the records of new tenants.

Runs on the application's loop, on connections of its own, so a slow answer delays no decision. A lost
message costs only time: every subscription begins with a look at the head, looks recur, and the gateway
says the same over HTTP.
"""

import asyncio
import logging
import random
from time import monotonic

import hiredis
import msgspec

from fuseboard.cancellation import stop_tasks, wait_for_event
from fuseboard.configuration.checked_config import ConfigError, check_config
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.configuration.redis_copy import StoredConfig, read_configuration, read_head
from fuseboard.configuration.redis_source import FAILURES, IO_TIMEOUT_S, RedisSource, has_moved
from fuseboard.configuration.snapshot import HELD_TENANTS
from fuseboard.contract import keys
from fuseboard.contract.policy import ConfigHead
from fuseboard.contract.sync import Nudge, decode_nudge
from fuseboard.contract.words import ConfigSource
from fuseboard.store.subscription import OnMessage, Subscription

logger = logging.getLogger("fuseboard.configuration")

#: The head is looked at after this silence of the subscription, jittered by 20 percent.
LOOK_S = 15.0
#: After a failure: full jitter up to this time, doubling from the first to the last.
BACKOFF_S = (0.2, 10.0)
#: How long ``stop`` waits for a question in progress.
STOP_S = 0.2
#: How long a cancelled task may take to end before it is cancelled again: longer than closing a connection
#: does.
CANCEL_S = 2 * IO_TIMEOUT_S
#: After an unusable answer, new tenants do not wait for Redis for this time.
USELESS_S = 0.25
#: Attempts to read a configuration that changes while it is read. The next message starts new ones.
_TRIES = 5
#: Messages that wait to be read. When there are more, the head says what they would have said.
MAX_NUDGES = 1_000

_FAILURES = (*FAILURES, ConfigError)


class Watch:
    """Follows the configuration in Redis until stopped. Never raises into the application."""

    def __init__(
        self,
        *,
        url: str,
        configuration: Configuration,
        breaker_opened: OnMessage = lambda _: None,
        rng: random.Random | None = None,
    ) -> None:
        self._configuration = configuration
        environment = configuration.environment
        self._channels: dict[bytes, OnMessage] = {
            keys.config_channel(environment).encode(): self._nudged,
            keys.breaker_channel(environment).encode(): breaker_opened,
        }
        #: Channels of other parts. A user of Redis may not be allowed to read them.
        self._others: dict[bytes, OnMessage] = {}
        self._subscription: Subscription | None = None
        self._nudges: list[bytes] = []
        # There is a message, or the subscription has ended.
        self._news = asyncio.Event()
        self._rng = rng or random.Random()
        self._source = RedisSource(url=url, environment=configuration.environment)
        self._turn = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._batch: asyncio.Task[None] | None = None
        self._batches: set[asyncio.Task[None]] = set()
        self._asked_at = 0.0
        self._useless_until = 0.0
        # Some libraries mistake a cancellation for a timeout and return to the loop, which checks this flag.
        self._stopping = False
        #: Set when the first look has ended, well or not.
        self.looked = asyncio.Event()
        self.connected = False
        self.failures = 0

    def listen(self, channel: str, on_message: OnMessage) -> None:
        """Call ``on_message`` with each message of another channel, over the same connection.

        Messages are lost while Redis is away or refuses the channel, so none may be needed.
        """
        self._others[channel.encode()] = on_message
        if self._subscription is not None and self._subscription.alive:
            self._subscription.add(channel.encode(), on_message)

    def start(self) -> None:
        self._configuration.fetch = self.fetch_soon
        self._task = asyncio.create_task(self._run(), name="fuseboard-watch")

    async def stop(self) -> None:
        self._configuration.fetch, self._stopping = None, True
        # Let a question or a handshake in progress end: the socket of a cancelled one closes later.
        try:
            async with asyncio.timeout(STOP_S):
                await self.looked.wait()
                await self._turn.acquire()
        except TimeoutError:
            logger.debug("watch.stopped_in_a_question")
        await stop_tasks(*self._batches, self._task, within_s=CANCEL_S * 2, again_s=CANCEL_S)
        await self._source.close()

    # New tenants

    def fetch_soon(self) -> asyncio.Future[None] | None:
        """The batch that will ask for all wanted tenants of this tick; ``None`` when it would not help."""
        now = monotonic()
        if not self.connected or now < self._useless_until:
            return None
        deadline_s = self._configuration.snapshot.tuning.store_deadline_us / 1e6
        if self._asked_at and now - self._asked_at > deadline_s:
            return None  # Redis hangs: no caller waits for an answer that is already late
        if self._batch is None:
            self._batch = asyncio.create_task(self._fetch_wanted(), name="fuseboard-tenants")
            self._batches.add(self._batch)
            self._batch.add_done_callback(self._batches.discard)
        return self._batch

    async def _fetch_wanted(self) -> None:
        async with self._turn:
            self._batch = None  # later callers wait for the next batch
            try:
                await self._catch_up([])
            except _FAILURES as error:
                self._failed(error)

    # Following the head

    async def _run(self) -> None:
        attempt = 0
        while not self._stopping:
            began = monotonic()
            self._nudges.clear()
            self._news.clear()
            subscription = self._subscription = Subscription(self._channels, self._news.set)
            try:
                await self._follow(subscription)
            except _FAILURES as error:
                self._failed(error)
            except Exception:
                # A defect of the agent must not end the task. Otherwise the application would run on an old
                # configuration without notice.
                self.failures += 1
                logger.exception("watch.defect")
            finally:
                # A connection that breaks at once does not count: wait longer each time.
                settled = self.connected and monotonic() - began > BACKOFF_S[1]
                attempt = 0 if settled else attempt + 1
                self.connected = False
                self.looked.set()
                self._subscription = None
                subscription.close()
            await asyncio.sleep(self._rng.uniform(0, min(BACKOFF_S[1], BACKOFF_S[0] * 2 ** min(attempt, 10))))

    async def _follow(self, subscription: Subscription) -> None:
        await self._source.open_subscription(subscription)
        # Only now: a channel that Redis refuses must not cost the configuration its own.
        for channel, on_message in self._others.items():
            subscription.add(channel, on_message)
        await self._look([])
        self.connected = True
        self.looked.set()
        while not self._stopping:
            nudges = await self._next_nudges(subscription)
            current = self._configuration.snapshot.head
            if nudges and all((n.epoch, n.revision) <= (current.epoch, current.revision) for n in nudges):
                continue
            await self._look(nudges)

    async def _look(self, nudges: list[Nudge]) -> None:
        async with self._turn:
            await self._catch_up(nudges)

    def _nudged(self, message: bytes) -> None:
        if len(self._nudges) < MAX_NUDGES:
            self._nudges.append(message)
        self._news.set()

    async def _next_nudges(self, subscription: Subscription) -> list[Nudge]:
        """All messages that have arrived, after waiting for the first; empty when it is time to look without
        one.
        """
        await wait_for_event(self._news, LOOK_S * self._rng.uniform(0.8, 1.2))
        self._news.clear()
        if not subscription.alive:
            raise ConnectionResetError(f"the subscription has ended: {subscription.ended_by}")
        messages, self._nudges = self._nudges, []
        if len(messages) == MAX_NUDGES:
            return []
        try:
            return [decode_nudge(message) for message in messages]
        except (msgspec.DecodeError, UnicodeDecodeError):
            logger.warning("watch.unreadable_nudge; looking at the head instead")
            return []

    async def _catch_up(self, nudges: list[Nudge]) -> None:
        """Fetch what is newer in Redis, and the wanted tenants, as of one moment."""
        self._asked_at = monotonic()
        try:
            for _ in range(_TRIES):
                try:
                    if await self._fetch(nudges):
                        return
                except hiredis.ReplyError as error:
                    if not has_moved(error):
                        raise
                    self._source.leave()
        finally:
            self._asked_at = 0.0

    async def _fetch(self, nudges: list[Nudge]) -> bool:
        """One attempt; ``False`` when the head changed meanwhile."""
        configuration = self._configuration
        head = await read_head(self._source, configuration.environment)
        current = configuration.snapshot.head
        if head is None or _order(head) < _order(current) or configuration.is_poisoned(head):
            self._useless_until = monotonic() + USELESS_S
            return True
        listed = set[str]() if _order(head) == _order(current) else _listed(nudges, current, head)
        kept = configuration.snapshot.tenants
        changed = kept if listed is None else (tenant for tenant in listed if tenant in kept)
        try:
            stored = await read_configuration(
                self._source,
                configuration.environment,
                tenants=tuple(dict.fromkeys((*configuration.wanted(HELD_TENANTS), *changed))),
                with_policy=head.hash != current.hash,
                clock=configuration.clock,
            )
            if stored is None or stored.head != head:
                return False
            self._offer(stored, listed)
        except ConfigError as error:
            configuration.reject(error, head=head, source=ConfigSource.REDIS)
            self._useless_until = monotonic() + USELESS_S
        return True

    def _offer(self, stored: StoredConfig, listed: set[str] | None) -> None:
        configuration = self._configuration
        # Decided now, not when the question was sent: the gateway may have sent tenants in between.
        kept = configuration.snapshot.tenants
        changed = kept if listed is None else (tenant for tenant in listed if tenant in kept)
        offer = check_config(
            environment=configuration.environment,
            head=stored.head,
            document=stored.document,
            tenants=stored.tenants,
            source=ConfigSource.REDIS,
            complete=all(tenant in stored.tenants for tenant in changed),
        )
        configuration.apply(offer)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        if self.connected or self.failures == 1:
            logger.warning("watch.lost: %s: %s; the configuration still applies", type(error).__name__, error)
        self._useless_until = monotonic() + USELESS_S


def _order(head: ConfigHead) -> tuple[int, int]:
    return head.epoch, head.revision


def _listed(nudges: list[Nudge], current: ConfigHead, head: ConfigHead) -> set[str] | None:
    """The tenants that changed from ``current`` to ``head``; ``None`` when the messages do not say."""
    reached, tenants = current.revision, set[str]()
    for nudge in sorted(nudges, key=lambda nudge: nudge.revision):
        if nudge.epoch != current.epoch or nudge.since > reached or nudge.tenants is None:
            return None
        reached = max(reached, nudge.revision)
        tenants.update(nudge.tenants)
    return tenants if reached == head.revision and head.epoch == current.epoch else None
