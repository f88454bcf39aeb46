"""What people can do to breakers and quotas while stores are down: the table of ``docs/guarantees.md``."""

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

from tests.faults.field import Broken, Field
from tests.faults.matrix import row
from tests.faults.seen import Callers
from tests.faults.world import EVERYTHING, quota
from tools.demo.browser import Browser, text_of

PAGE = "/breakers/held"
EDITOR = "/edit/tenant?key=penny"
LIMIT, BURST = "limit.requests.limit", "limit.requests.burst"
REFUSES = {"forced_open", "breaker_open"}
REASON = "Part of a fault test, by hand"


@contextmanager
def desk(field: Field) -> Iterator[Browser]:
    """An admin who is logged in and has just opened the dashboard."""
    web = field.processes.by_name["web"]
    # Once started it stays: rows before and after this one do not use it.
    if web.popen is None or web.popen.poll() is not None:
        field.processes.begin("web")
        field.processes.wait_until_ready(["web"])
    browser = Browser(web.url)
    try:
        page = browser.log_in("admin", field.password)
        if page.status_code != 200 or "/login" in str(page.url):
            raise Broken(f"the admin cannot log in: {page.status_code} at {page.url.path}")
        browser.read("/breakers")
        yield browser
    finally:
        browser.close()
        field.postgres_up()


def _act(browser: Browser, act: str, *, page: str = PAGE, **more: str) -> str:
    """Send the form of the breaker; return the page after it. Raises ``Broken``."""
    for _ in range(5):
        form = browser.form(page, "act", "reason", "lasts")
        answer = browser.send(form, act=act, reason=REASON, lasts="15", **more)
        # What was done without Postgres is being stored: read the page again, and confirm.
        if answer.status_code != 409:
            break
    if answer.status_code != 200:
        raise Broken(f"{act} was answered by {answer.status_code}: {answer.text[:200]}")
    return answer.text


def _refuse(field: Field, dependency: str = "held") -> bool:
    return all(pod.ask(f"d:{dependency}")["reason"] in REFUSES for pod in field.pods)


def _refuse_any(field: Field, dependency: str) -> bool:
    return any(pod.ask(f"d:{dependency}")["reason"] in REFUSES for pod in field.pods)


def _all_counted(browser: Browser) -> bool:
    """Whether the page counts as many servers as there are."""
    found = re.search(r"(?:Confirmed|Seen) by (\d+) of (\d+)", text_of(browser.client.get(PAGE).text))
    return found is not None and found[1] == found[2] != "0"


def _admit(field: Field) -> bool:
    return all(pod.ask("d:held")["allowed"] for pod in field.pods)


@row("38", "postgres-stopped")
def postgres_stopped(field: Field) -> str:
    """Killed: trip and reset go through Redis, a quota edit waits, pods notice nothing, nothing is lost."""
    field.load(EVERYTHING, 40)
    with desk(field) as browser:
        edit = browser.form(EDITOR, LIMIT, BURST, "reason")
        field.edit("override_breaker", dependency="shares", mode="forced_open", lasts_s=600)
        field.until("every pod refuses what is held", lambda: _refuse(field, "shares"), 10)
        field.begin_anew()
        field.postgres_kill()
        label_s = field.until(
            "the board says so", lambda: "Postgres is unavailable" in browser.client.get("/breakers").text, 20
        )
        said = _act(browser, "forced_open")
        trip_s = field.until("every pod refuses", lambda: _refuse(field), 10)
        counted_s = field.until("the page counts them all", lambda: _all_counted(browser), 10)
        _act(browser, "reset", confirm="held")
        reset_s = _seconds_until_admitted(field)
        # And an earlier override, from a document that cannot change now.
        _act(browser, "reset", page="/breakers/shares", confirm="shares")
        old_s = field.until("every pod calls what was held", lambda: not _refuse_any(field, "shares"), 10)
        tried = {LIMIT: "77", BURST: "77", "reason": REASON}
        refused = browser.send(edit, **tried).status_code
        seen = Callers(field)
        field.postgres_up()
        adopted_s = field.until("both are in the audit", lambda: _audited(browser) >= 2, 30)
        field.until("the other one, too", lambda: _audited(browser, "shares") >= 1, 30)
        again = browser.send(edit, **tried).status_code
        field.edit("set_tenant_quota", **quota(8))
    seen.none_over_50_ms()
    if "pods have confirmed it" not in said:
        raise Broken("the page does not say how many servers have confirmed the trip")
    if reset_s > 10:
        raise Broken("a reset without Postgres did not reach the pods within 10 s")
    if (refused, again) != (503, 200) or any(seen.changes):
        raise Broken(f"quota edit: {refused}, then {again}; changes of mode {seen.changes}")
    return (
        f"{seen}; labelled {label_s:.1f} s, trip everywhere {trip_s:.1f} s, counted {counted_s:.1f} s, "
        f"reset {reset_s:.1f} s, of an older hold {old_s:.1f} s, "
        f"quota edit 503 then 200, both in the audit {adopted_s:.1f} s after it was back"
    )


def _seconds_until_admitted(field: Field) -> float:
    """More than 10 if they do not: checked after everything else of the row."""
    try:
        return field.until("every pod calls again", lambda: _admit(field), 10)
    except Broken:
        return inf


def _audited(browser: Browser, dependency: str = "held") -> int:
    answer = browser.client.get("/audit", params={"q": dependency})
    return answer.text.count(REASON) if answer.status_code == 200 else 0


