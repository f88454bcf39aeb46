"""httpx2 transports that guard one dependency: for the clients of OpenAI and Anthropic, which use httpx2.

::

    client = httpx2.AsyncClient(transport=GuardedTransport(agent, dependency="payments-api"))
    client = httpx2.Client(transport=BlockingGuardedTransport(agent, dependency="payments-api"))

They behave as those of ``fuseboard.integrations.httpx``.
"""

from fuseboard.errors import Misconfigured
from fuseboard.integrations.guarded_request import RequestRefused
from fuseboard.integrations.httpx_family import AsyncGuard, BlockingGuard

try:
    import httpx2
except ModuleNotFoundError:
    raise Misconfigured("fuseboard.integrations.httpx2 needs httpx2: pip install httpx2") from None


class CallRefused(RequestRefused, httpx2.TransportError):
    """The request was not sent. ``decision`` says why, and when to try again."""


class GuardedTransport(AsyncGuard[httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport):
    """The transport of ``httpx2.AsyncClient``."""

    _library, _refused = httpx2, CallRefused


class BlockingGuardedTransport(BlockingGuard[httpx2.BaseTransport], httpx2.BaseTransport):
    """The transport of ``httpx2.Client``."""

    _library, _refused = httpx2, CallRefused
