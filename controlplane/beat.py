"""The scheduler of Celery beat. Beat listens on no port, so it leaves a file that shows that it runs."""

from pathlib import Path
from typing import Any

import structlog
from celery import beat
from django.conf import settings

log = structlog.get_logger(__name__)


class Scheduler(beat.Scheduler):
    def tick(self, *args: Any, **options: Any) -> float:
        """Send what is due, and touch the file: several times a second."""
        wait_s: float = super().tick(*args, **options)
        if settings.BEAT_FILE:
            try:
                Path(settings.BEAT_FILE).touch()
            except OSError as error:
                # A full disk ends the health check, not the schedule.
                log.error("beat.file_not_touched", file=settings.BEAT_FILE, problem=str(error))
        return wait_s
