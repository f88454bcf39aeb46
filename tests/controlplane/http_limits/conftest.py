import asyncio

import pytest
import uvloop

from tests.controlplane.gateway.wire import wire
from tests.controlplane.http_limits.clients import web_wire


def pytest_asyncio_loop_factories(config, item):
    """On both loops, which end connections differently. uvloop serves the product."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=["gateway", "web"])
def serve(request):
    """Both processes, each with the limits that a test wants."""
    return wire if request.param == "gateway" else web_wire
