"""httpx transports for calls to language models: for every library that takes a client of httpx.

::

    client = httpx.AsyncClient(transport=LlmTransport(agent))
    client = httpx.Client(transport=BlockingLlmTransport(agent))

They behave as those of ``fuseboard.integrations.httpx``, and reserve and settle tokens.
"""

from fuseboard.integrations.httpx import BlockingGuardedTransport, CallRefused, GuardedTransport
from fuseboard.llm.transport import ModelGuard

__all__ = ["BlockingLlmTransport", "CallRefused", "LlmTransport"]


class LlmTransport(ModelGuard, GuardedTransport):
    """The transport of ``httpx.AsyncClient``. See ``fuseboard.llm.transport.ModelGuard``."""


class BlockingLlmTransport(ModelGuard, BlockingGuardedTransport):
    """The transport of ``httpx.Client``. See ``fuseboard.llm.transport.ModelGuard``."""
