"""The published configuration in memory, and the answers made of it, encoded once.

Nothing here waits for a store. A copy that has become old is served on; it is never replaced
by an older one, by one that does not parse, or by an empty one.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from fuseboard.contract.descriptor_tallies import known_rules
from fuseboard.contract.policy import (
    ConfigHead,
    Override,
    Policy,
    Tuning,
    decode_policy,
)
from fuseboard.contract.protection import PodProtection
from fuseboard.contract.sync import Applied, SyncRequest

#: More changed tenants than this are not listed: the server asks again for those it holds.
MAX_LISTED = 500

#: Changes remembered for pods that missed some.
CHANGES_KEPT = 20_000

_NOTHING = b""
_REFETCH = b',"refetch_tenants":true'
_encode = msgspec.json.encode


class Refused(ValueError):
    """A loaded configuration that must not replace the one in force."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of one reading of Postgres, all of one moment."""

    head: ConfigHead
    policy: bytes
    #: ``TenantRecord`` as JSON, ``None`` for a tenant that was removed: every tenant when
    #: ``whole``, else those changed since the head that was in force.
    tenants: dict[str, bytes | None]
    whole: bool


class Changes:
    """The tenants that changed, by revision, as far back as ``floor``."""

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self._log: list[tuple[int, str]] = []

    def extend(self, revision: int, tenants: Iterable[str]) -> None:
        self._log.extend((revision, tenant) for tenant in tenants)
        excess = len(self._log) - CHANGES_KEPT
        if excess > 0:
            self.floor = self._log[excess - 1][0]
            # A revision is either wholly remembered or wholly forgotten.
            del self._log[: self._position_after(self.floor)]

    def since(self, revision: int) -> list[str] | None:
        """Tenants changed after ``revision``; ``None`` when they are too many, or it is too long ago."""
        if revision < self.floor:
            return None
        names = dict.fromkeys(tenant for _, tenant in self._log[self._position_after(revision) :])
        return list(names) if len(names) <= MAX_LISTED else None

    def _position_after(self, revision: int) -> int:
        return bisect_right(self._log, revision, key=lambda entry: entry[0])


