from channels.security.websocket import WebsocketDenier
from django.urls import path, re_path

from dashboard.consumer import LiveConsumer

websocket_urlpatterns = [
    path("ws/live", LiveConsumer.as_asgi()),  # type: ignore[arg-type]  # channels routes applications
    # Without it, channels raises for an unknown path: a 500, and a stack trace that anybody can cause.
    re_path("", WebsocketDenier.as_asgi()),  # type: ignore[arg-type]
]
