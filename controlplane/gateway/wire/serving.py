"""How uvicorn serves the gateway."""

from collections.abc import Callable
from typing import Any

import uvicorn

from controlplane.http_limits.limits import Limits
from controlplane.http_limits.serving import Application, limited
from fuseboard.contract.sync import MAX_BODY_BYTES

#: Longer than the usual interval of heartbeats, so that a pod keeps its connection from one to the
#: next. With uvicorn's default of 5 s, every pod reconnects for every heartbeat.
KEEP_ALIVE_S = 75

#: A fleet that lost its gateway reconnects all at once.
BACKLOG = 4096

#: Time for requests in flight after a SIGTERM.
GRACE_S = 2

#: The application counts bodies exactly. The frames of chunks, which these limits count too, need room.
LIMITS = Limits(body_bytes=2 * MAX_BODY_BYTES, body_s=10.0)


def gateway_config(
    app: Application, refused: Callable[[int], None], *, limits: Limits = LIMITS, **tls: Any
) -> uvicorn.Config:
    """How the gateway is served. `refused` gets the status of each request that never reaches `app`."""
    return uvicorn_config(**limited(app, limits, refused=refused), **tls)


def uvicorn_config(app: Any, *, http: Any = "httptools", **tls: Any) -> uvicorn.Config:
    """A server without limits. The benchmark serves what it compares the gateway with like this."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=http,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        **tls,
    )
