"""Serve the servers: ``python manage.py gateway --port 8001``."""

import socket
from argparse import ArgumentParser
from typing import Any

import uvicorn
from django.core.management.base import BaseCommand, CommandError

from controlplane.gateway.app import GatewayApp
from controlplane.gateway.process import Gateway
from controlplane.gateway.serving import BACKLOG, uvicorn_config
from controlplane.gateway.settings import from_environment


class Command(BaseCommand):
    help = "Serves /agent/v1/sync, which the agents in your services report to."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8001)
        parser.add_argument("--exactly", action="store_true", help="fail when the port is in use")

    def handle(self, *args: Any, **options: Any) -> None:
        host: str = options["host"]
        with self._listen(host, options["port"], options["exactly"]) as listener:
            port = listener.getsockname()[1]
            app = GatewayApp(Gateway(from_environment(port=port, alone=True)))
            self.stdout.write(f"Serving http://{host}:{port}/")
            self.stdout.flush()
            uvicorn.Server(uvicorn_config(app)).run(sockets=[listener])

    def _listen(self, host: str, port: int, exactly: bool) -> socket.socket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            if exactly or port == 0:
                raise CommandError(f"Cannot listen on {host}, port {port}: {error.strerror}") from error
            self.stderr.write(f"Port {port} cannot be had ({error.strerror}); another one is used.")
            return self._listen(host, 0, exactly)
