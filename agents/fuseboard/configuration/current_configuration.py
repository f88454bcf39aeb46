"""The configuration that applies: accepts newer ones, never older ones, and knows what it lacks.

Everything here belongs to the event loop. The sync thread prepares a ``CheckedConfig`` and hands it over with
``call_soon_threadsafe``. So a change of policy and tenants is one step between two decisions, and
decisions need no lock.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from itertools import chain, islice
from time import monotonic

import msgspec

from fuseboard.configuration.checked_config import CheckedConfig, ConfigError
from fuseboard.configuration.server_clock import ServerClock
from fuseboard.configuration.snapshot import HELD_TENANTS, Snapshot, TenantRules, TenantTable, built_in
from fuseboard.contract.policy import ConfigHead, Override, Policy
from fuseboard.contract.sync import Applied
from fuseboard.contract.words import ConfigSource, ConfigStatus

logger = logging.getLogger("fuseboard.configuration")

#: New tenants without a record that are remembered for the next heartbeat.
WANTED_TENANTS = 1000
#: The least room for records. One answer can bring all that are wanted, and a full table drops its older
#: half: the default tier would decide a request whose record is gone before that.
MIN_RECORDS = 2 * WANTED_TENANTS

_TRUST = {
    ConfigSource.BUILT_IN: 0,
    ConfigSource.BOOTSTRAP: 1,
    ConfigSource.DISK: 2,
    ConfigSource.REDIS: 3,
    ConfigSource.HTTP: 4,
}


class Configuration:
    """Decisions read ``snapshot``, ``live_servers``, ``override_in_force`` and ``load_record``."""

    def __init__(
        self, *, environment: str, clock: ServerClock | None = None, most_tenants: int = HELD_TENANTS
    ) -> None:
        self.environment = environment
        self.clock = clock or ServerClock()
        self.snapshot: Snapshot = built_in(environment, max(most_tenants, MIN_RECORDS))
        #: Rises with everything that may change the rules of a tenant. What was prepared before is invalid
        #: then.
        self.changes = 0
        #: The bytes of the policy, for the copy on disk; empty for the built-in one.
        self.document = b""
        #: The divisor of local shares: the most pods of the last minutes.
        self.live_servers = 1
        #: Asks Redis for the wanted tenants. Returns the future of that batch, or ``None`` when it would not
        #: help.
        self.fetch: Callable[[], asyncio.Future[None] | None] | None = None
        self._status = ConfigStatus.NONE
        self._error = ""
        self._rejected_from: ConfigSource | None = None
        self._poisoned = ""
        #: The newest head for which every kept tenant is up to date.
        self._complete = self.snapshot.head
        self._behind: dict[str, None] = {}
        self._wanted: dict[str, None] = {}
        #: The policy of that head as it was offered, and the overrides that only gateways keep.
        self._policy = self.snapshot.policy
        self._from_gateways: Mapping[str, Override] = {}
        self._listeners: list[Callable[[Snapshot], None]] = []
        #: Dependency -> the revision up to which its overrides were ended without a new configuration.
        self._ended_overrides: dict[str, int] = {}

    # The configuration that applies

    @property
    def applied(self) -> Applied:
        """The configuration for the next heartbeat. The revision waits until kept tenants are up to date."""
        return Applied(
            epoch=self._complete.epoch,
            revision=self._complete.revision,
            hash=self._complete.hash,
            source=self.snapshot.source,
            status=self._status,
            error=self._error,
        )

    @property
    def complete(self) -> bool:
        """Whether every kept tenant is up to date with ``snapshot.head``."""
        return not self._behind

    def override_in_force(self, dependency: str) -> Override | None:
        """The override of a dependency, unless it has expired by server time or was ended."""
        found = self.snapshot.dependency(dependency)
        if found is None or found.override is None:
            return None
        override = found.override
        ended = override.revision <= self._ended_overrides.get(dependency, -1)
        return None if ended or override.expires_at_us <= self.clock.now_us() else override

    def end_override(self, dependency: str, made_in: int, ended_in: int) -> bool:
        """The override of revision ``made_in`` was ended in ``ended_in``; ``False`` when that is older."""
        if ended_in <= made_in:
            return False
        self._ended_overrides[dependency] = made_in
        logger.warning("override.ended dependency=%s, as Redis says, without a new configuration", dependency)
        return True

    def listen(self, listener: Callable[[Snapshot], None]) -> None:
        """Call ``listener`` on the loop after each change of head or overrides. It must not raise."""
        self._listeners.append(listener)

    # New tenants

    async def load_record(self, tenant: str, wait_ms: int = 0) -> TenantRules:
        """The rules of a new tenant. Waits for them at most until the deadline of the store, or ``wait_ms``.

        Without a usable store, or when the answer is late, the default tier decides this time. The
        record applies as soon as it arrives, from Redis or with the next heartbeat.
        """
        until = monotonic() + max(self.snapshot.tuning.store_deadline_us / 1e6, wait_ms / 1e3)
        # Its record, then the records of its parents at once. With too many new tenants, a later batch.
        while not self.snapshot.quotas_of(tenant).loaded and monotonic() < until:
            self.want(tenant)
            batch = self.fetch() if self.fetch is not None else None
            if batch is None:
                break
            # Not wait_for: a caller that gives up must not cancel what others wait for.
            await asyncio.wait({batch}, timeout=max(0.0, until - monotonic()))
        return self.snapshot.quotas_of(tenant)

    def want(self, tenant: str) -> None:
        """Remember a tenant without a record, or its parents. When there are too many, it must ask again."""
        for name in self.snapshot.missing(tenant):
            self._want(name)

    def _want(self, tenant: str) -> None:
        # None is dropped for a newer one: its request waits for the answer, which is already on the way.
        if len(self._wanted) < WANTED_TENANTS:
            self._wanted[tenant] = None

    def wanted(self, limit: int = WANTED_TENANTS) -> tuple[str, ...]:
        """The tenants to ask for: new ones, then those whose records may be out of date."""
        return tuple(islice(chain(self._wanted, self._behind), limit))

    # Changes

    def is_poisoned(self, head: ConfigHead) -> bool:
        """Whether this document was refused before. Reads one attribute, so any thread may call it."""
        return head.hash != "" and head.hash == self._poisoned

    def reject(self, error: ConfigError, *, head: ConfigHead, source: ConfigSource) -> None:
        """Keep the current configuration, and let the next heartbeat say why."""
        if self._error != str(error):
            logger.error("config.rejected revision=%d hash=%s: %s", head.revision, head.hash, error)
        self._status, self._error, self._rejected_from = ConfigStatus.REJECTED, str(error), source
        if error.poisoned:
            self._poisoned = head.hash

    def apply(self, offer: CheckedConfig) -> bool:
        """Apply an offer whole; ``True`` when the head has changed. An older offer changes nothing."""
        current, source = self.snapshot.head, self.snapshot.source
        offered = (offer.head.epoch, offer.head.revision)
        if offered < (current.epoch, current.revision):
            return False
        if offer.policy is None and offer.head.hash != current.hash:
            return False  # another source was faster; the next heartbeat names the hash that applies now
        if offered > (current.epoch, current.revision):
            self._replace(offer)
            return True
        if offer.head.hash == current.hash:
            self._confirm(offer)
            return False
        # A newer control plane may encode the same revision differently. HTTP is the truth, and a copy never
        # replaces a better one. Otherwise two sources would take turns forever.
        if offer.source is not ConfigSource.HTTP and _TRUST[offer.source] <= _TRUST[source]:
            return False
        self._replace(offer)
        return True

    def _replace(self, offer: CheckedConfig) -> None:
        tenants = self.snapshot.tenants.copy()
        if not offer.complete:
            self._behind = dict.fromkeys(tenants)
        self._take(tenants, offer)
        self._policy = offer.policy or self._policy
        self.document = offer.document or self.document
        self._rejected_from = offer.source
        self._stand(head=offer.head, source=offer.source, tenants=tenants)
        self._settle(offer)
        self._notify()

    def apply_overrides(self, overrides: Mapping[str, Override]) -> None:
        """Apply the overrides that only gateways keep, on top of the policy. They replace the earlier
        ones.
        """
        if overrides == self._from_gateways:
            return
        self._from_gateways = overrides
        now = self.snapshot
        self._stand(head=now.head, source=now.source, tenants=now.tenants)
        self._notify()

    def _stand(self, *, head: ConfigHead, source: ConfigSource, tenants: TenantTable) -> None:
        policy = _with_overrides(self._policy, self._from_gateways)
        snapshot = Snapshot(head=head, policy=policy, source=source, tenants=tenants)
        # Most edits are of tenants. Patterns of rules take the loop milliseconds, and Envoy waits for 20.
        snapshot.keep_prepared(self.snapshot)
        self.snapshot = snapshot
        self.changes += 1

    def rules_changed(self) -> None:
        """The rules of calls have changed without a new configuration: what was prepared is invalid."""
        self.changes += 1

    def _notify(self) -> None:
        for listener in self._listeners:
            listener(self.snapshot)

    def _confirm(self, offer: CheckedConfig) -> None:
        """The current head was offered again: learn its tenants, and that another source confirms it."""
        self._take(self.snapshot.tenants, offer)
        self.changes += 1
        if _TRUST[offer.source] > _TRUST[self.snapshot.source]:
            self.snapshot.source = offer.source
        self._settle(offer)

    def _take(self, tenants: TenantTable, offer: CheckedConfig) -> None:
        # A heartbeat lists every change of the fleet. A pod keeps those of the tenants it serves.
        everyone = offer.source in (ConfigSource.DISK, ConfigSource.BOOTSTRAP)
        parents: dict[str, None] = {}
        for tenant, record in offer.tenants.items():
            if everyone or tenant in tenants or tenant in self._wanted:
                tenants.put(tenant, record)
                parents |= dict.fromkeys(record.parents if record is not None else ())
            self._wanted.pop(tenant, None)
            self._behind.pop(tenant, None)
        for parent in parents:
            if parent not in tenants and parent in offer.tenants:
                tenants.put(parent, offer.tenants[parent])
            elif parent not in tenants:
                self._want(parent)

    def _settle(self, offer: CheckedConfig) -> None:
        # A refusal stays until the refused source offers something good: the copy in Redis is still the old
        # one while the gateway's is poisoned.
        if self._rejected_from in (None, offer.source):
            self._status, self._error, self._rejected_from = ConfigStatus.APPLIED, "", None
        if not self._behind:
            self._complete = offer.head


def _with_overrides(policy: Policy, overrides: Mapping[str, Override]) -> Policy:
    if not overrides:
        return policy
    dependencies = tuple(
        msgspec.structs.replace(known, override=overrides.get(known.name, known.override))
        for known in policy.dependencies
    )
    return msgspec.structs.replace(policy, dependencies=dependencies)
