"""The web process: pages and API over HTTP, live updates over one WebSocket."""

import os
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
http = get_asgi_application()

from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402 - Django must be set up first
from channels.sessions import SessionMiddlewareStack  # noqa: E402

from controlplane import env  # noqa: E402
from controlplane.accounts.sockets import ClaimsAuthMiddleware, ListedOrigins  # noqa: E402
from controlplane.api.http.body_limit import BodyLimit  # noqa: E402
from controlplane.metrics import count_refusal  # noqa: E402
from dashboard.lifespan import lifespan  # noqa: E402
from dashboard.routing import websocket_urlpatterns  # noqa: E402

# Not read from the settings: `manage.py web` adds its own address once it knows the port.
_origins = env.origins("FUSEBOARD_ORIGINS")
# channels routes applications where Django has views, which its types do not know.
_routes: list[Any] = list(websocket_urlpatterns)


async def _with_head(scope: Any, receive: Any, send: Any) -> None:
    """Answer HEAD wherever there is GET. The server, which keeps its own scope, leaves out the body."""
    if scope["method"] == "HEAD":
        scope = {**scope, "method": "GET"}
    await http(scope, receive, send)


application = ProtocolTypeRouter(
    {
        "http": BodyLimit(_with_head, count_refusal),
        "lifespan": lifespan,
        "websocket": ListedOrigins(
            SessionMiddlewareStack(ClaimsAuthMiddleware(URLRouter(_routes))), _origins
        ),
    }
)
