"""Calls to language models: ``fuseboard.guard`` reserves the tokens of each, and settles them by its usage.

``fuseboard.llm.httpx2.LlmTransport`` and ``fuseboard.llm.httpx.LlmTransport`` are for libraries that take a
client of httpx2 or httpx. Nothing of this package is imported before it is used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuseboard.llm.context_window import ContextTooLarge, Fitted, Shares, fit
    from fuseboard.llm.exact_cache import ExactCache
    from fuseboard.llm.shrinking import shrunk
    from fuseboard.llm.usage import Usage

__all__ = ["ContextTooLarge", "ExactCache", "Fitted", "Shares", "Usage", "fit", "shrunk"]

_LATE = {
    "ContextTooLarge": "fuseboard.llm.context_window",
    "ExactCache": "fuseboard.llm.exact_cache",
    "Fitted": "fuseboard.llm.context_window",
    "Shares": "fuseboard.llm.context_window",
    "Usage": "fuseboard.llm.usage",
    "fit": "fuseboard.llm.context_window",
    "shrunk": "fuseboard.llm.shrinking",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module 'fuseboard.llm' has no attribute {name!r}")
