"""One message by apprise."""

import logging
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import requests
from apprise import Apprise, AppriseAsset, NotifyBase, NotifyFormat, NotifyType, PersistentStoreMode
from apprise.exception import AppriseException
from apprise.manager_plugins import NotificationManager
from apprise.plugins.opsgenie import OPSGENIE_API_LOOKUP

from controlplane.alerts.delivery.apprise.guard import Guard
from controlplane.alerts.delivery.apprise.jobs import Job, Kind, Result, without_middle
from controlplane.alerts.delivery.apprise.services import SERVICES, scheme_of

_CONNECT_S, _READ_S = 5.0, 10.0
_TYPES = {
    Kind.CRITICAL: NotifyType.FAILURE,
    Kind.WARNING: NotifyType.WARNING,
    Kind.RESOLVED: NotifyType.SUCCESS,
    Kind.TEST: NotifyType.INFO,
    Kind.REPORT: NotifyType.INFO,
}
#: Words that call everybody in a chat. A name in an alert must not.
_CALLS = re.compile(r"@(?=everyone\b|here\b|channel\b|all\b)|<(?=!)")
#: Parts of a URL that are this short are words, such as a port.
_MIN_SECRET = 4
_MAX_SAID = 300
#: Every service accepts this many characters; for SMS, apprise gives the length of a single one.
_MIN_LIMIT = 1_000
#: The text that apprise adds between title and body.
_BETWEEN = 20


#: Line breaks and other control characters, also those that only some programs take for line breaks.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
#: apprise decodes a part of a URL, and a service may decode it again.
_MAX_DECODED = 4
NO_CONTROL = "Leave out line breaks and other control characters, also encoded ones like %0A."


class UrlRefused(Exception):
    """apprise cannot use the URL, or must not."""


class _Records(logging.Handler):
    """Keeps what apprise logs: its functions return only whether it went well."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


_records = _Records()
_log = logging.getLogger("apprise")
_log.addHandler(_records)
_log.propagate = False


def run(job: Job, guard: Guard) -> Result:
    """Never raises: a job that fails must not end the program."""
    guard.begin()
    _records.said = []
    name = "The receiver"
    try:
        plugin = plugin_of(job)
        name = SERVICES[scheme_of(job.url)].name
        sent = True if job.check else _send(plugin, job)
    except UrlRefused as error:
        return Result(state="refused", said=str(error))
    except Exception as error:
        # Whatever a library raises, the next job has its turn.
        sent = False
        _records.said.append(type(error).__name__)
    if guard.refused:
        return Result(state="refused", said=guard.refused[0])
    if sent:
        return Result(state="sent", said=f"{name} accepted it." if not job.check else "")
    said = " ".join(dict.fromkeys(_records.said)) or f"{name} did not accept it."
    return Result(state="failed", said=without_secrets(said, job.url)[:_MAX_SAID])


def plugin_of(job: Job) -> NotifyBase:
    """The service of a URL. Raises ``UrlRefused``."""
    scheme = scheme_of(job.url)
    service = SERVICES.get(scheme)
    if service is None:
        raise UrlRefused("The URL begins with an unknown scheme.")
    if has_control_characters(job.url):
        raise UrlRefused(NO_CONTROL)
    wrong = UrlRefused(f"The URL is not complete. Use the form {service.example}.")
    plugin = NotificationManager()[scheme]  # type: ignore[no-untyped-call]
    found = plugin.parse_url(job.url)
    if not found or found.get("schema") != scheme:
        raise wrong
    if service.hosted:
        parts = urlsplit(job.url)
        # The host that pages display must not be a part of a password, or the name of a secret topic.
        if not parts.path.strip("/") and not scheme.startswith("mailto"):
            raise wrong
        if parts.hostname != str(found["host"]).lower():
            raise UrlRefused("Encode special characters of user and password with %.")
    # By the parser that also reads them, so that two parsers cannot differ.
    given = [*found["qsd"], *(f"{mark}{name}" for mark in "+-:" for name in found.get(f"qsd{mark}", ()))]
    for option in given:
        if option not in service.options:
            raise UrlRefused(f"Leave out the option {option[:40]!r}: it is not supported.")
    if scheme == "pagerduty":
        found["source"] = found.get("source") or "Fuseboard"
    try:
        made: NotifyBase = plugin(**{**found, **_options(scheme, job), "asset": _asset()})
    except (AppriseException, TypeError) as error:
        raise wrong from error
    made.socket_connect_timeout, made.socket_read_timeout = _CONNECT_S, _READ_S
    return made


def has_control_characters(url: str) -> bool:
    """Whether a URL contains one, as it is or encoded: a line break would begin another header of a mail."""
    for _ in range(_MAX_DECODED):
        if _CONTROL.search(url):
            return True
        url, before = unquote(url), url
        if url == before:
            return False
    return _CONTROL.search(url) is not None


def _asset() -> AppriseAsset:
    return AppriseAsset(
        app_id="Fuseboard",
        app_desc="Fuseboard",
        async_mode=False,
        http_redirects=False,
        storage_mode=PersistentStoreMode.MEMORY,
        # No picture of another host in a message.
        image_url_mask="",
        image_url_logo="",
    )


def _options(scheme: str, job: Job) -> Mapping[str, Any]:
    """The value that joins the messages of one alert."""
    match scheme:
        case "pagerduty":
            more = {"click": job.link} if job.link else {}
            return {"action": "map", "dedup": job.key, **more}
        case "opsgenie":
            return {"action": "new", "alias": job.key}
        case _:
            return {}


def _send(plugin: NotifyBase, job: Job) -> bool:
    if scheme_of(job.url) == "opsgenie" and job.kind is Kind.RESOLVED:
        return _close_in_opsgenie(plugin, job)
    title = _quiet(job.title)
    # A service refuses a longer message in each attempt, and many count the title too.
    most = max(plugin.body_maxlen, _MIN_LIMIT) - len(title) - _BETWEEN
    apprise = Apprise(asset=plugin.asset)
    apprise.add(plugin)
    sent = apprise.notify(
        title=title,
        body=without_middle(_quiet(job.body), most),
        notify_type=_TYPES[job.kind],
        body_format=NotifyFormat.TEXT,
    )
    return bool(sent)


def _close_in_opsgenie(plugin: Any, job: Job) -> bool:
    """By the alias. apprise closes by ids that it stored, which another process does not have."""
    answer = requests.post(
        f"{OPSGENIE_API_LOOKUP[plugin.region_name]}/{quote(job.key, safe='')}/close",
        params={"identifierType": "alias"},
        json={"source": "Fuseboard", "note": job.body[:25_000]},
        headers={"Authorization": f"GenieKey {plugin.apikey}"},
        timeout=(_CONNECT_S, _READ_S),
        allow_redirects=False,
    )
    if answer.status_code not in (200, 202):
        _records.said.append(f"Opsgenie answered HTTP {answer.status_code} to a close.")
    return answer.status_code in (200, 202)


def _quiet(text: str) -> str:
    return _CALLS.sub(lambda found: f"{found[0]}\u200b", text)


def without_secrets(said: str, url: str) -> str:
    """Without any part of the URL but its scheme."""
    rest = url.partition("://")[2]
    parts = {part for text in (rest, unquote(rest)) for part in re.split(r"[/?&=@:#,;+ ]+", text)}
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= _MIN_SECRET:
            said = said.replace(part, "***")
    return said
