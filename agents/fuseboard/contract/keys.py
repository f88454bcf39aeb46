"""Every key and channel in Redis, one function each.

``fb1`` is the version of the layout. The part in braces is the hash tag: all keys of one script share
it, so that a decision is one script on one slot of a Cluster, and atomic. Subjects (tenant ids) are
hashed, so that nothing a customer chooses can collide or choose a slot.
"""

from functools import lru_cache
from hashlib import blake2b
from zlib import crc32

#: Tenant records are spread over this many hashes, so that each stays a compact listpack.
TENANT_BUCKETS = 1024


@lru_cache(maxsize=65_536)
def subject_digest(subject: str) -> str:
    """80 bits of BLAKE2b, as 20 hexadecimal digits."""
    return blake2b(subject.encode(), digest_size=10).hexdigest()


# Configuration: one tag per environment, so that publishing is one atomic script.


def config_head(environment: str) -> str:
    """HASH epoch, revision, hash, policy (the document), published_at_us."""
    return f"fb1:{environment}:{{cfg}}:head"


def tenant_bucket_number(tenant: str) -> int:
    return crc32(tenant.encode()) % TENANT_BUCKETS


def tenant_bucket(environment: str, number: int) -> str:
    """HASH tenant id -> ``TenantRecord`` as JSON, of tenants with the quotas of their tier."""
    return f"fb1:{environment}:{{cfg}}:tenants:{number}"


def own_bucket(environment: str, number: int) -> str:
    """HASH tenant id -> ``TenantRecord`` as JSON, of tenants with their own quotas.

    Separate, because one value over 64 bytes makes Redis store a whole hash in three times the memory.
    """
    return f"fb1:{environment}:{{cfg}}:own:{number}"


def config_channel(environment: str) -> str:
    """Pub/sub channel of ``Nudge``: a hint that a newer configuration can be fetched."""
    return f"fb1:{environment}:config"


def breaker_channel(environment: str) -> str:
    """Pub/sub channel of opened breakers, as ``name generation remaining_us``: a hint to end fleet leases.

    The control plane also publishes here, with 0 us, when people override or reset a breaker without
    Postgres: pods then ask Redis again.
    """
    return f"fb1:{environment}:breakers"


def backlog_channel(environment: str) -> str:
    """Pub/sub channel of dependencies whose backlog has a new job: a hint to workers that wait."""
    return f"fb1:{environment}:backlog"


def budget_channel(environment: str) -> str:
    """Pub/sub channel of budgets whose counters an operator has cleared, by their keys: a hint to pods that
    have not spent them lately, and would put back an earlier figure if the store lost its data.
    """
    return f"fb1:{environment}:budgets"


def emergency(environment: str) -> str:
    """STREAM: what people did to breakers while Postgres was down. Postgres adopts it later."""
    return f"fb1:{environment}:{{cfg}}:emergency"


def incarnation(environment: str) -> str:
    """STRING ``new us`` or ``lost us``: when the store began, and whether it lost earlier data."""
    return f"fb1:{environment}:incarnation"


def ramp(environment: str) -> str:
    """STRING: store time in microseconds at which the first pod came back to Redis."""
    return f"fb1:{environment}:ramp"


# The domain of a dependency: calls that leave a service.


def override(environment: str, dependency: str) -> str:
    """STRING ``mode expires_at_us revision``; written by the control plane alone."""
    return f"fb1:{environment}:{{d:{dependency}}}:override"


def breaker(environment: str, dependency: str) -> str:
    """STRING, see ``fuseboard.contract.breaker_state``."""
    return f"fb1:{environment}:{{d:{dependency}}}:breaker"


def cooldown(environment: str, dependency: str) -> str:
    """STRING: store time in microseconds until which the vendor asked not to be called."""
    return f"fb1:{environment}:{{d:{dependency}}}:cooldown"


def cooldown_claim(environment: str, dependency: str) -> str:
    """STRING ``until_us witness``: the longest pause that a pod reported, which a second pod may confirm."""
    return f"fb1:{environment}:{{d:{dependency}}}:cooldown_claim"


def outcomes(environment: str, dependency: str) -> str:
    """STRING, msgpack: the outcomes of the fleet in 1 s buckets."""
    return f"fb1:{environment}:{{d:{dependency}}}:outcomes"


def evidence(environment: str, dependency: str) -> str:
    """HASH server -> when it last had an outcome, and when a failure."""
    return f"fb1:{environment}:{{d:{dependency}}}:evidence"


def transitions(environment: str, dependency: str) -> str:
    """STREAM of breaker transitions, capped. Stored once in Postgres by (dependency, generation)."""
    return f"fb1:{environment}:{{d:{dependency}}}:transitions"


def vendor_limit(environment: str, dependency: str, limit: str) -> str:
    return f"fb1:{environment}:{{d:{dependency}}}:limit:{limit}"


def learned(environment: str, dependency: str, limit: str) -> str:
    """STRING, msgpack: what pods saw of a limit that follows its vendor, and the limit that applies."""
    return f"fb1:{environment}:{{d:{dependency}}}:learned:{limit}"


def dependency_quota(environment: str, dependency: str, tenant: str, quota: str) -> str:
    """A tenant's quota on one dependency: in the dependency's domain, because it is decided with the
    breaker.
    """
    return f"fb1:{environment}:{{d:{dependency}}}:quota:{quota}:{subject_digest(tenant)}"


