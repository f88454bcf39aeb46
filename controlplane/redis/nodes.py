"""Figures of each server of Redis "limits": its load, its memory, the lag of replicas."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis

from controlplane.redis.endless_scripts import connection, primary_addresses
from fuseboard.contract.store_url import StoreUrl

#: More than a deployment has; a wrong answer of a server adds no more.
MAX_NODES = 200
PRIMARY, REPLICA = "primary", "replica"


@dataclass(frozen=True, kw_only=True)
class NodeFigures:
    address: str
    role: str
    #: It answered, or a primary names it and it did not.
    up: bool = False
    #: The id of the process: another one counts its commands from zero.
    run_id: str = ""
    commands: int = 0
    #: Over the last second or two, as the server measures it.
    ops_per_s: float = 0.0
    #: Seconds of CPU of the thread that executes commands, since the process started; 0 for unknown.
    cpu_s: float = 0.0
    memory_bytes: int = 0
    #: 0 for no limit.
    memory_limit_bytes: int = 0
    #: Seconds since a replica last confirmed what it has; ``None`` for a primary.
    lag_s: float | None = None


def read_nodes(url: str) -> list[NodeFigures]:
    """Every primary, and the replicas that it names.

    Raises ``redis.RedisError`` if no server says which the primaries are, or the user may not use INFO.
    """
    parsed = StoreUrl.parse(url)
    found: dict[str, NodeFigures] = {}
    for address, where in _primaries(parsed):
        info = _info(parsed, where)
        found[address] = _figures(address, PRIMARY, info)
        for replica in _replicas(info or {}):
            name = f"{replica['ip']}:{replica['port']}"
            where = {"host": replica["ip"], "port": replica["port"], **_tls(parsed)}
            lag_s = float(replica.get("lag", -1))
            found[name] = _figures(name, REPLICA, _info(parsed, where), lag_s if lag_s >= 0 else None)
    return list(found.values())[:MAX_NODES]


def _primaries(url: StoreUrl) -> Iterator[tuple[str, dict[str, Any]]]:
    if url.socket:
        yield url.socket, {"unix_socket_path": url.socket}
    for host, port in primary_addresses(url):
        yield f"{host}:{port}", {"host": host, "port": port, **_tls(url)}


def _tls(url: StoreUrl) -> dict[str, Any]:
    return {"ssl": url.tls, "ssl_ca_certs": url.ca_file or None}


def _info(url: StoreUrl, where: dict[str, Any]) -> dict[str, Any] | None:
    """``None`` when there is no answer."""
    with connection(url, **where) as server:
        try:
            # In one go: sections of several calls would not fit together.
            info: dict[str, Any] = server.info("server", "memory", "stats", "replication", "cpu")
        except (redis.ConnectionError, redis.TimeoutError):
            return None
    return info


def _replicas(info: dict[str, Any]) -> list[dict[str, Any]]:
    named = (info.get(f"slave{number}") for number in range(info.get("connected_slaves", 0)))
    return [one for one in named if isinstance(one, dict) and {"ip", "port"} <= one.keys()]


def _figures(address: str, role: str, info: dict[str, Any] | None, lag_s: float | None = None) -> NodeFigures:
    if info is None:
        return NodeFigures(address=address, role=role, lag_s=lag_s)
    return NodeFigures(
        address=address,
        role=role,
        up=True,
        run_id=str(info.get("run_id", "")),
        commands=int(info.get("total_commands_processed", 0)),
        ops_per_s=float(info.get("instantaneous_ops_per_sec", 0)),
        cpu_s=sum(float(info.get(f"used_cpu_{kind}_main_thread", 0)) for kind in ("user", "sys")),
        memory_bytes=int(info.get("used_memory", 0)),
        memory_limit_bytes=int(info.get("maxmemory", 0)),
        lag_s=lag_s,
    )
