"""Run background work and its schedule in one process: ``python manage.py worker``."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from controlplane import loading
from controlplane.celery import app
from controlplane.checks import CONFIGURATION


class Command(BaseCommand):
    requires_system_checks = (CONFIGURATION,)
    help = (
        "Runs background work, and the schedule that begins it: alerts, ends of overrides, scheduled changes."
        " Run one. With several workers, give each --without-beat, and run `beat` once."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--without-beat", action="store_true", help="leave the schedule to `beat`")

    def handle(self, *args: Any, without_beat: bool, **options: Any) -> None:
        schedule = [] if without_beat else ["--beat"]
        # The tasks and what they use. Celery reports their end: see `controlplane.celery`.
        loading.begin()
        app.worker_main(["worker", *schedule, "--pool=threads", "--concurrency=2", "--without-mingle"])
