"""Import 100,000 tenants from a file in the admin's browser, and roll the import back."""

import re
import time

import httpx

from tools.demo.browser import Browser, text_of
from tools.demo.scenario import PODS, QUOTA
from tools.demo.story.chapter import Chapter, CheckFailed

TENANTS = 100_000
#: In the middle of the file; its quota is unique.
PROBE, PROBE_LIMIT = "customer-50000", 777
PATIENCE_S = 240.0
_REVISION = re.compile(r'href="/revisions/(\d+)">revision')
PROGRESS = re.compile(r'<h2 id="h-j">([^<]+)</h2>\s*<span class="meta">\s*([^<]*[^<\s])\s*</span>')


def import_100k(chapter: Chapter) -> str:
    """Upload, compare, review and apply as one revision that every pod enforces; importing again changes
    nothing.
    """
    admin = chapter.browser("admin")
    admin.client.timeout = httpx.Timeout(120.0)
    file = _file()
    began = time.monotonic()
    page, where, steps = _compared(admin, file)
    compared_s = time.monotonic() - began
    if f"{TENANTS:,} to create" not in page:
        raise CheckFailed(f"the difference does not say {TENANTS:,} to create: {text_of(page)[:400]}")
    began = time.monotonic()
    answer = admin.send(admin.form(where, "reason"), reason="Customers of the old system")
    page, _, more = _finished(admin, answer)
    applied_s = time.monotonic() - began
    found = _REVISION.search(page)
    if found is None or "Applied." not in page:
        raise CheckFailed(f"it was not applied: {text_of(page)[:400]}")
    enforced_s = _enforced(chapter, f";q={PROBE_LIMIT};")
    again, _, _ = _compared(admin, file)
    if "the configuration already matches the file." not in again:
        raise CheckFailed(f"importing again would change something: {text_of(again)[:400]}")
    shown = list(dict.fromkeys([*steps, *more]))
    writing = [step for step in shown if step.startswith("Writing")]
    return (
        f"{TENANTS:,} tenants compared in {compared_s:.1f} s, applied as revision {found[1]} in"
        f" {applied_s:.1f} s,"
        f" decided by on all pods {enforced_s * 1000:.0f} ms later; a second time changes nothing"
        f" ({len(shown)} steps of progress seen, such as {(writing or shown)[len(writing) // 2]!r})"
    )


def rollback(chapter: Chapter) -> str:
    """Roll back to the revision before the import: every created tenant is removed, everywhere."""
    admin = chapter.browser("admin")
    admin.client.timeout = httpx.Timeout(120.0)
    page = admin.read("/revisions?only=changes")
    numbers = [int(number) for number in re.findall(r'href="/revisions/(\d+)">\d+<', page)]
    imported = next((number for number in numbers if "File applied" in _row(page, number)), None)
    if imported is None:
        raise CheckFailed(f"no revision of the import among {numbers}")
    before = imported - 1
    form = admin.form(f"/revisions/{before}?back", "seen", "reason", action=f"/revisions/{before}")
    began = time.monotonic()
    answer = admin.send(form, reason="The file was the wrong one")
    took_s = time.monotonic() - began
    if "Saved as revision" not in text_of(answer.text):
        raise CheckFailed(f"the form answered {answer.status_code}: {text_of(answer.text)[:400]}")
    gone_s = _enforced(chapter, f";q={PROBE_LIMIT};", absent=True)
    if f"{PROBE} was removed" not in text_of(admin.client.get(f"/tenant?key={PROBE}").text):
        raise CheckFailed(f"{PROBE} is still there")
    # A rollback that was prepared on an older state is refused.
    stale = admin.send(form, reason="The file was the wrong one")
    if stale.status_code != 409:
        raise CheckFailed(f"a second rollback from the old page answered {stale.status_code}, not 409")
    return (
        f"revision {before} came back as {answer.url.path.rpartition('/')[2]} in {took_s:.1f} s,"
        f" {TENANTS:,} tenants are gone, on all pods {gone_s * 1000:.0f} ms later; from a page that is"
        " too old: 409"
    )


def _file() -> bytes:
    lines = ["tenants:\n"]
    for number in range(TENANTS):
        key, limit = f"customer-{number}", 100 + number % 7
        limit = PROBE_LIMIT if key == PROBE else limit
        lines.append(f"  {key}:\n    tier: free\n")
        # One in ten has its own quota; the others use their tier's.
        if number % 10 == 0:
            lines.append(f"    quotas:\n      {QUOTA}: {{limit: {limit}, window_s: 60, burst: {limit}}}\n")
    return "".join(lines).encode()


def _compared(admin: Browser, file: bytes) -> tuple[str, str, list[str]]:
    form = admin.form("/import", "file")
    answer = admin.client.post(
        "/import",
        data={"csrfmiddlewaretoken": form.fields["csrfmiddlewaretoken"]},
        files={"file": ("customers.yaml", file, "application/yaml")},
        headers={"Referer": form.page, "Origin": str(admin.client.base_url).rstrip("/")},
    )
    return _finished(admin, answer)


def _finished(admin: Browser, answer: httpx.Response) -> tuple[str, str, list[str]]:
    """The page of the draft once it is done, its address, and the steps it displayed."""
    deadline = time.monotonic() + PATIENCE_S
    steps: list[str] = []
    page, where = answer.raise_for_status().text, str(answer.url)
    while (found := PROGRESS.search(page)) is not None:
        steps.append(found[2].replace("&hellip;", ""))
        if time.monotonic() > deadline:
            raise CheckFailed(f"still {found[1]} ({found[2]}) after {PATIENCE_S:.0f} s")
        time.sleep(0.2)
        page = admin.client.get(where).raise_for_status().text
    return page, where, steps


def _enforced(chapter: Chapter, policy: str, *, absent: bool = False) -> float:
    """Seconds until the responses of every pod carry that policy, or no longer carry it."""
    began = time.monotonic()
    while time.monotonic() - began < 60:
        answers = [chapter.ask(pod, "search", PROBE).headers.get("RateLimit-Policy", "") for pod in PODS]
        if all((policy in answer) != absent for answer in answers):
            return time.monotonic() - began
        time.sleep(0.02)
    raise CheckFailed(f"pods answer {PROBE} with {answers}")


def _row(page: str, number: int) -> str:
    start, _, rest = page.partition(f'href="/revisions/{number}">{number}<')
    return start.rpartition("<tr")[2] + rest.partition("</tr>")[0]
