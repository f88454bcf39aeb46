"""Redis, as the hot path sees it: one pipelined connection, scripts, and whether it can be trusted."""

from fuseboard.store.connection import ConnectionLostError, Store

__all__ = ["ConnectionLostError", "Store"]
