"""Reads the pods of an environment, again only those whose rows changed since the last look."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from controlplane.fleet import live
from controlplane.status.facts import Server
from controlplane.status.server_rows import server_of_row


@dataclass(frozen=True)
class _Look:
    versions: dict[int, str] = field(default_factory=dict)
    servers: dict[int, Server] = field(default_factory=dict)


#: The last look of this process at each environment. It is replaced as a whole, because threads read it.
_looks: dict[str, _Look] = {}


def read_servers(environment: str) -> tuple[Server, ...]:
    """By name. Raises ``OperationalError`` while Postgres is unavailable."""
    last = _looks.get(environment, _Look())
    versions, changed = live.changed_servers(environment, last.versions)
    read = {row.pk: server_of_row(row) for row in changed}
    servers: dict[int, Server] = {}
    for key in versions:
        # A row can be deleted between the two queries.
        if (server := read.get(key) or last.servers.get(key)) is not None:
            servers[key] = server
    if versions or last.versions:
        _looks[environment] = _Look(versions, servers)
    old = live.stale(environment)
    return tuple(
        replace(server, state="unknown") if key in old and server.live else server
        for key, server in servers.items()
    )
