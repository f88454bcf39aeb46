"""Whether the configured servers can be reached; each message names the variable."""

from contextlib import suppress
from urllib.parse import urlsplit

import psycopg
import redis

from controlplane.embedded.servers import configured
from controlplane.redis.clients import connect
from fuseboard.contract.store_url import StoreUrl

_PATIENCE_S = 3


def problems(*only: str) -> dict[str, str]:
    """Variable -> what is wrong with its server. Empty when all answer. ``only``: these, if any are named."""
    wanted = {variable: url for variable, url in configured().items() if not only or variable in only}
    found = {variable: problem(variable, url) for variable, url in wanted.items()}
    return {variable: sentence for variable, sentence in found.items() if sentence is not None}


def problem(variable: str, url: str) -> str | None:
    """The problem of the server at ``url``, without its password; ``None`` when it answers."""
    try:
        if variable == "DATABASE_URL":
            psycopg.connect(url, connect_timeout=_PATIENCE_S).close()
        else:
            with connect(url, deadline_s=_PATIENCE_S) as client:
                client.ping()
    except (psycopg.Error, redis.RedisError, ValueError) as error:
        return f"{variable} names {_place(url)}, which cannot be used: {_first_line(error)}"
    return None


def _place(url: str) -> str:
    with suppress(ValueError):
        addresses = StoreUrl.parse(url).addresses
        if len(addresses) > 1:
            return ", ".join(map(str, addresses))
    try:
        parts = urlsplit(url)
        places = parts.netloc.rpartition("@")[2]
        if "," in places:
            return places.replace(",", ", ")
        return f"{parts.hostname or 'a local socket'}:{parts.port or 'default port'}"
    except ValueError:
        return "something that is not a URL"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
