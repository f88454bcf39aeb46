"""The services that a receiver can name, what its URL may contain, and how much of it a page displays."""

from dataclasses import dataclass
from urllib.parse import urlsplit

#: A shorter end of a URL is not displayed: four characters would be too much of it.
_MIN_HIDDEN = 12
_SHOWN = 4
WEBHOOK_SCHEMES = ("https", "http")


@dataclass(frozen=True, kw_only=True)
class Service:
    """One service of apprise."""

    name: str
    #: The form of its URL, for people.
    example: str
    #: Parameters that may follow the question mark. Everything else is refused: options of apprise can read
    #: files, add addresses, switch off the check of certificates, or follow redirects.
    options: frozenset[str] = frozenset()
    #: The host of the URL is a server. Otherwise it is a part of a secret.
    hosted: bool = False


def _service(name: str, example: str, options: str = "", *, hosted: bool = False) -> Service:
    return Service(name=name, example=example, options=frozenset(options.split()), hosted=hosted)


_MAIL = "bcc cc from mode name reply smtp to"
_MATTERMOST = _service("Mattermost", "mmosts://HOST/TOKEN", "channel channels to", hosted=True)
_NTFY = _service("ntfy", "ntfys://HOST/TOPIC", "priority to xtags", hosted=True)
_GOTIFY = _service("Gotify", "gotifys://HOST/TOKEN", "priority", hosted=True)

#: Scheme -> service. Never one that runs a program, opens a local socket, or uses a library of its own.
SERVICES = {
    "slack": _service("Slack", "slack://TOKEN_A/TOKEN_B/TOKEN_C/#CHANNEL", "to"),
    "pagerduty": _service("PagerDuty", "pagerduty://INTEGRATION_KEY@API_KEY", "class group region"),
    "opsgenie": _service("Opsgenie", "opsgenie://API_KEY/#TEAM", "priority region tags to"),
    "workflows": _service(
        "Microsoft Teams", "workflows://HOST:443/WORKFLOW/SIGNATURE", "api-version ver wrap", hosted=True
    ),
    "mailto": _service("E-mail without TLS", "mailto://HOST:25?from=A@B&to=C@D", _MAIL, hosted=True),
    "mailtos": _service("E-mail", "mailtos://USER:PASSWORD@HOST?from=A@B&to=C@D", _MAIL, hosted=True),
    "discord": _service("Discord", "discord://WEBHOOK_ID/WEBHOOK_TOKEN", "thread"),
    "gchat": _service("Google Chat", "gchat://WORKSPACE/KEY/TOKEN", "thread"),
    "gotify": _GOTIFY,
    "gotifys": _GOTIFY,
    "mmost": _MATTERMOST,
    "mmosts": _MATTERMOST,
    "ntfy": _NTFY,
    "ntfys": _NTFY,
    "pover": _service("Pushover", "pover://USER_KEY@TOKEN", "priority sound to"),
    "tgram": _service("Telegram", "tgram://BOT_TOKEN/CHAT_ID", "silent thread to topic"),
    "twilio": _service("Twilio", "twilio://ACCOUNT_SID:AUTH_TOKEN@FROM_PHONE/TO_PHONE", "to"),
    "wxteams": _service("Webex", "wxteams://TOKEN", "to"),
    "zulip": _service("Zulip", "zulip://BOT@ORGANIZATION/TOKEN", "to"),
}


#: Services that call a person: they get alerts only.
PAGERS = frozenset(("opsgenie", "pagerduty"))


def scheme_of(url: str) -> str:
    return url.partition("://")[0].lower()


def is_webhook(url: str) -> bool:
    return scheme_of(url) in WEBHOOK_SCHEMES


def service_name(url: str) -> str:
    """``Slack``; ``webhook`` for a signed one."""
    service = SERVICES.get(scheme_of(url))
    return service.name if service is not None else "webhook"


def shown_address(url: str) -> str:
    """The part of a URL that people may read: scheme, host, and the last four characters.

    Receivers put secrets everywhere else, and many into the host.
    """
    if not url:
        return "unreadable"
    scheme = scheme_of(url)
    service = SERVICES.get(scheme)
    parts = urlsplit(url)
    if service is None or service.hosted:
        host = parts.netloc.rpartition("@")[2]
        # In a URL like mailto, tokens are the user and the password, which are displayed in no part.
        hidden = parts.path.strip("/")
    else:
        host, hidden = "", (parts.netloc + parts.path).strip("/")
    end = f"…{hidden[-_SHOWN:]}" if len(hidden) >= _MIN_HIDDEN else ("…" if hidden else "")
    return f"{scheme}://{host}/{end}" if host and end else f"{scheme}://{host or end}"
