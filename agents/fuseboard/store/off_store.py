"""No Redis, on purpose: ``FUSEBOARD_REDIS_URL=off``."""

from fuseboard.contract.store_url import StoreUrl
from fuseboard.settings import OFF, PREFIX
from fuseboard.store.single_store import SingleStore

#: Why locks, idempotency keys and backlogs cannot be used.
REDIS_IS_OFF = f"{PREFIX}REDIS_URL is {OFF}"


class OffStore(SingleStore):
    """Never connects."""

    def __init__(self) -> None:
        super().__init__(StoreUrl(kind="single"))

    async def connect(self, timeout: float = 1.0) -> None:
        raise ConnectionRefusedError(REDIS_IS_OFF)
