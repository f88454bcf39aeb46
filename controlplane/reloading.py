"""Settings that change while a process runs: those in a file that ``NAME_FILE`` names.

They are read again at most 30 s after the file has changed. If it cannot be read or is empty, that is
logged, and the last value stays: a file that is written in place is empty for a moment.
"""

import logging
import os
import threading
import time
from dataclasses import dataclass, field

import structlog
from django.core.exceptions import ImproperlyConfigured

from controlplane import env

READ_S = 30.0

log = structlog.get_logger(__name__)


@dataclass
class ReloadedText:
    """The value of a variable, or the present content of its file."""

    name: str
    _value: str | None = None
    _read_at: float = field(default=float("-inf"))
    _problem: str = ""

    def get(self, without_file: str) -> str:
        """``without_file``: the value if no file is configured."""
        if not os.environ.get(f"{self.name}_FILE"):
            return without_file
        now = time.monotonic()
        if self._value is None or now - self._read_at >= READ_S:
            self._read_at = now
            try:
                value = env.text(self.name)
                self._value, problem = value or self._value, "" if value else "the file is empty"
            except ImproperlyConfigured as error:
                problem = str(error)
            if problem and problem != self._problem:
                log.error("setting.not_read", variable=self.name, problem=problem)
            self._problem = problem
        return without_file if self._value is None else self._value


def follow_log_level() -> None:
    """Apply FUSEBOARD_LOG_LEVEL_FILE again whenever it changes, on a thread, while the process runs."""
    if os.environ.get("FUSEBOARD_LOG_LEVEL_FILE"):
        threading.Thread(target=_follow, name="log-level", daemon=True).start()


def _follow() -> None:
    level = ReloadedText("FUSEBOARD_LOG_LEVEL")
    of_the_start = logging.getLevelName(logging.getLogger().level)
    while True:
        apply_log_level(level.get(of_the_start))
        time.sleep(READ_S)


def apply_log_level(name: str) -> None:
    """Log from this level on; the loggers that are quieter on purpose stay so."""
    level = logging.getLevelNamesMapping().get(name.upper())
    if level is None:
        log.error("setting.not_read", variable="FUSEBOARD_LOG_LEVEL", problem=f"{name!r} is no level")
    elif level != logging.getLogger().level:
        for logger in (logging.getLogger(), logging.getLogger("django")):
            logger.setLevel(level)
        log.warning("logs.level_changed", level=name.upper())
