"""Two faults at once, or one in the middle of another."""

import time

import redis as client

from tests.faults.field import Broken, Field
from tests.faults.matrix import row
from tests.faults.rows_network import bounded
from tests.faults.seen import WORK, Callers


@row("25b", "hog-while-frozen")
def hog_while_frozen(field: Field) -> str:
    """A pod whose loop is always late, and a Redis that is frozen: neither hides the other."""
    pod = field.pods[0]
    pod.load(WORK, 100)
    pod.figures(begin_anew=True)
    number = pod.send_command({"do": "hog", "for_s": 5.0, "chunk_s": 0.02})
    time.sleep(1)
    field.freeze()
    pod.talker.answer(number)
    figures = pod.figures()
    local = [mode for _, mode in figures["modes"]]
    field.thaw()
    field.all_in("shared")
    if figures["errors"] or "local" not in local:
        raise Broken(f"errors {figures['errors']}; modes while Redis was frozen for 4 s: {local}")
    if figures["over_50_ms"]:
        raise Broken(f"{figures['over_50_ms']} of {figures['calls']} calls delayed over 50 ms net")
    return f"{figures['calls']} calls, {figures['waited']} waited; it decided alone before its loop was well"


@row("11d", "flushall-in-a-ramp")
def flushall_in_a_ramp(field: Field) -> str:
    """Down, back, and emptied while pods ramp: still never more than the limit in any window."""
    field.load(["d:strict", "d:reserved", "t:acme"], 90)
    since = field.begin_anew()
    time.sleep(2.5)
    field.kill()
    field.all_in("local", within_s=5)
    time.sleep(1)
    field.valkey.start()
    field.until("every pod ramps or has", lambda: not {"local"} & set(field.modes()), within_s=20)
    with client.Redis.from_url(field.valkey.url) as limits:
        for _ in range(3):
            limits.flushall()
            time.sleep(0.7)
    field.all_in("shared")
    time.sleep(3)
    seen = Callers(field)
    seen.none_over_50_ms()
    return f"emptied 3 times: {seen}; {bounded(field, since)}"


@row("51", "drill-and-restart")
def drill_and_restart(field: Field) -> str:
    """A pod that restarts during a drill continues it, the others share; it ends for all at once."""
    pod, *others = field.pods
    field.load(WORK, 60)
    drill = field.director.ask({"do": "drill", "servers": [pod.name], "minutes": 5})
    field.until("it pretends", lambda: pod.state()["mode"] == "drill", 10)
    if set(field.modes(*others)) != {"shared"}:
        raise Broken(f"pods that nobody chose are {field.modes(*others)}")
    pod.restart()
    pod.load(WORK, 60)
    again_s = field.until("it pretends again", lambda: pod.state()["mode"] == "drill", 10)
    pod.figures(begin_anew=True)
    time.sleep(1)
    alone = pod.state()["local"]
    figures = pod.figures()
    field.director.ask({"do": "end-drill", "drill": drill})
    ended_s = field.all_in("shared", pod)
    if figures["errors"] or not alone:
        raise Broken(f"errors {figures['errors']}; {alone} decisions without Redis in the drill")
    return (
        f"again in the drill {again_s:.1f} s after its restart, {alone} decided alone; over {ended_s:.1f} s"
    )
