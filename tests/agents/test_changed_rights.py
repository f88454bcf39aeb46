"""A store whose connection may no longer call scripts as it did: nothing ran, and that is one fault."""

from fuseboard.contract.scripts import ADMIT
from fuseboard.contract.store_url import Address, StoreUrl
from fuseboard.store.cluster_node import Node, Question
from fuseboard.store.cluster_store import ClusterStore
from fuseboard.store.pipelined_connection import Pipe
from fuseboard.store.single_store import SingleStore
from fuseboard.store.store import NotServedError, Reply

NOPERM = b"-NOPERM User pod has no permissions to run the 'evalsha' command\r\n"


class Wire:
    """A transport that sends nowhere."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.aborted = False

    def get_extra_info(self, name: str) -> None:
        return None

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


def connected(pipe: Pipe) -> Wire:
    wire = Wire()
    pipe.connection_made(wire)  # type: ignore[arg-type]
    return wire


async def test_changed_rights_count_as_one_lost_connection():
    """With three questions under way, a change of the ACL profile was three failures: local mode."""
    store, lost = SingleStore(StoreUrl.parse("redis://127.0.0.1:1/0")), []
    store.on_lost(lost.append)
    pipe = store._pipe = Pipe(store._ended)
    wire = connected(pipe)
    replies: list[Reply] = []
    for number in range(3):
        store.run(ADMIT, (b"{d:a}:key",), (b"question %d" % number,), replies.append)
    pipe.data_received(NOPERM * 2)
    assert wire.aborted
    pipe.connection_lost(None)
    assert [type(reply) for reply in replies[:2]] == [NotServedError] * 2
    assert "NOPERM" in str(replies[0])
    assert (len(replies), len(lost), store.connected) == (3, 1, False)


def node(store: ClusterStore, port: int) -> tuple[Node, Wire]:
    found = Node(Address("127.0.0.1", port))
    found.pipe = Pipe(lambda pipe, error: None)
    store._map.nodes[found.address] = found
    return found, connected(found.pipe)


async def test_a_node_with_changed_rights_is_not_one_that_answers_with_errors():
    store = ClusterStore(StoreUrl.parse("redis+cluster://127.0.0.1:1/0"))
    first, wire = node(store, 7001)
    replies: list[Reply] = []
    Question(store, ADMIT, (b"{d:a}:key",), (1, b"{d:a}:key", b"question"), replies.append).send(first)
    assert first.pipe is not None
    first.pipe.data_received(NOPERM)
    assert wire.aborted
    assert isinstance(replies[0], NotServedError)
    assert first.errors == 0


async def test_a_script_is_loaded_at_every_node_that_a_question_is_forwarded_to():
    """After SCRIPT FLUSH and a resharding, the second node counted as one that answers with errors."""
    store = ClusterStore(StoreUrl.parse("redis+cluster://127.0.0.1:1/0"))
    (first, _), (second, wire) = node(store, 7001), node(store, 7002)
    assert first.pipe is not None
    assert second.pipe is not None
    replies: list[Reply] = []
    Question(store, ADMIT, (b"{d:a}:key",), (1, b"{d:a}:key", b"question"), replies.append).send(first)
    first.pipe.data_received(b"-NOSCRIPT No matching script\r\n")
    first.pipe.data_received(b"$3\r\nsha\r\n" + b"-MOVED 1 127.0.0.1:7002\r\n")
    second.pipe.data_received(b"-NOSCRIPT No matching script\r\n")
    assert any(b"LOAD" in command for command in wire.written)
    second.pipe.data_received(b"$3\r\nsha\r\n" + b"$2\r\nok\r\n")
    assert (replies, second.errors) == ([b"ok"], 0)
