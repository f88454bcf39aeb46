"""The primaries of a Redis Cluster, a connection to each, and the map of slots."""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable

import hiredis

from fuseboard.contract.store_url import Address, StoreUrl
from fuseboard.store.cluster_node import Node
from fuseboard.store.cluster_slots import SLOTS, Range, read_ranges, slot_of
from fuseboard.store.pipelined_connection import Pipe, open_pipe

log = logging.getLogger("fuseboard.store")

#: The timeout for connecting to one node, and for one answer in the background.
NODE_TIMEOUT_S = 0.5
#: A node that left the Cluster may still answer its questions for this time.
FAREWELL_S = 1.0
#: Addresses that are remembered, to ask for the map when no primary answers.
MAX_KNOWN = 32

_FAILURES = (OSError, TimeoutError, hiredis.ReplyError)


class ClusterMap:
    """``ended`` is called with the reason when a connection has ended."""

    def __init__(self, url: StoreUrl, ended: Callable[[Exception | None], None]) -> None:
        self._url = url
        self._ended = ended
        self.nodes: dict[Address, Node] = {}
        self.slots: list[Node | None] = [None] * SLOTS
        #: A node that another one names as the new owner of a slot knows it before all others.
        self.best_informed: Node | None = None
        self._known: tuple[Address, ...] = url.addresses

    def node_of(self, key: bytes) -> Node | None:
        return self.slots[slot_of(key)]

    def drop(self) -> None:
        nodes, self.nodes = self.nodes, {}
        self.slots = [None] * SLOTS
        for node in nodes.values():
            pipe, node.pipe = node.pipe, None
            if pipe is not None:
                pipe.abort()

    async def refresh(self) -> None:
        """Read the map, and connect to its new nodes. Raises when no node has a map."""
        ranges = await self._read()
        primaries = dict.fromkeys(address for _, _, address in ranges)
        self._known = tuple(dict.fromkeys((*primaries, *self._url.addresses, *self._known)))[:MAX_KNOWN]
        nodes = {address: self.nodes.get(address) or Node(address) for address in primaries}
        left = [node for address, node in self.nodes.items() if address not in nodes]
        self.nodes.update(nodes)
        await asyncio.gather(*(self._reach(node, ranges) for node in nodes.values()))
        slots: list[Node | None] = [None] * SLOTS
        for first, last, address in ranges:
            slots[first : last + 1] = [nodes[address]] * (last + 1 - first)
        self.slots, self.nodes = slots, nodes
        for node in left:
            _part_with(node)

    async def _reach(self, node: Node, ranges: Iterable[Range]) -> None:
        """Connect, and serve the node's slots without waiting for slower nodes. Logs failures only at
        debug level.
        """
        if node.pipe is not None:
            return

        def ended(pipe: Pipe, error: Exception | None) -> None:
            if node.pipe is pipe:
                node.pipe = None
                self._ended(error)

        try:
            async with asyncio.timeout(NODE_TIMEOUT_S):
                pipe = await open_pipe(self._url, node.address, ended)
        except _FAILURES as error:
            log.debug("cluster.unreached %s: %s", node.address, error)
            node.unreached = error
            return
        node.recover()
        node.pipe = pipe
        for first, last, address in ranges:
            if address == node.address:
                self.slots[first : last + 1] = [node] * (last + 1 - first)

    async def _read(self) -> list[Range]:
        """Ask any primary, or any other known node."""
        usable = [node for node in self.nodes.values() if node.usable]
        random.shuffle(usable)
        usable.sort(key=lambda node: node is not self.best_informed)
        failure: Exception = ConnectionRefusedError("no node of the Cluster is known")
        for node in usable:
            try:
                async with asyncio.timeout(NODE_TIMEOUT_S):
                    if node.pipe is not None:
                        return await read_ranges(node.pipe, node.address)
            except _FAILURES as error:
                failure = error
        for address in self._known:
            try:
                return await ask_for_ranges(self._url, address)
            except _FAILURES as error:
                failure = error
        raise failure


def _part_with(node: Node) -> None:
    """The node has no slots any more: let it answer its questions, then disconnect."""
    pipe, node.pipe = node.pipe, None
    if pipe is not None:
        asyncio.get_running_loop().call_later(FAREWELL_S if pipe.waiting else 0, pipe.abort)


async def ask_for_ranges(url: StoreUrl, address: Address) -> list[Range]:
    """The map of the node at ``address``, over a connection of its own."""
    async with asyncio.timeout(NODE_TIMEOUT_S):
        pipe = await open_pipe(url, address, lambda *_: None, scripts=False)
        try:
            return await read_ranges(pipe, address)
        finally:
            pipe.abort()
