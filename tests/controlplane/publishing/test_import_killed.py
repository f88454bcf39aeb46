"""A real process is killed while it writes an imported file."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.db import connection

from controlplane.policies.models import Change, Environment, Revision, Tenant
from controlplane.repair.tasks import sweep_outbox

ROOT = Path(__file__).resolve().parents[3]
ROWS = 8_000


def database_url() -> str:
    settings = connection.settings_dict
    place = f"host={quote(settings['HOST'], safe='')}&port={settings['PORT'] or 5432}"
    who = f"{quote(settings['USER'])}:{quote(settings['PASSWORD'])}"
    return f"postgresql://{who}@/{settings['NAME']}?{place}"


def start(file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "manage.py", "import_quotas", str(file), "--apply"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database_url(), "FUSEBOARD_LOG_LEVEL": "ERROR"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_import_killed_while_writing_leaves_nothing_and_can_be_repeated(
    production: str, tmp_path: Path, text_limits: Any
) -> None:
    from tests.controlplane.publishing.test_publishing import record

    file = tmp_path / "customers.csv"
    file.write_text("tenant,tier\n" + "".join(f"c-{number},free\n" for number in range(ROWS)))
    before = Environment.objects.get(pk="production").revision
    process = start(file)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("Writing tenants: 2,500"):
            break
    process.kill()
    process.communicate()
    assert process.returncode == -9, "it was killed before it had finished"
    assert Environment.objects.get(pk="production").revision == before
    assert Tenant.objects.count() == 1
    assert not Change.objects.filter(name__startswith="c-").exists()

    said, complained = start(file).communicate(timeout=100)
    assert f"Revision {before + 1}" in said, complained
    assert Tenant.objects.count() == 1 + ROWS
    assert Revision.objects.get(number=before + 1).changed == ROWS
    # On a busy machine the sweep publishes.
    sweep_outbox()
    assert record(text_limits, f"c-{ROWS - 1}") is not None
