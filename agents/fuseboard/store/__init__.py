"""Redis for the hot path: pipelined connections, scripts, and whether Redis can be trusted."""

from fuseboard.contract.store_url import StoreUrl
from fuseboard.errors import Misconfigured
from fuseboard.store.cluster_store import ClusterStore
from fuseboard.store.sentinel_store import SentinelStore
from fuseboard.store.single_store import SingleStore
from fuseboard.store.store import ConnectionLostError, NotServedError, Store

__all__ = ["ConnectionLostError", "NotServedError", "Store", "open_store"]


def open_store(url: str) -> Store:
    """The store at ``url``, not connected yet; see ``fuseboard.contract.store_url``."""
    try:
        parsed = StoreUrl.parse(url)
    except ValueError as error:
        raise Misconfigured(f"FUSEBOARD_REDIS_URL {error}") from None
    kinds: dict[str, type[SingleStore | ClusterStore]] = {
        "single": SingleStore,
        "cluster": ClusterStore,
        "sentinel": SentinelStore,
    }
    return kinds[parsed.kind](parsed)