def dependency_budget(environment: str, dependency: str, budget: str) -> str:
    """STRING ``began spent``, as of every budget."""
    return f"fb1:{environment}:{{d:{dependency}}}:budget:{budget}"


#: The parts of a backlog, in the order of its scripts: see ``lua/parts/backlog.lua``.
BACKLOG_PARTS = (
    *("ready", "delayed", "leases", "dead", "meta", "body"),
    *("fair", "stats", "results", "expiring", "hint"),
)


def backlog(environment: str, dependency: str, part: str) -> str:
    """A part of what waits for the dependency, in its domain: jobs are handed out as calls are admitted."""
    return f"fb1:{environment}:{{d:{dependency}}}:backlog:{part}"


# The domain of a tenant: requests that enter a service.


def tenant_quota(environment: str, tenant: str, quota: str, *values: str) -> str:
    """``values`` are those of the limit's dimensions, hashed separately."""
    key = f"fb1:{environment}:{{t:{subject_digest(tenant)}}}:quota:{quota}"
    return f"{key}:{values_digest(values)}" if values else key


def member_quota(environment: str, root: str, tenant: str, quota: str, *values: str) -> str:
    """A quota of a tenant below ``root``: in the domain of the root, because it is decided with the root's
    quotas.
    """
    key = f"fb1:{environment}:{{t:{subject_digest(root)}}}:of:{subject_digest(tenant)}:quota:{quota}"
    return f"{key}:{values_digest(values)}" if values else key


def tenant_budget(environment: str, tenant: str, budget: str) -> str:
    return f"fb1:{environment}:{{t:{subject_digest(tenant)}}}:budget:{budget}"


def member_budget(environment: str, root: str, tenant: str, budget: str) -> str:
    """A budget of a tenant below ``root``, see ``member_quota``."""
    return f"fb1:{environment}:{{t:{subject_digest(root)}}}:of:{subject_digest(tenant)}:budget:{budget}"


# The domain of an account at a vendor: what its pools spend together.


def account_budget(environment: str, account: str, budget: str) -> str:
    return f"fb1:{environment}:{{a:{account}}}:budget:{budget}"


def account_stop(environment: str, account: str) -> str:
    """HASH, see ``lua/account_stop.lua``."""
    return f"fb1:{environment}:{{a:{account}}}:stop"


def budget_mark(budget_key: str) -> str:
    """HASH: shows whether the store has lost what was spent of a budget, see ``lua/restore.lua``."""
    return f"{budget_key}:mark"


#: The digest of all callers. That of a subject is made from a digest, so no subject has it.
ALL_CALLERS = subject_digest("*")


def subject_limit(environment: str, subject: str, limit: str) -> str:
    """The domain of an address or key that belongs to no tenant."""
    return f"fb1:{environment}:{{i:{subject_digest(subject)}}}:limit:{limit}"


def own_limit(environment: str, key: str, limit: str) -> str:
    """A limit that a caller brings. ``key`` is what it counts.

    The word ``own`` keeps it apart from the limits of the configuration with the same name.
    """
    return f"fb1:{environment}:{{i:{subject_digest(own_subject(key))}}}:own:{limit}"


def own_subject(key: str) -> str:
    """The subject of a limit that a caller brings.

    No address or key has it: their digests are of values with the names of their dimensions.
    """
    return values_digest(("own", key))


def service_limit(environment: str, limit: str) -> str:
    """The domain of all callers. Services share it, so that one script decides their limits."""
    return f"fb1:{environment}:{{i:{ALL_CALLERS}}}:limit:{limit}"


def lock(environment: str, name: str) -> str:
    """STRING ``token fence until_us``; see ``lua/lock.lua``."""
    return f"fb1:{environment}:{{i:{subject_digest(name)}}}:lock"


def idempotency(environment: str, caller: str, method: str, path: str, key: str) -> str:
    """HASH of one request with an ``Idempotency-Key``; see ``lua/idempotency.lua``."""
    return f"fb1:{environment}:{{i:{values_digest((caller, method, path, key))}}}:idempotency"


def values_digest(values: tuple[str, ...]) -> str:
    """No two lists of values have the same digest: each value is preceded by its length."""
    return subject_digest("".join(f"{len(value)}:{value}" for value in values))


def is_budget(limit_key: str) -> bool:
    """Whether it is the counter of a budget, whosever. No name of a limit has a colon."""
    return ":budget:" in limit_key[limit_key.index("}") :]


# Decisions that pods made without Redis and reported later, in the domain of its limits.


def offline_totals(limit_key: str) -> str:
    """HASH limit -> calls (or costs) that pods allowed alone. History: it refuses no calls."""
    return f"{_domain(limit_key)}:offline"


def offline_told(limit_key: str) -> str:
    """SET of the names of reports, so that reporting again counts nothing."""
    return f"{_domain(limit_key)}:told"


def offline_field(limit_key: str) -> str:
    """The field of a limit in the totals of its domain."""
    return limit_key[len(_domain(limit_key)) + 1 :]


def _domain(limit_key: str) -> str:
    return limit_key[: limit_key.index("}") + 1]
