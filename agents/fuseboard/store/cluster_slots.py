"""The slots of a Cluster: which node has which key."""

from binascii import crc_hqx

from fuseboard.contract.store_url import Address
from fuseboard.store.pipelined_connection import Pipe

SLOTS = 16_384

#: First and last slot, and their primary.
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

    Raises ``hiredis.ReplyError`` when it is not a node of a Cluster, and ``OSError`` when it has no
    map.
    """
    reply = await pipe.insist("CLUSTER", "SLOTS")
    ranges = [_range(part, asked) for part in reply] if isinstance(reply, list) else []
    if not ranges:
        raise ConnectionRefusedError(f"{asked} has no slots: is the Cluster set up?")
    return ranges


def _range(part: object, asked: Address) -> Range:
    match part:
        case [int() as first, int() as last, [bytes() | None as host, int() as port, *_], *_]:
            # A node that does not know its own name leaves it empty.
            name = asked.host if host in (None, b"", b"?") else host.decode()
            return first, last, Address(name, port)
    raise ConnectionRefusedError(f"{asked} gave an invalid answer to CLUSTER SLOTS: {part!r:.100}")


def redirected_to(error: str, answering: Address) -> Address:
    """The address in ``MOVED slot host:port`` or ``ASK slot host:port``."""
    host, _, port = error.rsplit(" ", 1)[-1].rpartition(":")
    return Address(host or answering.host, int(port) if port.isdigit() else 0)
