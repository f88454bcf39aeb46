"""What people on call do with the alerts of the story: the runbook of a message, and the report."""

import re
from html import unescape
from typing import Any

import httpx

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert
from tools.demo.browser import Browser, Form, text_of
from tools.demo.scenario import FLAKY
from tools.demo.seed import ENVIRONMENT
from tools.demo.story.chapter import Chapter, CheckFailed

_OPEN = f"open:{FLAKY}"
_REDIS = "redis-down"
#: The worker copies what pods allowed every 30 s while pods change their modes.
_COPIED_S = 75
_USAGE = re.compile(r"Limits counted [^.;]+ without Redis; [^.]+")
_BOUND = re.compile(r"Pods decided [\d,]+ calls locally, up to \d+ pods at once")


def runbook_linked(chapter: Chapter) -> str:
    """The message names a runbook: an operator opens it from the alert, acknowledges, and ticks a step."""
    row = Alert.objects.exclude(state=AlertState.RESOLVED).get(environment=ENVIRONMENT, key=_OPEN)
    named = {one["data"]["runbook"] for one in chapter.sink.messages.values() if one["data"]["key"] == _OPEN}
    if named != {row.runbook}:
        raise CheckFailed(f"messages name the runbooks {named}, and the alert {row.runbook!r}")
    operator = chapter.browser("operator")
    operator.send(operator.form("/", "from", action="/alerts"), acknowledge=f"{row.pk} {row.severity}")
    link = re.search(rf'href="(/runbooks/{re.escape(row.runbook)}\?[^"]+)"', operator.read("/alerts"))
    if link is None:
        raise CheckFailed(f"no alert links to the runbook {row.runbook}")
    address = unescape(link[1])
    page = operator.read(address)
    steps = re.findall(r'name="tick" value="([^"]+)"', page)
    buttons = re.findall(r'data-action="([^"]+)"', page)
    state = re.search(r'data-value="breaker_state">([^<]+)<', page)
    if not steps or "force-open" not in buttons or state is None:
        raise CheckFailed(f"{address} has {len(steps)} steps, the buttons {buttons}, and the state {state}")
    # The first is a question, which counts apart.
    answer = _tick(operator, address, page, steps[1])
    if re.search(r"\b1 of \d+ steps done", text_of(answer)) is None:
        raise CheckFailed(f"the step is not ticked: {text_of(answer)[:300]}")
    if "Step 2 done" not in text_of(operator.read(f"/incidents/{row.incident_id}")):
        raise CheckFailed("the timeline of the incident has no step")
    return (
        f"the message names {row.runbook}; it opens from the alert with {len(steps)} steps, {len(buttons)}"
        f" buttons, and {FLAKY} {state[1]}; a ticked step is in incident {row.incident_id}"
    )


def incident_report(chapter: Chapter) -> str:
    """Two incidents of this run are over: what their reports say, and a link without a login."""
    operator = chapter.browser("operator")
    vendor, redis = (_incident(key) for key in (_OPEN, _REDIS))
    report = operator.read(f"/incidents/{vendor}/report.md")
    _contains(report, "Acknowledged | 20", "by operator", "Step 2 done", "Notified | 20", "Recovered | 20")
    waited_ms = chapter.until(
        "the report to have the usage without Redis",
        lambda: _USAGE.search(operator.read(f"/incidents/{redis}/report.md")) is not None,
        within_s=_COPIED_S,
    )
    report = operator.read(f"/incidents/{redis}/report.md")
    _contains(report, "Notified | 20", "Recovered | 20", "## Affected tenants", "sent to demo-sink")
    usage, bound = _USAGE.search(report), _BOUND.search(report)
    if usage is None or bound is None:
        raise CheckFailed(f"the report has no bound: {report[:1500]}")
    _share(chapter, operator, redis)
    return (
        f"incident {vendor} names who acknowledged and the step; incident {redis}: {bound[0]};"
        f" {usage[0][0].lower()}{usage[0][1:]} ({waited_ms / 1000:.0f} s after its end); its link opens"
        " without a login until it is ended"
    )


def _share(chapter: Chapter, operator: Browser, number: int) -> None:
    path = f"/incidents/{number}/report"
    shared = operator.send(operator.form(path, "days"), act="share").text
    link = re.search(r'<code class="secret">([^<]+)</code>', shared)
    if link is None:
        raise CheckFailed(f"no link was made: {text_of(shared)[:300]}")
    address = unescape(link[1])
    with httpx.Client(trust_env=False, timeout=10.0) as stranger:
        opened = stranger.get(address)
        operator.send(operator.form(path, "days"), act="unshare")
        ended = stranger.get(address)
    if (opened.status_code, ended.status_code) != (200, 404) or not _BOUND.search(text_of(opened.text)):
        raise CheckFailed(f"the link answered {opened.status_code}, and {ended.status_code} after its end")


def _tick(operator: Browser, address: str, page: str, value: str) -> str:
    """Press the box of a step, whose form is elsewhere on the page."""
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    fields = {"csrfmiddlewaretoken": token[1] if token else ""}
    url = str(operator.client.base_url.join(address))
    return operator.send(Form(action=address, method="POST", page=url, fields=fields), tick=value).text


def _incident(key: str) -> int:
    row = (
        Alert.objects.filter(environment=ENVIRONMENT, key=key, incident__isnull=False).order_by("-pk").first()
    )
    if row is None or row.incident_id is None:
        raise CheckFailed(f"no incident has the alert {key}")
    return row.incident_id


def _contains(report: str, *parts: Any) -> None:
    if missing := [part for part in parts if part not in report]:
        raise CheckFailed(f"the report lacks {missing}: {report[:1500]}")
