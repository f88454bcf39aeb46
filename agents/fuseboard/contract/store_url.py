"""The URL of Redis "limits": a server, a Cluster, or a primary that Sentinels watch.

::

    redis://user:password@host:port/database              unix://user:password@/path/of/socket
    redis+cluster://user:password@host:port,host:port/
    redis+sentinel://user:password@host:port,host:port/name-of-the-primary/database?sentinel_password=...

``rediss`` instead of ``redis`` uses TLS. ``?ssl_ca_certs=/path`` names a file with the authorities to
trust instead of those of the system, as in redis-py. Other options of redis-py have no effect. User and
password are those of the nodes; Sentinels have their own in the query, or none. Characters other than
letters and digits are percent-encoded.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Self
from urllib.parse import parse_qs, quote, unquote

SCHEMES = (
    "redis",
    "rediss",
    "unix",
    "redis+cluster",
    "rediss+cluster",
    "redis+sentinel",
    "rediss+sentinel",
)

#: The options that may follow ``?``.
OPTIONS = ("ssl_ca_certs", "sentinel_username", "sentinel_password")

Kind = Literal["single", "cluster", "sentinel"]


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUrl:
    kind: Kind
    #: The server, some nodes of the Cluster, or the Sentinels; empty for a local socket.
    addresses: tuple[Address, ...] = ()
    #: Path of a local socket.
    socket: str = ""
    tls: bool = False
    #: Path of the certificates of the trusted authorities; empty for those of the system.
    ca_file: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    database: int = 0
    #: The name of the primary in the Sentinels.
    primary: str = ""
    sentinel_username: str = ""
    sentinel_password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises ``ValueError`` with the end of a sentence about the URL, without its secrets."""
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in SCHEMES:
            raise ValueError(f"must begin with {', '.join(f'{known}://' for known in SCHEMES)}")
        rest, _, query = rest.partition("?")
        authority, _, path = rest.partition("/")
        login, _, hosts = authority.rpartition("@")
        username, _, password = login.partition(":")
        words = {name: values[-1] for name, values in parse_qs(query).items()}
        family, _, topology = scheme.partition("+")
        kind: Kind = "cluster" if topology == "cluster" else "sentinel" if topology else "single"
        primary, database = _path(kind, path)
        return cls(
            kind=kind,
            addresses=() if family == "unix" else _addresses(hosts, 26379 if kind == "sentinel" else 6379),
            socket=f"/{unquote(path)}" if family == "unix" else "",
            tls=family == "rediss",
            ca_file=words.get("ssl_ca_certs", ""),
            username=unquote(username),
            password=unquote(password),
            database=0 if family == "unix" else database,
            primary=primary,
            sentinel_username=words.get("sentinel_username", ""),
            sentinel_password=words.get("sentinel_password", ""),
        )


def unknown_options(url: str) -> list[str]:
    """The names of options in ``url`` that have no effect, without their values."""
    return [name for name in parse_qs(url.partition("?")[2], keep_blank_values=True) if name not in OPTIONS]


def with_ca(url: str, ca_file: str) -> str:
    """``url`` with the trusted authorities, when it uses TLS and names none."""
    if not ca_file or not url.startswith("rediss") or "ssl_ca_certs=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}ssl_ca_certs={quote(ca_file)}"


def _path(kind: Kind, path: str) -> tuple[str, int]:
    """Name of the primary, and the database."""
    parts = [unquote(part) for part in path.split("/") if part]
    if kind == "cluster":
        if parts not in ([], ["0"]):
            raise ValueError("names a database, but a Cluster has only number 0")
        return "", 0
    if kind == "single":
        # Other options are for the code that connects.
        return "", int(parts[0]) if parts and parts[0].isdigit() else 0
    if not parts or len(parts) > 2:
        raise ValueError("must name the primary: redis+sentinel://host:port,host:port/name")
    if len(parts) == 2 and not parts[1].isdigit():
        raise ValueError("must end with the number of a database, or with the name of the primary")
    return parts[0], int(parts[1]) if len(parts) == 2 else 0


def _addresses(hosts: str, default_port: int) -> tuple[Address, ...]:
    return tuple(parse_address(part, default_port) for part in (hosts or "127.0.0.1").split(","))


def parse_address(text: str, default_port: int = 0) -> Address:
    """``host:port``, ``[::1]:port``, or a host alone. Raises ``ValueError`` like ``StoreUrl.parse``."""
    host, port = text, ""
    if not text.endswith("]") and ":" in text:
        host, _, port = text.rpartition(":")
    host = unquote(host.strip("[]"))
    number = int(port) if port.isdigit() else default_port if not port else 0
    if not host or not 0 < number < 65_536:
        raise ValueError("has no host or port (is '#', '@', '/' or ',' in a password escaped?)")
    return Address(host, number)
