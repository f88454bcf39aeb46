from typing import Any

import structlog
from django.core.management.base import BaseCommand, CommandError, CommandParser

from controlplane.series.erasure import erase_tenant
from controlplane.usage.rollups import erase_tenant as erase_demand

log = structlog.get_logger(__name__)


class Command(BaseCommand):
    help = "Erases the stored figures of a tenant: its charts, and what was recorded for what-if."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("environment")
        parser.add_argument("tenant", help="its key, or the caller that is not registered")

    def handle(self, *args: Any, **options: Any) -> None:
        environment, tenant = options["environment"], options["tenant"]
        if not tenant.strip():
            raise CommandError("Name the tenant to erase.")
        series, rows = erase_tenant(environment, tenant), erase_demand(environment, tenant)
        # Without the name: the log would keep what is erased here.
        log.info("history.erased", environment=environment, series=series, demand=rows)
        self.stdout.write(f"Erased {series} series and {rows} rows of demand.")
