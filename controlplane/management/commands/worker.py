"""Run background work and its schedule in one process: ``python manage.py worker``."""

from typing import Any

from django.core.management.base import BaseCommand

from controlplane.celery import app
from controlplane.checks import CONFIGURATION


class Command(BaseCommand):
    requires_system_checks = (CONFIGURATION,)
    help = (
        "Runs background work, and the schedule that begins it: alerts, ends of overrides, scheduled changes."
        " Run one. With several workers, run `celery -A controlplane beat` apart, as docker-compose.yml does."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        app.worker_main(["worker", "--beat", "--pool=threads", "--concurrency=2", "--without-mingle"])
