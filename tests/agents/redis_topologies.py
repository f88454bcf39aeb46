"""A Cluster of six nodes, and a primary with a replica and three Sentinels: real servers, free ports."""

import secrets
import signal
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

import redis

from controlplane.embedded.children import ServerFailed, last_lines, spawn, stop
from controlplane.embedded.valkey import binary
from fuseboard.store.cluster_slots import SLOTS, slot_of
from tests.waiting import wait_until

PRIMARIES = 3
#: What a node of the Cluster must be silent for, and a primary before Sentinels: long enough for a
#: busy machine, or a test would see failovers it did not ask for.
NODE_TIMEOUT_MS = 1500
DOWN_AFTER_MS = 1500
#: A Sentinel that was paused for 2 s trusts its clock no more, and orders no failover for 30 s ("TILT").
PAUSED_S = 30 + 15

_COMMON = """
bind 127.0.0.1
port {port}
dir "{folder}"
requirepass {password}
"""
_DATA = """
masterauth {password}
save ""
appendonly no
maxmemory-policy noeviction
repl-diskless-sync-delay 0
repl-ping-replica-period 1
"""
_CLUSTER = f"""
cluster-enabled yes
cluster-node-timeout {NODE_TIMEOUT_MS}
cluster-require-full-coverage no
cluster-replica-validity-factor 0
"""


