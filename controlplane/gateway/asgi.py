"""The gateway as an ASGI application.

A separate process serves it with ``manage.py gateway``. The smallest installation may route
``/agent/`` of ``controlplane.asgi`` to ``application`` instead. It then starts with the first
heartbeat, and shares its process with pages, which makes it slower (see ``docs/benchmarks.md``).

Deadlines for heads and bodies come from ``http_limits``, which ``manage.py web`` and ``manage.py
gateway`` install. Any other ASGI server must have its own.
"""

from controlplane.gateway.app import GatewayApp
from controlplane.gateway.process import Gateway
from controlplane.gateway.settings import from_environment

application = GatewayApp(Gateway(from_environment()))
