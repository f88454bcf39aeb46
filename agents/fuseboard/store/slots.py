"""Which node of a Cluster has which key."""

from binascii import crc_hqx

from fuseboard.contract.store_url import Address
from fuseboard.store.pipe import Pipe

SLOTS = 16_384

#: First and last slot, and the primary that has them.
Range = tuple[int, int, Address]


def slot_of(key: bytes) -> int:
    """CRC16 (XMODEM) of the hash tag, or of the whole key when it has none."""
    begin = key.find(b"{")
    if begin >= 0:
        end = key.find(b"}", begin + 1)
        if end > begin + 1:
            key = key[begin + 1 : end]
    return crc_hqx(key, 0) % SLOTS


async def read_ranges(pipe: Pipe, asked: Address) -> list[Range]:
    """The map of the Cluster, as the node ``asked`` knows it.

    Raises ``hiredis.ReplyError`` when it is no node of a Cluster, and ``OSError`` when it has no map.
    """
    reply = await pipe.insist("CLUSTER", "SLOTS")
    if not isinstance(reply, list) or not reply:
        raise ConnectionRefusedError(f"{asked} knows of no slots: is the Cluster set up?")
    ranges: list[Range] = []
    for first, last, primary, *_ in reply:
        # A node that does not know its own name leaves it out.
        host = primary[0].decode() if primary[0] else ""
        ranges.append((first, last, Address(host if host not in ("", "?") else asked.host, primary[1])))
    return ranges


def redirected_to(error: str, answering: Address) -> Address:
    """Where ``MOVED slot host:port`` or ``ASK slot host:port`` sends us."""
    host, _, port = error.rsplit(" ", 1)[-1].rpartition(":")
    return Address(host or answering.host, int(port))
