"""Pods as sockets: heartbeats are written as bytes and answers counted, so that they use little CPU."""

import asyncio
import itertools
import random
import re
import time

import msgspec

from control_plane.processes import TOKEN

CONNECTIONS = 32
SERVERS = 2_000
#: An idle machine needs 5 s for 10,000.
JOIN_S = 45.0

#: Placeholders for a server's number and its heartbeat's, at their maximum width.
SERVER_MARK, SEQUENCE_MARK = b"pod-00000", b"1000000000000000"


def beat_template(head, path=None):
    """One heartbeat as bytes on the wire: about 1.8 KB, twelve dependencies, ten tenants."""
    from fuseboard.contract.sync import (
        LATENCY_EDGES_US,
        SYNC_PATH,
        Applied,
        BreakerView,
        Counters,
        DependencyCounters,
        StoreCounters,
        SyncRequest,
        TenantCounters,
    )

    beat = SyncRequest(
        environment="production",
        service="bench",
        server=SERVER_MARK.decode(),
        boot="boot-0001",
        sequence=int(SEQUENCE_MARK),
        agent_version="0.1.0",
        up_ms=3_600_000,
        applied=Applied(epoch=head.epoch, revision=head.revision, hash=head.hash),
        breakers=tuple(
            BreakerView(dependency=f"vendor-{n}", for_ms=90_000, window_calls=n) for n in range(4)
        ),
        counters=Counters(
            requests=int(SEQUENCE_MARK),
            store=StoreCounters(asked=10**6, latency=tuple(range(len(LATENCY_EDGES_US) + 1))),
            dependencies=tuple(
                DependencyCounters(dependency=f"vendor-{n}", ok=int(SEQUENCE_MARK), failure=n)
                for n in range(12)
            ),
            tenants=tuple(
                TenantCounters(tenant=f"tenant-{n}", allowed=int(SEQUENCE_MARK), refused=n) for n in range(10)
            ),
        ),
    )
    body = msgspec.json.encode(beat)
    lines = (
        f"POST {path or SYNC_PATH} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {TOKEN}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def parts_of(template):
    return re.split(b"(%b|%b)" % (SERVER_MARK, SEQUENCE_MARK), template)


def filled(parts, server, number):
    marks = {SERVER_MARK: b"pod-%05d" % server, SEQUENCE_MARK: b"%d" % (int(SEQUENCE_MARK) + number)}
    return b"".join([marks.get(part, part) for part in parts])


class Refused(Exception):
    """More than a few requests failed, so the measurement is not valid."""


class Closed(asyncio.Protocol):
    """One connection that sends the next request as soon as the last one is answered."""

    numbers = itertools.count()

    def __init__(self, template, ending, statuses):
        self.parts = parts_of(template)
        self.ending, self.statuses = ending, statuses
        self.answers = 0
        #: The last unexpected answer, and their number.
        self.refused, self.refusal = 0, b""
        self.running = True
        self.waiting = b""

    def connection_made(self, transport):
        self.transport = transport
        self.send()

    def send(self):
        number = next(Closed.numbers)
        self.transport.write(filled(self.parts, number % SERVERS, number))

    def data_received(self, data):
        self.waiting += data
        if self.waiting.endswith(self.ending):
            if self.waiting.startswith(self.statuses):
                self.answers += 1
            else:
                self.refused, self.refusal = self.refused + 1, self.waiting[:500]
            self.waiting = b""
            if self.running:
                self.send()


async def drive(port, template, seconds, *, ending=b"}", statuses=b"HTTP/1.1 200"):
    """Answers received in ``seconds`` over ``CONNECTIONS`` connections. Raises ``Refused``."""
    loop = asyncio.get_running_loop()
    pods = [
        (await loop.create_connection(lambda: Closed(template, ending, statuses), "127.0.0.1", port))[1]
        for _ in range(CONNECTIONS)
    ]
    await asyncio.sleep(seconds)
    for pod in pods:
        pod.running = False
    await asyncio.sleep(0.05)
    for pod in pods:
        pod.transport.close()
    answers, refused = sum(pod.answers for pod in pods), sum(pod.refused for pod in pods)
    if refused * 50 > answers:
        refusal = next(pod.refusal for pod in pods if pod.refusal)
        raise Refused(f"{refused} of {refused + answers} requests were answered {refusal!r}")
    return answers


class Paced(asyncio.Protocol):
    """One pod that sends a heartbeat every few seconds over one connection, while it is answered."""

    def __init__(self, number, parts, pace_s, took, refused):
        self.number, self.parts, self.pace_s = number, parts, pace_s
        self.took, self.refused = took, refused
        self.beats = 0
        self.waiting = b""

    def connection_made(self, transport):
        self.transport = transport
        self.loop = asyncio.get_running_loop()
        self.send()

    def send(self):
        self.beats += 1
        self.sent = time.perf_counter()
        self.transport.write(filled(self.parts, self.number, self.beats))

    def data_received(self, data):
        self.waiting += data
        if self.waiting.endswith(b"}"):
            (self.took if self.waiting.startswith(b"HTTP/1.1 200") else self.refused).append(
                time.perf_counter() - self.sent
            )
            self.waiting = b""
            self.timer = self.loop.call_later(self.pace_s * random.uniform(0.8, 1.2), self.send)

    def connection_lost(self, error):
        self.refused.append(0.0)


async def fleet(port, template, *, pods, pace_s, seconds, measured):
    """Seconds that each heartbeat of a whole fleet took, how many were refused or cut off, and the number
    of pods.

    ``measured`` is called when all are connected, and again at the end. If that takes longer than
    ``JOIN_S``, the pods connected by then are the fleet.
    """
    loop, parts = asyncio.get_running_loop(), parts_of(template)
    took, refused, made = [], [], []
    begun = loop.time()
    for number in range(pods):
        if loop.time() - begun > JOIN_S:
            break
        protocol = Paced(number, parts, pace_s, took, refused)
        await loop.create_connection(lambda p=protocol: p, "127.0.0.1", port)
        made.append(protocol)
        if number % 20 == 0:
            await asyncio.sleep(pace_s * 20 / pods)
    await asyncio.sleep(pace_s)
    took.clear()
    measured()
    await asyncio.sleep(seconds)
    measured()
    found = list(took), list(refused), len(made)
    for protocol in made:
        protocol.transport.abort()
    return found
