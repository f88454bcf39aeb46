"""Serve the pages and the API: ``python manage.py web --port 8000``."""

import os
from argparse import ArgumentParser
from typing import Any

import uvicorn
from django.conf import settings
from django.core.management.base import BaseCommand
from django.utils.module_loading import import_string

from controlplane.api.http.body_limit import DRAINED
from controlplane.checks import CONFIGURATION
from controlplane.http_limits.limits import Limits
from controlplane.http_limits.serving import Application, limited
from controlplane.installation import COMMAND
from controlplane.listening import listen
from controlplane.loading import loading
from controlplane.management.web_address import people_open, served_at
from controlplane.metrics import count_refusal
from controlplane.reloading import follow_log_level
from controlplane.shutdown import EndingServer
from controlplane.tls import uvicorn_options

#: Sizes are up to `BodyLimit`, which also reads what it refuses, up to this much.
LIMITS = Limits(body_bytes=DRAINED, body_s=60.0, websockets=True)


class Command(BaseCommand):
    #: The other checks look at every model and URL. `manage.py check` runs them before a deployment.
    requires_system_checks = (CONFIGURATION,)
    help = "Serves the dashboard and the API."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--exactly", action="store_true", help="fail when the port is in use")

    def handle(self, *args: Any, **options: Any) -> None:
        host, tls = options["host"], uvicorn_options()
        follow_log_level()
        scheme = "https" if tls else "http"
        with listen(host, options["port"], exactly=options["exactly"], say=self.stderr.write) as listener:
            port = listener.getsockname()[1]
            # Only pages of a listed origin may open a socket; on a local machine that is this address.
            here = f"{scheme}://127.0.0.1:{port},{scheme}://localhost:{port}"
            os.environ.setdefault("FUSEBOARD_ORIGINS", here)
            self._print_address(served_at(scheme, host, port), tls=bool(tls))
            # Imported now, because it reads the origins.
            with loading():
                application = import_string(settings.ASGI_APPLICATION)
            EndingServer(server_config(application, **tls), process="web").run(sockets=[listener])

    def _print_address(self, here: str, *, tls: bool) -> None:
        """The address that works, and how the first person logs in."""
        self.stdout.write(f"Serving {here}/")
        if settings.ORIGINS:
            self.stdout.write(f"People open {people_open()}/")
        else:
            self.stdout.write(f"First login: {COMMAND} first_admin --address {here}")
        if not (settings.PLAIN_HTTP or settings.BEHIND_PROXY or tls):
            self.stderr.write(
                "Every page redirects to https, which this process does not serve. Set"
                " FUSEBOARD_BEHIND_PROXY=1 behind a proxy with TLS, FUSEBOARD_TLS_CERT_FILE and"
                " FUSEBOARD_TLS_KEY_FILE without one, or FUSEBOARD_PLAIN_HTTP=1 for this machine alone."
            )


def server_config(app: Application, *, limits: Limits = LIMITS, **tls: Any) -> uvicorn.Config:
    """How the web process is served."""
    return uvicorn.Config(
        **limited(app, limits, refused=count_refusal),
        log_config=None,
        access_log=False,
        # Visitors need not know which server sends the pages.
        server_header=False,
        # Else anybody on this machine could say which address they come from.
        proxy_headers=settings.BEHIND_PROXY,
        forwarded_allow_ips=settings.PROXIES,
        # Open pages hold a WebSocket each; they reconnect by themselves.
        timeout_graceful_shutdown=2,
        # A browser sends nothing, and compressing each drawing for each socket costs more than it saves.
        ws="websockets-sansio",
        ws_max_size=1024,
        ws_per_message_deflate=False,
        **tls,
    )