@row("38b", "desk-without-redis")
def desk_without_redis(field: Field) -> str:
    """Redis is down: a trip is committed and reaches pods over HTTP; so do its end and a quota."""
    field.load(EVERYTHING, 40)
    with desk(field) as browser:
        field.kill()
        field.all_in("local", within_s=5)
        _act(browser, "forced_open")
        trip_s = field.until("every pod refuses", lambda: _refuse(field), 10)
        _act(browser, "reset")
        reset_s = field.until("every pod calls again", lambda: _admit(field), 10)
        form = browser.form(EDITOR, LIMIT, BURST, "reason")
        saved = browser.send(form, **{LIMIT: "9", BURST: "9"}, reason=REASON).status_code
        quota_s = field.until("every pod has the quota", lambda: _quota(field, 9), 10)
        listed = browser.read("/servers").count('data-kind="local"')
        form = browser.form(EDITOR, LIMIT, BURST, "reason")
        browser.send(form, **{LIMIT: "8", BURST: "8"}, reason=REASON)
    if saved != 200 or listed < len(field.pods):
        raise Broken(f"quota edit answered {saved}; {listed} servers listed on local fallback")
    return (
        f"trip everywhere {trip_s:.1f} s, reset {reset_s:.1f} s, quota {quota_s:.1f} s; "
        f"the board lists {listed} servers on local fallback"
    )


def _quota(field: Field, limit: int) -> bool:
    return all(pod.ask("t:penny")["limit"] in (limit, None) for pod in field.pods)


@row("38c", "both-stopped")
def both_stopped(field: Field) -> str:
    """Both stores down: gateways hold a trip in memory, a reset waits; the trip is in the audit
    afterwards.
    """
    field.load(EVERYTHING, 40)
    with desk(field) as browser:
        _act(browser, "forced_open")
        field.until("every pod refuses", lambda: _refuse(field), 10)
        other = browser.form("/breakers/open-road", "act", "reason", "lasts")
        field.begin_anew()
        field.postgres_kill()
        field.kill()
        field.all_in("local", within_s=5)
        field.until(
            "the board says so", lambda: "Postgres is unavailable" in browser.client.get("/breakers").text, 20
        )
        answers = []

        def taken() -> bool:
            answers.append(browser.send(other, act="forced_open", reason=REASON, lasts="15"))
            return answers[-1].status_code == 200

        # A gateway that has not noticed yet refuses with a message: the operator tries again.
        field.until("the trip is taken", taken, 10)
        answer = answers[-1]
        trip_s = field.until("every pod refuses it", lambda: _refuse(field, "open-road"), 10)
        reset = browser.send(other, act="reset", reason=REASON, confirm="open-road").status_code
        time.sleep(2)
        held, seen = _refuse(field) and _refuse(field, "open-road"), Callers(field)
        field.postgres_up()
        adopted_s = field.until("it is in the audit", lambda: _audited(browser, "open-road") >= 1, 30)
        if not _refuse(field, "open-road"):
            raise Broken("a hold ended because Postgres took it over")
        field.valkey.start()
        field.until("the board is well", lambda: browser.client.get("/breakers").status_code == 200, 20)
        _act(browser, "reset")
        _act(browser, "reset", page="/breakers/open-road")
        field.until("every pod calls it again", lambda: not _refuse(field, "open-road"), 20)
    seen.none_over_50_ms()
    if not held:
        raise Broken("a hold ended because both stores were gone")
    if answer.status_code != 200 or "in memory only" not in answer.text or reset != 422:
        raise Broken(
            f"the trips were answered by {[one.status_code for one in answers]}, the reset by {reset}"
        )
    return (
        f"{seen}; what was held stays held; another trip, taken at attempt {len(answers)}, "
        f"everywhere {trip_s:.1f} s, from memory, "
        f"in the audit {adopted_s:.1f} s after Postgres was back; a reset is refused"
    )


@row("38d", "trip-unread")
def trip_unread(field: Field) -> str:
    """No gateway has read the last trip when both stores fail: pods keep it, and learn the next one, too."""
    field.load(EVERYTHING, 40)
    gateway = field.processes.by_name["gateway"].popen
    assert gateway is not None
    with desk(field) as browser:
        other = browser.form("/breakers/open-road", "act", "reason", "lasts")
        gateway.send_signal(signal.SIGSTOP)
        try:
            _act(browser, "forced_open")
            field.until("every pod refuses, as Redis says", lambda: _refuse(field), 10)
            field.postgres_kill()
            field.kill()
        finally:
            gateway.send_signal(signal.SIGCONT)
        field.all_in("local", within_s=5)

        def taken() -> bool:
            answer = browser.send(other, act="forced_open", reason=REASON, lasts="15")
            return answer.status_code == 200 and "in memory only" in answer.text

        taken_s = field.until("the next trip is taken", taken, 20)
        trip_s = field.until("every pod refuses it", lambda: _refuse(field, "open-road"), 10)
        if not _refuse(field):
            raise Broken("what pods had heard of from Redis alone was forgotten")
        field.postgres_up()
        field.until("it is in the audit", lambda: _audited(browser, "open-road") >= 1, 30)
        field.valkey.start()
        field.until("the board is well", lambda: browser.client.get("/breakers").status_code == 200, 20)
        if not (_refuse(field) and _refuse(field, "open-road")):
            raise Broken("a hold ended because the stores came back")
        _act(browser, "reset")
        _act(browser, "reset", page="/breakers/open-road")
        field.until(
            "every pod calls both again", lambda: _admit(field) and not _refuse_any(field, "open-road"), 20
        )
    return (
        f"taken after {taken_s:.1f} s, everywhere {trip_s:.1f} s later, beside one that no gateway had read"
    )
