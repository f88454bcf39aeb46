"""Users of Redis "limits": one for the pods of each environment, one for the control plane.

Commands are those that the agent, the control plane and their scripts use; keys are those of
``fuseboard.contract.keys``. Redis checks the commands of a script as if its caller had sent them,
and requires write access to every key of the script. So an agent's user can write what its
environment counts, but no configuration, nothing of another environment, and nothing that concerns
the server itself. No rule can protect overrides from it, because its scripts read them.

There are two profiles. In ``standard``, a pod loads its scripts itself, so that any version of the
agent works; a stolen password can then start a script that never ends, which stops Redis for every
environment on it. In ``hardened``, the control plane loads the scripts as functions, and a pod can call
only these; see ``controlplane.redis.functions``.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256

from fuseboard.contract import keys

#: Commands of the connection itself, and to find the nodes of a Cluster or the role of a primary.
_CONNECTION = (
    "ping",
    "hello",
    "select",
    "client|setname",
    "client|id",
    "cluster|slots",
    "cluster|shards",
    "cluster|myid",
    "command",
    "readonly",
    "asking",
    "role",
    "info",
    "time",
)
#: A server that does not know a command refuses the whole file.
_SINCE = {(7, 2): ("client|setinfo",)}
#: The oldest that has all other commands.
OLDEST = (7, 0)
STANDARD, HARDENED = "standard", "hardened"
PROFILES = (STANDARD, HARDENED)

#: How pods run scripts: by hash, loaded first, or as functions that the control plane has loaded.
_POD_SCRIPTS = {STANDARD: ("evalsha", "script|load"), HARDENED: ("fcall",)}
#: The control plane runs its own scripts by hash, kills scripts that do not end, and loads functions.
_CONTROL_SCRIPTS = {
    STANDARD: ("evalsha", "script|load", "script|kill", "function|kill"),
    HARDENED: ("evalsha", "script|load", "script|kill", "function|kill", "function|load", "function|list"),
}

#: Commands on one key that reveal no other key; which of them are used changes with the scripts.
_STRINGS = (
    *("get", "mget", "set", "getdel", "incr", "incrby", "decrby"),
    *("del", "unlink", "exists", "type", "expire", "pexpire", "pexpireat", "ttl", "pttl"),
)
_HASHES = ("hget", "hmget", "hgetall", "hset", "hsetnx", "hdel", "hexists", "hlen", "hincrby")
_SETS = ("sadd", "srem", "scard", "sismember", "smembers")
_SORTED = (
    *("zadd", "zrem", "zcard", "zcount", "zscore", "zrange", "zrangebyscore"),
    *("zremrangebyscore", "zremrangebyrank"),
)
_STREAMS = ("xadd", "xtrim", "xlen")
_TRANSACTIONS = ("multi", "exec", "discard")

#: Commands that agents send themselves, apart from scripts, and that their scripts use.
AGENT = (
    *_CONNECTION,
    *_TRANSACTIONS,
    *_STRINGS,
    *_HASHES,
    *_SETS,
    *_SORTED,
    *_STREAMS,
    *("subscribe", "unsubscribe"),
)
#: Agents may do this on the channels of breakers and of backlogs, and nowhere else.
SPEAK = ("publish",)
CONTROL = (*AGENT, *SPEAK, "scan", "hscan", "xrange", "xrevrange", "xdel", "info")


def acl_file(
    passwords: dict[str, str],
    control_password: str,
    profile: str = STANDARD,
    version: tuple[int, ...] = OLDEST,
) -> str:
    """The lines of an ``aclfile``; ``passwords`` are those of the agents, by environment.

    The file contains hashes of passwords, so other users may read it, as the server must. Raises
    ``ValueError`` for a short password, and for one that two users have: each could log in as the other.
    """
    every = [*passwords.values(), control_password]
    if any(len(password) < MINIMUM for password in every):
        raise ValueError(f"A password must have at least {MINIMUM} characters.")
    if len(set(every)) < len(every):
        raise ValueError("Each environment and the control plane must have different passwords.")
    more = [command for since, commands in _SINCE.items() if version >= since for command in commands]
    return "\n".join(
        [
            "user default off resetpass resetkeys resetchannels -@all",
            *(agent_user(name, password, profile, more) for name, password in sorted(passwords.items())),
            control_user(control_password, profile, more),
            "",
        ]
    )


#: Characters of a password: it is hashed once only, so it must not be guessable.
MINIMUM = 20


def agent_user(environment: str, password: str, profile: str = STANDARD, more: Sequence[str] = ()) -> str:
    """The line of the user ``agent-<environment>``."""
    writable = [
        _domain(keys.breaker(environment, "")),
        _domain(keys.tenant_quota(environment, "", "")),
        _domain(keys.subject_limit(environment, "", "")),
        _domain(keys.account_stop(environment, "")),
        keys.ramp(environment),
        keys.incarnation(environment),
    ]
    readable = [
        keys.config_head(environment),
        keys.tenant_bucket(environment, 0).removesuffix("0") + "*",
        keys.own_bucket(environment, 0).removesuffix("0") + "*",
    ]
    patterns = [*(f"~{key}" for key in writable), *(f"%R~{key}" for key in readable)]
    spoken = [f"&{keys.breaker_channel(environment)}", f"&{keys.backlog_channel(environment)}"]
    heard = [f"&{keys.config_channel(environment)}", f"&{keys.budget_channel(environment)}"]
    channels = [*heard, *spoken]
    commands = (*_POD_SCRIPTS[profile], *AGENT, *more)
    user = _user(f"agent-{environment}", password, patterns, channels, commands)
    # Agents listen to every channel and publish on two, with a selector.
    return f"{user} ({' '.join(f'+{command}' for command in SPEAK)} {' '.join(spoken)})"


def control_user(password: str, profile: str = STANDARD, more: Sequence[str] = ()) -> str:
    """The line of the user ``control``."""
    commands = (*_CONTROL_SCRIPTS[profile], *CONTROL, *more)
    return _user("control", password, ["~fb1:*"], ["&fb1:*"], commands)


def _domain(key: str) -> str:
    """All keys with one kind of hash tag: ``fb1:production:{d:*``."""
    before, _, tag = key.partition("{")
    return f"{before}{{{tag.partition(':')[0]}:*"


def _user(
    name: str, password: str, patterns: Iterable[str], channels: Iterable[str], commands: Iterable[str]
) -> str:
    rights = [f"+{command}" for command in dict.fromkeys(commands)]
    digest = sha256(password.encode()).hexdigest()
    rules = [
        "on",
        "resetpass",
        f"#{digest}",
        "resetkeys",
        *patterns,
        "resetchannels",
        *channels,
        "-@all",
        *rights,
    ]
    return " ".join(["user", name, *rules])
