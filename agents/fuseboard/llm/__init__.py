"""Calls to language models: ``fuseboard.guard`` reserves the tokens of each, and settles them by its usage.

``fuseboard.llm.httpx2.LlmTransport`` and ``fuseboard.llm.httpx.LlmTransport`` are for libraries that take a
client of httpx2 or httpx. Nothing of this package is imported before it is used.
"""
