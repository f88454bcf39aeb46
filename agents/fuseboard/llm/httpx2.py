"""httpx2 transports for calls to language models: for every library that takes a client of httpx2.

::

    client = httpx2.AsyncClient(transport=LlmTransport(agent))
    client = httpx2.Client(transport=BlockingLlmTransport(agent))

They behave as those of ``fuseboard.integrations.httpx2``, and reserve and settle tokens.
"""

from fuseboard.integrations.httpx2 import BlockingGuardedTransport, CallRefused, GuardedTransport
from fuseboard.llm.transport import ModelGuard

__all__ = ["BlockingLlmTransport", "CallRefused", "LlmTransport"]


class LlmTransport(ModelGuard, GuardedTransport):
    """The transport of ``httpx2.AsyncClient``. See ``fuseboard.llm.transport.ModelGuard``."""


class BlockingLlmTransport(ModelGuard, BlockingGuardedTransport):
    """The transport of ``httpx2.Client``. See ``fuseboard.llm.transport.ModelGuard``."""
