"""What all benchmarks of the control plane use: real servers, a real schema, printed bars."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

PROJECT = Path(__file__).resolve().parents[3]


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Skip(Exception):
    """This contender cannot be measured here; the message says why."""


class Bars:
    """Prints each figure beside its bar, and remembers misses."""

    def __init__(self):
        self.missed = []

    def ratio(self, name, value, bar):
        say(f"RATIO {name} {value:.2f} (bar >= {bar})")
        if value < bar:
            self.missed.append(name)

    def ratio_at_most(self, name, value, bar):
        say(f"RATIO {name} {value:.2f} (bar <= {bar})")
        if value > bar:
            self.missed.append(name)

    def figure(self, name, value, unit):
        say(f"FIGURE {name} {value:,.2f} {unit}")

    def at_most(self, name, value, bar, unit):
        say(f"FIGURE {name} {value:,.{2 if value < 10 else 1}f} {unit} (bar <= {bar:,} {unit})")

    def skipped(self, name, reason):
        say(f"RATIO {name} skipped: {reason}")

    def none(self, name, count, what):
        """A defect on any machine, however slow."""
        say(f"FIGURE {name} {count:,} {what} (bar 0)")
        if count:
            self.missed.append(name)

    @property
    def status(self):
        """The script's exit code, after printing what was missed."""
        if self.missed:
            say(f"Missed: {', '.join(self.missed)}")
        return 1 if self.missed else 0


def within(seconds):
    """End this script, and everything it started, when it takes longer."""

    def give_up(*_):
        raise SystemExit(f"This took longer than {seconds} s, on a machine that is too busy, or for ever.")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)


@contextmanager
def control_plane(**variables: str) -> Iterator[Path]:
    """Postgres and both Valkeys, Django set up and migrated, an environment ``production``."""
    sys.path.insert(0, str(PROJECT))
    from controlplane import embedded

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with embedded.running(list(embedded.SERVERS), folder=folder, forgetful=True):
            os.environ |= {
                "DJANGO_SETTINGS_MODULE": "controlplane.settings",
                "FUSEBOARD_SECRET_KEY": "benchmarks-sign-with-this-and-nothing-else-does",
                "FUSEBOARD_LOG_LEVEL": "WARNING",
                **variables,
            }
            import django
            from django.core.management import call_command

            django.setup()
            call_command("migrate", verbosity=0)
            from controlplane.editing import edits

            edits.create_environment(environment="production", reason="a benchmark", actor=bench())
            yield folder


def bench():
    """The editor in a benchmark."""
    from controlplane.audit.actor import Actor

    return Actor(name="bench", role="admin", origin="command")


def add_tenants(count, *, own_every=20):
    """Tenants spread over the tiers, every twentieth with its own quota, as one revision."""
    from django.db import connection

    from controlplane.editing.revise import take_revision

    with connection.cursor() as cursor:
        # The product's timeout is for pages; a busy machine takes longer for so many rows.
        cursor.execute("SET statement_timeout = 0")
        # Rows without an actor would be recorded one by one, as an intrusion is.
        cursor.execute("SELECT set_config('fuseboard.actor', 'bench', false)")
        _, revision = take_revision("production")
        cursor.execute(
            """
            INSERT INTO policies_tenant (environment_id, key, title, tier_id, suspended, deleted,
                                         changed_revision, version)
            SELECT 'production', left(md5(n::text), 12), 'Customer ' || n,
                   tiers.ids[1 + n %% cardinality(tiers.ids)], false, false, %s, 1
            FROM generate_series(1, %s) n,
                 (SELECT array_agg(id ORDER BY id) AS ids FROM policies_tier) tiers
            """,
            [revision, count],
        )
        cursor.execute("SELECT key FROM policies_tenant WHERE title LIKE 'Customer %' ORDER BY id")
        keys = [key for (key,) in cursor.fetchall()]
    from controlplane.policies.models import Tenant, TenantQuota

    chosen = Tenant.objects.filter(key__in=keys[::own_every])
    TenantQuota.objects.bulk_create(
        [TenantQuota(tenant=row, name="requests", limit=250, window_s=60, burst=10) for row in chosen],
        batch_size=5_000,
    )
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('fuseboard.actor', '', false)")
        # As autovacuum does within a minute; an open snapshot may keep it from a first time.
        cursor.execute("VACUUM (ANALYZE)")
        cursor.execute("RESET statement_timeout")
    return keys


def timed(work, *arguments):
    """Seconds it took, and what it returned."""
    begun = perf_counter()
    found = work(*arguments)
    return perf_counter() - begun, found
