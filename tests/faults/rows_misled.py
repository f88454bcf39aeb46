"""A pod with a wrong configuration, and with a gateway that is not one."""

import time
from typing import Any

import msgspec

from fuseboard.contract.policy import ConfigHead, hash_of
from fuseboard.contract.sync import SyncRequest, encode
from tests.agents.gateways import FakeGateway, Reply, gateway_running
from tests.faults.field import Broken, Field
from tests.faults.matrix import row
from tests.faults.rows_start import kept_by
from tests.faults.seen import WORK


def _poisoned(policy: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Documents that are valid JSON, but must be refused."""
    tuning = policy["tuning"]
    return {
        "a default tier that is not there": {**policy, "default_tier": "nowhere"},
        "a negative deadline": {**policy, "tuning": {**tuning, "store_deadline_us": -5}},
        "a deadline of an hour": {**policy, "tuning": {**tuning, "store_deadline_us": 3_600_000_000}},
        "an unknown failure policy": {**policy, "tiers": [{"name": "pro", "quotas": [_WEIRD]}]},
        "tiers that are text": {**policy, "tiers": "all of them"},
    }


_WEIRD = {"name": "requests", "limit": 1, "window_ms": 1000, "failure_policy": "shrug"}


class _Fake:
    """A gateway that sends any document, with a correct or a wrong hash."""

    def __init__(self, gateway: FakeGateway, revision: int) -> None:
        self._gateway = gateway
        self.revision = revision

    def say(self, document: bytes, *, digest: str = "") -> None:
        self.revision += 1
        head = ConfigHead(epoch=1, revision=self.revision, hash=digest or hash_of(document))

        def response(beat: SyncRequest) -> object:
            answer = FakeGateway.response(self._gateway, beat)
            return msgspec.structs.replace(answer, head=head, policy=msgspec.Raw(document), next_ms=100)

        self._gateway.answer = lambda beat: Reply(body=encode(response(beat)))  # type: ignore[method-assign, arg-type]


@row("28", "poisoned")
def poisoned(field: Field) -> str:
    """Absurd values, or a wrong hash: refused whole and reported, and the last good configuration stays."""
    good = kept_by(field).partition(b"\n")[2]
    document = bytes(msgspec.json.decode(good, type=dict[str, msgspec.Raw])["policy"])
    with gateway_running() as gateway:
        gateway.next_ms = 100
        pod = field.another_pod("poisoned", environment={"FUSEBOARD_URL": gateway.url})
        pod.load(WORK, 40)
        pod.figures(begin_anew=True)
        before = pod.state()["head"]
        fake = _Fake(gateway, before[1] + 1000)
        cases = {
            name: (msgspec.json.encode(one), "")
            for name, one in _poisoned(msgspec.json.decode(document)).items()
        }
        cases |= {
            "half a document": (document[: len(document) // 2] + b'"', ""),
            "another hash": (document, "0" * 16),
        }
        for name, (bad, digest) in cases.items():
            gateway.beats.clear()
            fake.say(bad, digest=digest)
            field.until(f"{name} is refused", lambda: pod.state()["status"] == "rejected", 10)
            field.until("it says so", lambda: any(beat.applied.error for beat in gateway.beats), 10)
            if pod.state()["head"] != before:
                raise Broken(f"{name} was believed: {pod.state()['head']}")
        figures = pod.figures()
        pod.stop()
    if figures["errors"]:
        raise Broken(f"errors {figures['errors']}")
    return f"{len(cases)} poisoned documents refused whole and reported, {figures['calls']} calls meanwhile"


@row("48", "mixed-versions")
def mixed_versions(field: Field) -> str:
    """A newer control plane sends more than a pod understands: unknown fields pass, unknown words do not."""
    good = kept_by(field).partition(b"\n")[2]
    document = msgspec.json.decode(good)["policy"]
    with gateway_running() as gateway:
        gateway.next_ms = 100
        pod = field.another_pod("older", environment={"FUSEBOARD_URL": gateway.url})
        fake = _Fake(gateway, pod.state()["head"][1] + 1000)
        fake.say(msgspec.json.encode(document | {"of_tomorrow": {"deep": [1]}}))
        field.until("a document of tomorrow is taken", lambda: pod.state()["head"][1] == fake.revision, 10)
        taken = fake.revision
        fake.say(msgspec.json.encode(document | {"tiers": [{"name": "pro", "quotas": [_WEIRD]}]}))
        field.until("an unknown word is refused", lambda: pod.state()["status"] == "rejected", 10)
        state = pod.state()
        pod.stop()
    if state["head"][1] != taken or "shrug" not in state["error"]:
        raise Broken(f"revision {state['head'][1]}, expected {taken}; it says {state['error']!r}")
    return f"an unknown field was ignored, an unknown word refused whole: {state['error'][:70]!r}"


@row("29", "gateway-nonsense")
def gateway_nonsense(field: Field) -> str:
    """A gateway that fails, hangs, redirects or is another service: the pod continues with what it has."""
    with gateway_running() as gateway, gateway_running() as elsewhere:
        gateway.next_ms = 100
        gateway.policy = None
        pod = field.another_pod("misled", environment={"FUSEBOARD_URL": gateway.url})
        pod.load(WORK, 60)
        before = pod.state()["head"]
        pod.figures(begin_anew=True)
        wrong = {
            "500": Reply(status=500, body=b"{}"),
            "html": Reply(body=b"<html>Welcome</html>", headers=(("Content-Type", "text/html"),)),
            "redirect": Reply(status=302, headers=(("Location", elsewhere.url),)),
            "endless numbers": Reply(body=b'{"server_time_us": ' + b"9" * 5000 + b"}"),
            "nothing": Reply(raw=lambda connection: None),
            "drip": Reply(raw=_drip),
            "401": Reply(status=401, body=b"{}"),
        }
        for name, reply in wrong.items():
            # A good answer between: a gateway that always fails is asked less and less often.
            for answer, what in ((None, "is well again"), (reply, f"says {name}")):
                gateway.always = answer
                gateway.beats.clear()
                field.until(f"it asked a gateway that {what}", lambda: gateway.beats, 15)
            if pod.state()["head"] != before:
                raise Broken(f"{name} changed the configuration")
        gateway.delay_s = 2.0
        time.sleep(1)
        figures, state = pod.figures(), pod.state()
        gateway.delay_s = 0.0
        pod.stop(grace_s=10)
        tls = field.another_pod("tls", environment={"FUSEBOARD_URL": gateway.url.replace("http:", "https:")})
        tls.load(WORK, 60)
        time.sleep(0.5)
        ready_s, errors = tls.ready_s, tls.figures()["errors"] | figures["errors"]
    if errors or figures["over_50_ms"] or state["defects"]:
        raise Broken(f"errors {errors}, {figures['over_50_ms']} calls over 50 ms, {state['defects']} defects")
    if elsewhere.beats:
        raise Broken("a redirect was followed, with the token")
    return (
        f"{len(wrong) + 2} kinds of wrong: {figures['calls']} calls, none delayed; no redirect followed; "
        f"not TLS: started in {ready_s:.2f} s"
    )


def _drip(connection: object) -> None:
    for byte in b"HTTP/1.1 200 OK\r\nContent-Le":
        connection.sendall(bytes([byte]))  # type: ignore[attr-defined]
        time.sleep(0.03)
