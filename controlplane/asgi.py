"""The web process: pages and API over HTTP, live updates over one WebSocket."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
http = get_asgi_application()

from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402 - Django must be set up first
from channels.sessions import SessionMiddlewareStack  # noqa: E402
from django.conf import settings  # noqa: E402

from controlplane.accounts.sockets import ClaimsAuthMiddleware, ListedOrigins  # noqa: E402
from dashboard.routing import websocket_urlpatterns  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": http,
        "websocket": ListedOrigins(
            SessionMiddlewareStack(ClaimsAuthMiddleware(URLRouter(websocket_urlpatterns))), settings.ORIGINS
        ),
    }
)
