from datetime import date
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.errors import InvalidEdit
from controlplane.policies.models import Environment
from controlplane.weekly.keep import last_week, make_summary
from controlplane.weekly.markdown import as_markdown


class Command(BaseCommand):
    help = "Makes the weekly summary of an environment now, stores it, and prints it as Markdown."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("environment")
        parser.add_argument("--week", type=_day, help="its Monday, like 2026-05-04; default: the last week")

    def handle(self, *args: Any, **options: Any) -> None:
        slug = options["environment"]
        if not Environment.objects.filter(slug=slug).exists():
            raise CommandError(f"There is no environment {slug}. Create it with create_environment.")
        try:
            summary = make_summary(slug, options["week"] or last_week())
        except InvalidEdit as error:
            raise CommandError("; ".join(text for texts in error.errors.values() for text in texts)) from None
        self.stdout.write(as_markdown(summary), ending="")


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise CommandError(f"{text} is not a day. Enter it like 2026-05-04.") from None
