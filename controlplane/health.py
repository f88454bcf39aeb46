"""Liveness and readiness of this process. Neither looks at breakers."""

from collections.abc import Callable

from django.db import InterfaceError, OperationalError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_GET


def _not_started() -> bool:
    return False


#: Whether the pages can be drawn without Postgres. The dashboard sets it when it starts.
can_draw: Callable[[], bool] = _not_started


@require_GET
def healthz(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "ok"})


@require_GET
def readyz(request: HttpRequest) -> JsonResponse:
    """503 while there is nothing to draw. ``?postgres=1``: 503 while Postgres does not answer.

    An outage of Postgres must not take the dashboard away from a load balancer: people need it then. Redis
    is left out: pages and edits work without it.
    """
    if can_draw() and request.GET.get("postgres") != "1":
        return JsonResponse({"status": "ok"})
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except (OperationalError, InterfaceError):
        return JsonResponse({"status": "unavailable", "postgres": "down"}, status=503)
    return JsonResponse({"status": "ok", "postgres": "up"})
