"""Every key and channel in Redis, one function each.

``fb1`` is the version of the layout. The part in braces is the hash tag: all keys of one
script share it, so that a decision is one script on one slot of a Cluster, and atomic.
Subjects (tenant ids) are hashed: nothing a customer chooses can collide or steer a slot.
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


# Configuration: one tag per environment, so that a publish is one atomic script.


def config_head(environment: str) -> str:
    """HASH epoch, revision, hash, policy (the document), published_at_us."""
    return f"fb1:{environment}:{{cfg}}:head"


def tenant_bucket_number(tenant: str) -> int:
    return crc32(tenant.encode()) % TENANT_BUCKETS


def tenant_bucket(environment: str, number: int) -> str:
    """HASH tenant id -> ``TenantRecord`` as JSON, of tenants that have what their tier has."""
    return f"fb1:{environment}:{{cfg}}:tenants:{number}"


def own_bucket(environment: str, number: int) -> str:
    """HASH tenant id -> ``TenantRecord`` as JSON, of tenants with quotas of their own.

    Apart, because one value of more than 64 bytes makes Redis keep a whole hash three times as large.
    """
    return f"fb1:{environment}:{{cfg}}:own:{number}"


def config_channel(environment: str) -> str:
    """Pub/sub channel of ``Nudge``: a hint that a newer configuration can be fetched."""
    return f"fb1:{environment}:config"


def breaker_channel(environment: str) -> str:
    """Pub/sub channel of breakers that opened, as ``name generation remaining_us``: a hint for who leases."""
    return f"fb1:{environment}:breakers"


def emergency(environment: str) -> str:
    """STREAM: what people did to breakers while Postgres was down, to be adopted by it later."""
    return f"fb1:{environment}:{{cfg}}:emergency"


def incarnation(environment: str) -> str:
    """STRING ``new us`` or ``lost us``: when the store began, and whether it had lost what was before."""
    return f"fb1:{environment}:incarnation"


def ramp(environment: str) -> str:
    """STRING: store time in microseconds at which the first server came back to Redis."""
    return f"fb1:{environment}:ramp"


# The domain of a dependency: calls that leave a service.


def override(environment: str, dependency: str) -> str:
    """STRING ``mode expires_at_us revision``; written by the control plane alone."""
    return f"fb1:{environment}:{{d:{dependency}}}:override"


def breaker(environment: str, dependency: str) -> str:
    """STRING, see ``fuseboard.contract.breaker_state``."""
    return f"fb1:{environment}:{{d:{dependency}}}:breaker"


def cooldown(environment: str, dependency: str) -> str:
    """STRING: store time in microseconds until which the vendor asked to be left alone."""
    return f"fb1:{environment}:{{d:{dependency}}}:cooldown"


def outcomes(environment: str, dependency: str) -> str:
    """STRING, msgpack: the fleet's outcomes in 1 s buckets."""
    return f"fb1:{environment}:{{d:{dependency}}}:outcomes"


def evidence(environment: str, dependency: str) -> str:
    """HASH server -> when it last had an outcome, and a failure."""
    return f"fb1:{environment}:{{d:{dependency}}}:evidence"


def transitions(environment: str, dependency: str) -> str:
    """STREAM of breaker transitions, capped; stored once in Postgres by (dependency, generation)."""
    return f"fb1:{environment}:{{d:{dependency}}}:transitions"


def vendor_limit(environment: str, dependency: str, limit: str) -> str:
    return f"fb1:{environment}:{{d:{dependency}}}:limit:{limit}"


def dependency_quota(environment: str, dependency: str, tenant: str, quota: str) -> str:
    """A tenant's quota on one dependency: in the dependency's domain, to be decided with its breaker."""
    return f"fb1:{environment}:{{d:{dependency}}}:quota:{quota}:{subject_digest(tenant)}"


# The domain of a tenant: requests that enter a service.


def tenant_quota(environment: str, tenant: str, quota: str, *values: str) -> str:
    """``values`` are those of the limit's dimensions, each apart in the digest."""
    key = f"fb1:{environment}:{{t:{subject_digest(tenant)}}}:quota:{quota}"
    return f"{key}:{values_digest(values)}" if values else key


def member_quota(environment: str, root: str, tenant: str, quota: str, *values: str) -> str:
    """A quota of a tenant that belongs to ``root``: in the root's domain, to be decided with its quotas."""
    key = f"fb1:{environment}:{{t:{subject_digest(root)}}}:of:{subject_digest(tenant)}:quota:{quota}"
    return f"{key}:{values_digest(values)}" if values else key


def subject_limit(environment: str, subject: str, limit: str) -> str:
    """The domain of an address or key that belongs to no tenant."""
    return f"fb1:{environment}:{{i:{subject_digest(subject)}}}:limit:{limit}"


def values_digest(values: tuple[str, ...]) -> str:
    """No two lists of values have one digest: each is preceded by its length."""
    return subject_digest("".join(f"{len(value)}:{value}" for value in values))


# What servers decided without Redis, and told it afterwards; in the domain of the limits it is about.


def offline_totals(limit_key: str) -> str:
    """HASH limit -> calls (or costs) that servers allowed by themselves. History: it refuses nobody."""
    return f"{_domain(limit_key)}:offline"


def offline_told(limit_key: str) -> str:
    """SET of what was told, by name, so that telling it again counts nothing."""
    return f"{_domain(limit_key)}:told"


def offline_field(limit_key: str) -> str:
    """The field of a limit among the totals of its domain."""
    return limit_key[len(_domain(limit_key)) + 1 :]


def _domain(limit_key: str) -> str:
    return limit_key[: limit_key.index("}") + 1]