def free_ports(count: int) -> list[int]:
    """So many ports that are free right now, all different."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in listeners]


class Member:
    """One process of a formation."""

    def __init__(
        self, folder: Path, name: str, port: int, settings: str, password: str, *options: str
    ) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.port = port
        self.password = password
        self._options = options
        self._file = self.folder / "conf"
        self._file.touch(mode=0o600)
        self._file.write_text(settings.format(port=port, folder=self.folder, password=password))
        self.process: subprocess.Popen[bytes] | None = None
        self.client = redis.Redis(port=port, password=password, socket_timeout=5)

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = spawn([binary(), self._file, *self._options], log=log)

    def answers(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            raise ServerFailed(last_lines(self.folder / "log"))
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False

    def kill(self) -> None:
        """As a crash would."""
        self.send(signal.SIGKILL)
        self._running.wait()

    def send(self, number: signal.Signals) -> None:
        self._running.send_signal(number)

    def stop(self) -> None:
        self.client.close()
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            stop(self.process, by=signal.SIGKILL, grace_s=5)

    @property
    def _running(self) -> "subprocess.Popen[bytes]":
        assert self.process is not None
        return self.process


class Cluster:
    """``nodes``: three primaries, then a replica of each."""

    def __init__(self, folder: Path) -> None:
        self.password = secrets.token_urlsafe(12)
        ports = free_ports(4 * PRIMARIES)
        self.nodes = [
            Member(
                folder,
                f"node{number}",
                port,
                f"{_COMMON}{_DATA}{_CLUSTER}cluster-port {bus}\n",
                self.password,
            )
            for number, (port, bus) in enumerate(zip(ports[::2], ports[1::2], strict=True))
        ]
        self._bus = ports[1::2]
        self.ids: dict[str, Member] = {}

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:2])
        return f"redis+cluster://:{self.password}@{hosts}/"

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        wait_until(lambda: all(node.answers() for node in self.nodes))
        first, *others = self.nodes
        share = SLOTS // PRIMARIES + 1
        for number, node in enumerate(self.nodes[:PRIMARIES]):
            last = min(SLOTS, (number + 1) * share) - 1
            node.client.execute_command("CLUSTER", "ADDSLOTSRANGE", number * share, last)
        for number, node in enumerate(self.nodes):
            node.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            self.ids[node.client.execute_command("CLUSTER", "MYID").decode()] = node
        for node, bus in zip(others, self._bus[1:], strict=True):
            first.client.execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        wait_until(lambda: all(self._acquainted(node) for node in self.nodes))
        names = {node.port: name for name, node in self.ids.items()}
        for primary, replica in zip(self.nodes[:PRIMARIES], self.nodes[PRIMARIES:], strict=True):
            replica.client.execute_command("CLUSTER", "REPLICATE", names[primary.port])
        self.settle()

    def settle(self) -> None:
        """Wait until every node agrees on three primaries with a replica in step each."""
        wait_until(lambda: all(self._settled(node) for node in self.nodes))

    def agree(self) -> None:
        """Wait until every node knows the same epochs and slots of all nodes."""
        wait_until(lambda: len({self._known_by(node) for node in self.nodes}) == 1)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def primary_of(self, key: str) -> Member:
        """Who has the key, by the word of whoever answers."""
        slot = slot_of(key.encode())
        for asked in self.nodes:
            try:
                ranges = asked.client.execute_command("CLUSTER", "SLOTS")
            except (redis.ConnectionError, redis.TimeoutError):
                continue
            for first, last, primary, *_ in _ranges(ranges):
                if first <= slot <= last:
                    return next(node for node in self.nodes if node.port == primary)
        raise AssertionError("nobody has this key")

    def primaries(self) -> list[Member]:
        return [node for node in self.nodes if node.client.info("replication")["role"] == "master"]

    def flush(self) -> None:
        for node in self.primaries():
            node.client.flushall()

    def id_of(self, member: Member) -> str:
        return next(name for name, node in self.ids.items() if node is member)

    def _acquainted(self, node: Member) -> bool:
        text = node.client.execute_command("CLUSTER", "NODES")
        lines = text if isinstance(text, dict) else text.decode().splitlines()
        return len(lines) == 2 * PRIMARIES and "handshake" not in str(text)

    def _known_by(self, asked: Member) -> frozenset[tuple[str, ...]]:
        """Id, epoch and slots of each node, but not the moves in brackets: a node lists only its own."""
        text = asked.client.execute_command("CLUSTER", "NODES").decode()
        lines = [line.split() for line in text.splitlines()]
        return frozenset(
            (line[0], line[6], *(part for part in line[8:] if not part.startswith("["))) for line in lines
        )

    def _settled(self, node: Member) -> bool:
        ranges = _ranges(node.client.execute_command("CLUSTER", "SLOTS"))
        info = node.client.info("replication")
        in_step = info["role"] == "master" or info["master_link_status"] == "up"
        state = node.client.execute_command("CLUSTER", "INFO")
        known = {primary for _, _, primary, *_ in ranges}
        return (
            in_step
            and b"cluster_state:ok" in state
            and len(known) == PRIMARIES
            and all(len(part) == 4 for part in ranges)
        )


def _ranges(reply: object) -> list[tuple[int, ...]]:
    """First, last, port of the primary, ports of replicas; of ``CLUSTER SLOTS``."""
    assert isinstance(reply, list)
    return [(first, last, *(node[1] for node in nodes)) for first, last, *nodes in reply]


class Watched:
    """A primary, its replica, and three Sentinels that watch them as ``limits``."""

    NAME = "limits"

    def __init__(self, folder: Path) -> None:
        self.password = secrets.token_urlsafe(12)
        one, two, *others = free_ports(5)
        self.data = [
            Member(folder, "one", one, _COMMON + _DATA, self.password),
            Member(folder, "two", two, f"{_COMMON}{_DATA}replicaof 127.0.0.1 {one}\n", self.password),
        ]
        settings = (
            f"{_COMMON}sentinel monitor {self.NAME} 127.0.0.1 {one} 2\n"
            f"sentinel auth-pass {self.NAME} {self.password}\n"
            f"sentinel down-after-milliseconds {self.NAME} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {self.NAME} 6000\n"
        )
        self.sentinel_password = secrets.token_urlsafe(12)
        self.sentinels = [
            Member(
                folder,
                f"sentinel{number}",
                port,
                settings + "sentinel sentinel-pass {password}\n",
                self.sentinel_password,
                "--sentinel",
            )
            for number, port in enumerate(others)
        ]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        query = f"?sentinel_password={self.sentinel_password}"
        return f"redis+sentinel://:{self.password}@{hosts}/{self.NAME}/0{query}"

    def start(self) -> None:
        for server in self.data:
            server.start()
        wait_until(lambda: all(server.answers() for server in self.data))
        wait_until(lambda: self.data[1].client.info("replication").get("master_link_status") == "up")
        for sentinel in self.sentinels:
            sentinel.start()
        wait_until(lambda: all(sentinel.answers() for sentinel in self.sentinels))
        self.settle()

    def settle(self) -> None:
        """Wait until every Sentinel knows the others, and the replica is one, in step."""
        within_s = 2 * PAUSED_S
        wait_until(lambda: all(self._informed(sentinel) for sentinel in self.sentinels), within_s=within_s)
        replica = next(server for server in self.data if server is not self.primary())
        wait_until(
            lambda: replica.client.info("replication").get("master_link_status") == "up",
            within_s=within_s,
        )

    def primary(self) -> Member:
        host_and_port = self.sentinels[0].client.execute_command(
            "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.NAME
        )
        return next(server for server in self.data if server.port == int(host_and_port[1]))

    def stop(self) -> None:
        for member in (*self.sentinels, *self.data):
            member.stop()

    def _informed(self, sentinel: Member) -> bool:
        state = sentinel.client.sentinel_master(self.NAME)
        return state["num-other-sentinels"] == 2 and state["num-slaves"] == 1 and state["flags"] == "master"
