"""Liveness and readiness of this process. Neither looks at breakers."""

from django.db import InterfaceError, OperationalError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_GET


@require_GET
def healthz(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "ok"})


@require_GET
def readyz(request: HttpRequest) -> JsonResponse:
    """503 while Postgres does not answer. Redis is left out: pages and edits work without it."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except (OperationalError, InterfaceError):
        return JsonResponse({"status": "unavailable", "postgres": "down"}, status=503)
    return JsonResponse({"status": "ok", "postgres": "up"})