class Configuration:
    """One environment's configuration, and its servers' answers."""

    def __init__(self, environment: str) -> None:
        self.environment = environment
        self.head = ConfigHead(epoch=0, revision=0, hash="")
        self.policy = b""
        self.tuning = Tuning()
        #: The part of a service that may be unready because of pressure.
        self.unready_percent = 0
        #: The most retries of one process; the floors of all pods together are as many.
        self.retries_per_s = PodProtection().retries_per_s
        #: Until when parts of the protection only observe.
        self.observe = PodProtection().observe
        #: Dependency with retries -> the most attempts of the fleet, in percent of its first calls.
        self.load_factors: dict[str, int] = {}
        self.dependencies: frozenset[str] = frozenset()
        #: Names of the dependencies with a part of the protection.
        self.protected: frozenset[str] = frozenset()
        #: Domain of Envoy -> its rules, as tallies name them.
        self.descriptor_rules: dict[str, frozenset[str]] = {}
        self.tenants: dict[str, bytes] = {}
        self.changes = Changes(floor=0)
        self.policies_sent = 0
        self._held: dict[str, Override] = {}
        #: The head, and what is held beside it, ready to send.
        self._head_part = b""
        #: Applied revision -> the changes since, ready to send.
        self._changes_parts: dict[int, bytes] = {}

    @property
    def loaded(self) -> bool:
        return bool(self._head_part)

    def take(self, loaded: Loaded) -> bool:
        """Take up what was read; whether it was newer.

        Raises ``Refused``, or what ``decode_policy`` raises, and then keeps what it had.
        """
        head = loaded.head
        if self.loaded and (head.epoch, head.revision) <= (self.head.epoch, self.head.revision):
            return False
        if not loaded.whole and head.epoch != self.head.epoch:
            raise Refused("changes of another epoch")
        if loaded.whole and self.tenants and not any(loaded.tenants.values()):
            raise Refused("no tenants at all, where there were some")
        if loaded.policy != self.policy:
            self._read(decode_policy(loaded.policy))
        self._replace(loaded)
        return True

    def _read(self, policy: Policy) -> None:
        self.tuning = policy.tuning
        pods = policy.protection or PodProtection()
        self.observe, self.retries_per_s = pods.observe, pods.retries_per_s
        self.unready_percent = pods.readiness.unready_percent if pods.readiness is not None else 0
        self.dependencies = frozenset(each.name for each in policy.dependencies)
        self.descriptor_rules = known_rules(policy.descriptors)
        protected = {each.name: each.protection for each in policy.dependencies if each.protection}
        self.protected = frozenset(protected)
        self.load_factors = {
            name: protection.retry.load_factor_percent
            for name, protection in protected.items()
            if protection.retry is not None
        }

    def knows(self, dependency: str) -> bool:
        return dependency in self.dependencies

    def hold(self, held: Mapping[str, Override]) -> None:
        """Serve these overrides, whatever the document says about the breakers.

        Beside the document, not in it: only Postgres makes revisions, and a pod may have received
        a newer one through Redis than this process read before Postgres went down.
        """
        if held != self._held:
            self._held = dict(held)
            self._serve()

    def answer(
        self, beat: SyncRequest, *, server_time_us: int, next_ms: int, live_servers: int, also: bytes = b""
    ) -> bytes:
        """The ``SyncResponse`` to this heartbeat, as JSON. ``also`` are more fields of it."""
        head, applied = self.head, beat.applied
        start = b'{"server_time_us":%d,"next_ms":%d,"live_servers":%d,%b%b' % (
            server_time_us,
            next_ms,
            live_servers,
            self._head_part,
            also,
        )
        if applied.hash == head.hash and applied.revision == head.revision and applied.epoch == head.epoch:
            return start + (self._tenants_part(beat.want) if beat.want else _NOTHING) + b"}"
        return start + self._difference(beat) + b"}"

    def _difference(self, beat: SyncRequest) -> bytes:
        head, applied = self.head, beat.applied
        if _is_ahead(applied, head):
            # It heard of a revision from Redis before this process did: nothing here is news to it.
            return self._tenants_part(beat.want) if beat.want else _NOTHING
        policy = _NOTHING
        if applied.hash != head.hash:
            policy = b',"policy":' + self.policy
            self.policies_sent += 1
        if applied.epoch != head.epoch:
            return policy + self._tenants_part(beat.want) + _REFETCH
        if not beat.want:
            return policy + self._changes_part(applied.revision)
        changed = self.changes.since(applied.revision)
        if changed is None:
            return policy + self._tenants_part(beat.want) + _REFETCH
        return policy + self._tenants_part(dict.fromkeys([*beat.want, *changed]))

    def _changes_part(self, revision: int) -> bytes:
        part = self._changes_parts.get(revision)
        if part is None:
            changed = self.changes.since(revision)
            part = _REFETCH if changed is None else self._tenants_part(changed)
            if len(self._changes_parts) < 1000:
                self._changes_parts[revision] = part
        return part

    def _tenants_part(self, names: Collection[str]) -> bytes:
        if not names:
            return _NOTHING
        records = self.tenants
        pairs = (b"%b:%b" % (_encode(name), records.get(name, b"null")) for name in names)
        return b',"tenants":{%b}' % b",".join(pairs)

    def _replace(self, loaded: Loaded) -> None:
        if loaded.whole:
            self.tenants = {}
            self.changes = Changes(floor=loaded.head.revision)
        else:
            self.changes.extend(loaded.head.revision, loaded.tenants)
        for tenant, record in loaded.tenants.items():
            if record is None:
                self.tenants.pop(tenant, None)
            else:
                self.tenants[tenant] = record
        self.head, self.policy = loaded.head, loaded.policy
        self._changes_parts = {}
        self._serve()

    def _serve(self) -> None:
        held = b',"held":%b' % _encode(self._held) if self._held else _NOTHING
        self._head_part = b'"head":%b%b' % (_encode(self.head), held)


def _is_ahead(applied: Applied, head: ConfigHead) -> bool:
    return (applied.epoch, applied.revision) > (head.epoch, head.revision)
