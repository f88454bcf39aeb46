from django.urls import path

from dashboard.consumer import LiveConsumer

websocket_urlpatterns = [
    path("ws/live", LiveConsumer.as_asgi()),  # type: ignore[arg-type]  # channels routes applications
]
