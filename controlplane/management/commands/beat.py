"""Run the schedule of background work alone: ``python manage.py beat``."""

from typing import Any

from django.core.management.base import BaseCommand

from controlplane.celery import app
from controlplane.checks import CONFIGURATION


class Command(BaseCommand):
    requires_system_checks = (CONFIGURATION,)
    help = "Runs the schedule of background work. Run one, and workers with --without-beat."

    def handle(self, *args: Any, **options: Any) -> None:
        app.start(["beat"])
