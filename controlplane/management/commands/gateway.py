"""Serve the agents: ``python manage.py gateway --port 8001``."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from controlplane.checks import CONFIGURATION
from controlplane.gateway.app import GatewayApp
from controlplane.gateway.process import Gateway
from controlplane.gateway.settings import from_environment
from controlplane.gateway.wire.serving import BACKLOG, gateway_config
from controlplane.listening import listen
from controlplane.reloading import follow_log_level
from controlplane.shutdown import EndingServer
from controlplane.tls import uvicorn_options


class Command(BaseCommand):
    #: The other checks import every page and operation, which takes nearly half of a start.
    requires_system_checks = (CONFIGURATION,)
    help = "Serves /agent/v1/sync, where agents send heartbeats and receive configuration."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8001)
        parser.add_argument("--exactly", action="store_true", help="fail when the port is in use")

    def handle(self, *args: Any, **options: Any) -> None:
        host: str = options["host"]
        say, tls = self.stderr.write, uvicorn_options()
        follow_log_level()
        with listen(host, options["port"], exactly=options["exactly"], say=say, backlog=BACKLOG) as listener:
            port = listener.getsockname()[1]
            app = GatewayApp(Gateway(from_environment(port=port, alone=True)))
            self.stdout.write(f"Serving {'https' if tls else 'http'}://{host}:{port}/")
            self.stdout.flush()
            config = gateway_config(app, app.count_refusal, **tls)
            EndingServer(config, process="gateway").run(sockets=[listener])
