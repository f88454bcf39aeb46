"""A Redis Cluster: one pipelined connection to each primary, and the map of slots to primaries.

All keys of a question share a hash tag, so the first key decides which node is asked. The map is read
in the background: at the start, every 30 s, when a node answers ``MOVED``, and repeatedly while a part
of the Cluster cannot be asked.

A failure counts against the node that failed. A primary that is lost, frozen or confused affects the
shared decisions of its own slots only: those calls are decided locally, at once. The mode stays
``shared``, and its cause names the missing nodes. The mode becomes ``local`` when no node can be asked,
or when the failure rules trip and no single node explains it.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from time import monotonic

import hiredis

from fuseboard.cancellation import STOP_S, stop_tasks, wait_for_event
from fuseboard.contract.scripts import Script
from fuseboard.contract.store_url import StoreUrl
from fuseboard.store.cluster_map import NODE_TIMEOUT_S, ClusterMap
from fuseboard.store.cluster_node import Node, Question
from fuseboard.store.cluster_slots import redirected_to, slot_of
from fuseboard.store.store import (
    FunctionMissingError,
    NotServedError,
    OnReply,
    Reply,
    Word,
    needs_another_way,
)

log = logging.getLogger("fuseboard.store")

#: How often the map is read while all is well.
REFRESH_S = 30.0
#: Pause between two readings while a node is missing; doubles from the first to the last.
MISSING_S = (0.05, 1.0)
#: How often a question may be forwarded, by the old node of a slot and by a node that is giving it away.
MAX_HOPS = 2
#: A node at fault is not asked for at least this time.
REST_S = 1.0

_FAILURES = (OSError, TimeoutError, hiredis.ReplyError)


class ClusterStore:
    """A ``Store``; see there."""

    together = False

    def __init__(self, url: StoreUrl) -> None:
        self._map = ClusterMap(url, self._ended)
        self._keeper: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._connected = False
        self._trouble = ""
        self._lost: Callable[[Exception | None], None] = lambda _: None
        self._news: Callable[[], None] = lambda: None

    def on_lost(self, callback: Callable[[Exception | None], None]) -> None:
        self._lost = callback

    def on_news(self, callback: Callable[[], None]) -> None:
        self._news = callback

    @property
    def connected(self) -> bool:
        return self._connected

    def serves(self, key: bytes) -> bool:
        node = self._map.slots[slot_of(key)]
        return node is not None and node.usable

    @property
    def trouble(self) -> str:
        return self._trouble

    async def connect(self, timeout: float = 1.0) -> None:
        await self.drop()
        try:
            async with asyncio.timeout(timeout):
                await self._map.refresh()
            self._look_around()
            if not self._connected:
                raise self._why_not_connected()
        except BaseException:
            await self.drop()
            raise
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="fuseboard-cluster")

    def _why_not_connected(self) -> Exception:
        lacking = (
            n.unreached for n in self._map.nodes.values() if isinstance(n.unreached, FunctionMissingError)
        )
        # A missing function goes first: its error says what to do, and waiting does not end it.
        return next(lacking, None) or ConnectionRefusedError(self._trouble)

    async def drop(self) -> None:
        keeper, self._keeper = self._keeper, None
        try:
            await stop_tasks(keeper, within_s=STOP_S)
        finally:
            self._connected, self._trouble = False, ""
            self._map.drop()
        # Let the waiting callers run before anything relies on the connections being closed.
        await asyncio.sleep(0)

    async def close(self) -> None:
        await self.drop()

    # Questions

    def run(
        self, script: Script, keys: tuple[bytes, ...], arguments: Sequence[Word], on_reply: OnReply
    ) -> None:
        node = self._map.slots[slot_of(keys[0])]
        if node is None or not node.usable:
            on_reply(NotServedError("no node has this key" if node is None else node.trouble))
            return
        Question(self, script, keys, (len(keys), *keys, *arguments), on_reply).send(node)

    async def call(self, *command: Word, timeout: float = 1.0) -> Reply:
        node: Node | None
        if len(command) > 1:
            key = command[1] if isinstance(command[1], bytes) else str(command[1]).encode()
            node = self._map.node_of(key)
        else:
            node = next((node for node in self._map.nodes.values() if node.usable), None)
        if node is None or node.pipe is None or node.resting:
            raise NotServedError("no node can be asked" if node is None else node.trouble)
        async with asyncio.timeout(timeout):
            return await node.pipe.insist(*command)

    def refused(self, question: Question, error: hiredis.ReplyError) -> None:
        """Ask the node that the answer names. Nothing ran, so nothing is consumed twice."""
        text = str(error)
        kind = text.partition(" ")[0]
        if kind == "NOSCRIPT" and not question.loaded:
            question.send(question.node, load_first=True)
        elif kind in ("MOVED", "ASK"):
            self._redirect(question, kind, text)
        elif kind == "TRYAGAIN":  # some of the keys are moving to another node
            question.on_reply(NotServedError(text))
        elif needs_another_way(text):
            # A new connection finds out how to call scripts. That the old one ends counts once.
            if question.node.pipe is not None:
                question.node.pipe.abort()
            self._wake.set()
            question.on_reply(NotServedError(text))
        else:
            question.node.errors += 1
            self._wake.set()
            question.on_reply(error)

    def _redirect(self, question: Question, kind: str, text: str) -> None:
        target = self._map.nodes.get(redirected_to(text, question.node.address))
        if kind == "MOVED":
            self._wake.set()
            if target is not None and target.usable:
                self._map.slots[slot_of(question.keys[0])] = target
                self._map.best_informed = target
        if question.hops == MAX_HOPS or target is None or not target.usable:
            question.on_reply(NotServedError(text))
            return
        question.hops += 1
        question.loaded = False  # the other node may not have the script
        question.asking = kind == "ASK"
        question.send(target)

    # In the background

    async def _keep(self) -> None:
        """Read the map when there is a reason, and bring back nodes that were at fault."""
        pause_s = MISSING_S[0]
        while True:
            # Never at once: a thousand MOVED answers cause one reading.
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))
            if not self._trouble:
                await wait_for_event(self._wake, REFRESH_S * random.uniform(0.8, 1.2))
            self._wake.clear()
            try:
                resting = [node for node in self._map.nodes.values() if node.resting]
                await asyncio.gather(*map(_examine, resting))
                await self._map.refresh()
            except _FAILURES as error:
                log.debug("cluster.map_unread: %s", error)
            self._look_around()
            pause_s = min(MISSING_S[1], pause_s * 2) if self._trouble else MISSING_S[0]

    # Faults of nodes

    def isolate(self, deadline_s: float) -> bool:
        asked = [node for node in self._map.nodes.values() if node.usable]
        guilty = [node for node in asked if node.fault(deadline_s)]
        if len(guilty) == len(asked):
            return False
        for node in guilty:
            node.rest(node.fault(deadline_s))
        if guilty:
            self._look_around()
            self._wake.set()
            return True
        # The last calls of a node that is not asked any more may fail a little later than the others.
        resting = [node for node in self._map.nodes.values() if node.resting]
        return any(monotonic() - node.resting_since < NODE_TIMEOUT_S for node in resting)

    def _ended(self, error: Exception | None) -> None:
        """A connection has ended."""
        self._look_around()
        self._wake.set()
        if not self._connected:
            self._lost(error)

    def _look_around(self) -> None:
        """Count the nodes that can be asked, and call back when the number has changed."""
        before, nodes = self._trouble, self._map.nodes.values()
        missing = [node.trouble for node in nodes if not node.usable]
        self._connected = len(missing) < len(nodes)
        self._trouble = ""
        if missing:
            self._trouble = (
                f"{len(missing)} of {len(nodes)} primaries are unavailable, their keys are decided locally: "
                f"{', '.join(missing)}"
            )
        if self._trouble != before:
            log.warning("cluster.nodes: %s", self._trouble or "all primaries are available again")
            self._news()


async def _examine(node: Node) -> None:
    """Use a node again once it answers correctly."""
    if node.pipe is None or monotonic() - node.resting_since < REST_S:
        return
    try:
        async with asyncio.timeout(NODE_TIMEOUT_S):
            await node.pipe.insist("PING")
    except _FAILURES:
        # A socket that lost a question may never work again: the next attempt opens a new one.
        if node.pipe is not None:
            node.pipe.abort()
        return
    node.recover()
