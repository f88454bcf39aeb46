"""Logs: one JSON object per line on stderr, named ``entity.action``, with ids as fields."""

import logging
import re
from collections.abc import MutableMapping
from typing import Any

import structlog

#: Secrets that grant access, by their form: a person can send one to any address, and wrong ones are logged.
_SECRETS = (
    # The secret half of a token, and of a link that sets a password.
    r"(?P<token>fb_[0-9a-f]{4,64}_|/welcome/+[0-9a-f]{4,64}-)[0-9a-f]+",
    r"(?P<link>(?<![0-9a-f])[0-9a-f]{16}-)[0-9a-f]{64}(?![0-9a-f])",
    # ``django.core.signing`` signed these: a link to the report of an incident, and a cookie of a session.
    r"(?P<report>/incidents/+shared/+)[^\s\"\\]+",
    r"(?<![a-z0-9_.-])[a-z0-9_.-]+(?::|%3a)[a-z0-9]{6}(?::|%3a)[a-z0-9_-]{43}\b",
    # The secret of a webhook, and the password of a server.
    r"(?P<webhook>whsec_)[A-Za-z0-9+/=]+",
    r"(?P<server>(?<![a-z0-9+])[a-z][a-z0-9+]*://[^\s:@/\"]*:)[^\s@/\"]+(?=@)",
)
_SECRET = re.compile("|".join(_SECRETS), re.IGNORECASE)

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def without_secrets(text: str) -> str:
    return _SECRET.sub(lambda found: f"{found[found.lastgroup] if found.lastgroup else ''}***", text)


_json = structlog.processors.JSONRenderer()


def _render(logger: Any, name: str, event: MutableMapping[str, Any]) -> str:
    """One line. Secrets are hidden in all of it, in whatever field, list or traceback they are."""
    line = _json(logger, name, event)
    return without_secrets(line if isinstance(line, str) else line.decode())


def _leave_out_traces(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Drop the traceback of a refused request. Django logs one for each request that it refuses itself."""
    record = event.get("_record")
    if record is not None and record.name == "django.request" and record.levelno < logging.ERROR:
        event.pop("exc_info", None)
    return event


def configure() -> None:
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def dict_config(level: str) -> dict[str, Any]:
    """Django's LOGGING: log lines of libraries have the same form as ours."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "json": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": [*_SHARED, _leave_out_traces],
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    structlog.processors.format_exc_info,
                    _render,
                ],
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            "django": {"handlers": [], "level": level, "propagate": True},
            # The proxy in front logs requests.
            "django.server": {"handlers": [], "propagate": False},
            "uvicorn.access": {"handlers": [], "propagate": False},
            # Several tasks per second would log two lines each, without information.
            "celery.app.trace": {"level": "WARNING"},
            "celery.beat": {"level": "WARNING"},
            "celery.worker.strategy": {"level": "WARNING"},
        },
    }
