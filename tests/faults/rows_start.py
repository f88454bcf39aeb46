"""What a pod starts from when nothing answers, and what it does when its disk is not writable."""

import time
from collections.abc import Callable

import msgspec

from tests.faults.ends import Pod
from tests.faults.field import Broken, Field
from tests.faults.matrix import row
from tests.faults.seen import WORK
from tests.faults.world import quota

#: Ready within this time with everything down, as measured in the pod.
READY_S = 2.0
#: Pods that start at once.
_TOGETHER = 2
FILE = "production@faults.config"


def _flipped(good: bytes) -> bytes:
    middle = len(good) // 2
    return good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :]


#: State of the file on disk -> the source of the configuration.
DISKS: dict[str, tuple[Callable[[bytes], bytes] | None, str]] = {
    "good": (lambda good: good, "disk"),
    "missing": (None, "built_in"),
    "truncated": (lambda good: good[: len(good) // 2], "built_in"),
    "bit-flipped": (_flipped, "built_in"),
    "of-another-format": (
        lambda good: good.replace(b"fuseboard-config-1", b"fuseboard-config-0"),
        "built_in",
    ),
    "empty": (lambda good: b"", "built_in"),
}


def kept_by(field: Field) -> bytes:
    """Where the first pod keeps its configuration."""
    return (field.folder / "state" / "pod-1" / FILE).read_bytes()


def _alone(field: Field, name: str, **more: str) -> Pod:
    """A pod that cannot connect to anything."""
    nowhere = {"FUSEBOARD_REDIS_URL": "redis://127.0.0.1:9/0", "FUSEBOARD_URL": "http://127.0.0.1:9"}
    return field.another_pod(name, environment=nowhere | more, wait=False)


@row("27", "last-good-on-disk")
def last_good(field: Field) -> str:
    """Everything is down and a pod starts; a damaged copy is not used at all."""
    good = kept_by(field)
    found = []
    for name, (change, _) in DISKS.items():
        state = field.folder / "state" / name
        state.mkdir(parents=True, exist_ok=True)
        if change is not None:
            (state / FILE).write_bytes(change(good))
    starting: list[Pod] = []
    for position, (name, (_, expected)) in enumerate(DISKS.items()):
        if not position % _TOGETHER:
            starting = [_alone(field, other) for other in list(DISKS)[position : position + _TOGETHER]]
        pod = starting[position % _TOGETHER]
        ready_s, state_of = pod.ready_s, pod.state()
        answer = pod.ask("t:acme")
        pod.stop()
        if state_of["source"] != expected or not answer["allowed"]:
            raise Broken(f"{name}: decides by {state_of['source']}, expected {expected}; {answer}")
        if ready_s > READY_S:
            raise Broken(f"{name}: ready after {ready_s:.2f} s, at most {READY_S:g}")
        found.append(f"{name} -> {expected} {ready_s:.2f} s")
    return ", ".join(found)


@row("31", "everything-down")
def everything_down(field: Field) -> str:
    """An empty disk, and nothing answers: ready in two seconds, with the bootstrap file if there is one."""
    good = kept_by(field).partition(b"\n")[2]
    policy = msgspec.json.decode(good)["policy"]
    bootstrap = field.folder / "bootstrap.json"
    bootstrap.write_bytes(msgspec.json.encode({"policy": policy, "tenants": {}}))
    found = []
    cases = (
        ("no-bootstrap", {}, "built_in"),
        ("bootstrap", {"FUSEBOARD_BOOTSTRAP_FILE": str(bootstrap)}, "bootstrap"),
        ("wrong-bootstrap", {"FUSEBOARD_BOOTSTRAP_FILE": str(field.folder / "nowhere")}, "built_in"),
    )
    pods = [_alone(field, name, **more) for name, more, _ in cases]
    for pod in pods:
        pod.load(WORK, 60)
    time.sleep(1)
    for pod, (name, _, expected) in zip(pods, cases, strict=True):
        figures, state = pod.figures(), pod.state()
        ready_s = pod.ready_s
        pod.stop()
        if state["source"] != expected or ready_s > READY_S or figures["errors"]:
            raise Broken(f"{name}: {state['source']} after {ready_s:.2f} s, errors {figures['errors']}")
        found.append(f"{name} -> {expected} {ready_s:.2f} s, {figures['calls']} calls")
    return "; ".join(found)


@row("27b", "disk-full")
def disk_full(field: Field) -> str:
    """The disk is not writable: counted and logged once; decisions and edits go on; the old copy stays
    whole.
    """
    pod = field.pods[0]
    copy = field.folder / "state" / pod.name / FILE
    before = copy.read_bytes()
    pod.load(WORK, 60)
    pod.figures(begin_anew=True)
    for what in ("disk-full", "disk-read-only"):
        pod.do("inject", fault=what)
        _edit_applied(field, pod, 9)
        time.sleep(1)
        pod.do("inject", fault=what, on=False)
        if copy.read_bytes() != before:
            raise Broken(f"{what}: the copy on disk was touched")
    leftover = [path.name for path in copy.parent.glob(f".{FILE}.*")]
    figures = pod.figures()
    _edit_applied(field, pod, 8)
    kept_s = field.until("the copy is written again", lambda: copy.read_bytes() != before, 10)
    if figures["errors"] or figures["over_50_ms"] or leftover:
        raise Broken(f"errors {figures['errors']}, {figures['over_50_ms']} over 50 ms, left over {leftover}")
    return (
        f"{figures['calls']} calls, 2 edits applied, nothing half written; "
        f"kept again {kept_s:.1f} s after there was room"
    )


def _edit_applied(field: Field, pod: Pod, limit: int) -> None:
    revision = field.edit("set_tenant_quota", **quota(limit))
    field.until("the edit is applied", lambda: pod.state()["head"][1] >= revision, 10)
