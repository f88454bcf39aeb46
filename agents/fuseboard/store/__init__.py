"""Redis for the hot path: pipelined connections, scripts, and whether Redis can be trusted."""

from fuseboard.contract.store_url import StoreUrl
from fuseboard.errors import Misconfigured
from fuseboard.settings import OFF
from fuseboard.store.single_store import SingleStore
from fuseboard.store.store import ConnectionLostError, NotServedError, Store

__all__ = ["ConnectionLostError", "NotServedError", "Store", "open_store"]


def open_store(url: str) -> Store:
    """The store at ``url``, not connected yet; see ``fuseboard.contract.store_url``. ``off`` has none."""
    if url == OFF:
        from fuseboard.store.off_store import OffStore

        return OffStore()
    try:
        parsed = StoreUrl.parse(url)
    except ValueError as error:
        raise Misconfigured(f"FUSEBOARD_REDIS_URL {error}") from None
    # Loaded by the pods that use them.
    if parsed.kind == "cluster":
        from fuseboard.store.cluster_store import ClusterStore

        return ClusterStore(parsed)
    if parsed.kind == "sentinel":
        from fuseboard.store.sentinel_store import SentinelStore

        return SentinelStore(parsed)
    return SingleStore(parsed)
