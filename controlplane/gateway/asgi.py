"""The gateway as an ASGI application.

A process of its own serves it with ``manage.py gateway``. The smallest installation may route
``/agent/`` of ``controlplane.asgi`` to ``application`` instead. It then starts with the first
heartbeat, and shares its process with pages, which makes it slower (see ``docs/benchmarks.md``).
"""

from controlplane.gateway.app import GatewayApp
from controlplane.gateway.process import Gateway
from controlplane.gateway.settings import from_environment

application = GatewayApp(Gateway(from_environment()))
