"""Logs: one JSON object per line on stderr, named ``entity.action``, with ids as fields."""

import logging
import re
from collections.abc import MutableMapping
from typing import Any

import structlog

#: Secrets that would grant access: the secret half of a token, of a link that sets a password, and a link to
#: the report of an incident.
_SECRET = re.compile(
    r"(fb_[0-9a-f]{4,64}_|/welcome/[0-9a-f]{4,64}-)[0-9a-f]+|(/incidents/shared/)[A-Za-z0-9_:.-]+"
)

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def _hide_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = _SECRET.sub(r"\1\2***", value)
    return event


def _leave_out_traces(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """For refused requests, which Django logs with the traceback of its own refusal."""
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
                    _hide_secrets,
                    structlog.processors.JSONRenderer(),
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
