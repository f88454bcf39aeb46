"""How uvicorn serves the gateway."""

from functools import partial
from typing import Any, cast

import uvicorn

from controlplane.gateway.wire.beat_protocol import ShortWay
from controlplane.gateway.wire.write_together import Outbox

#: Longer than any usual pace, so that a server keeps its connection from beat to beat; uvicorn's
#: 5 s would have every server connect anew for every beat.
KEEP_ALIVE_S = 75

#: A fleet that lost its gateway comes back all at once.
BACKLOG = 4096

#: For requests in flight after a SIGTERM.
GRACE_S = 2


def uvicorn_config(app: Any, *, http: Any = None, **tls: Any) -> uvicorn.Config:
    """How the gateway is served; the benchmark serves its rivals alike, but with uvicorn's own protocol."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=cast(Any, http or partial(ShortWay, outbox=Outbox())),
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
