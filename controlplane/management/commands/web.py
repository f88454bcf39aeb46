"""Serve the pages and the API: ``python manage.py web --port 8000``."""

import os
from argparse import ArgumentParser
from typing import Any

import uvicorn
from django.core.management.base import BaseCommand

from controlplane.listening import listen


class Command(BaseCommand):
    help = "Serves the dashboard and the API."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000)
        parser.add_argument("--exactly", action="store_true", help="fail when the port is in use")

    def handle(self, *args: Any, **options: Any) -> None:
        host: str = options["host"]
        with listen(host, options["port"], exactly=options["exactly"], say=self.stderr.write) as listener:
            port = listener.getsockname()[1]
            # A socket is only opened by pages of a listed origin; on its own machine that is this one.
            os.environ.setdefault("FUSEBOARD_ORIGINS", f"http://127.0.0.1:{port},http://localhost:{port}")
            self.stdout.write(f"Serving http://{host}:{port}/")
            config = uvicorn.Config(
                "controlplane.asgi:application",
                log_config=None,
                access_log=False,
                # Open pages hold a WebSocket each; they reconnect by themselves.
                timeout_graceful_shutdown=2,
            )
            uvicorn.Server(config).run(sockets=[listener])
