"""Code of the last release can use the database of this one, so that a rollback needs no migration."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.apps import apps
from django.db import connection

from tests.contract.compat import release, rollback_lint
from tests.controlplane.web_process import database_url

LINT = Path(rollback_lint.__file__)


@pytest.mark.usefixtures("transactional_db")
def test_code_of_the_last_release_reads_and_writes_every_table(tmp_path: Path) -> None:
    source = release.source(release.LAST.commit)
    environment = os.environ | {
        "DATABASE_URL": database_url(),
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "FUSEBOARD_DATA_DIR": str(tmp_path),
        "PYTHONPATH": release.python_path(source, source / "agents"),
    }
    done = subprocess.run(
        [sys.executable, str(LINT)], cwd=source, env=environment, capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("ALTER TABLE drills_drill ADD x integer", ""),
        ("ALTER TABLE drills_drill ADD x integer NOT NULL DEFAULT 1", ""),
        (
            "ALTER TABLE drills_drill ADD x integer NOT NULL",
            "drills_drill.x: NOT NULL without a default, and no INSERT of the earlier code has it",
        ),
        ("ALTER TABLE audit_entry RENAME reason TO why", "audit_entry.reason: the column is gone"),
        (
            "ALTER TABLE audit_entry ALTER reason TYPE varchar(9)",
            "audit_entry.reason: 9 characters at most, and the earlier code stores more",
        ),
        ("DROP TABLE drills_drill", "drills_drill: the table is gone"),
        (
            "ALTER TABLE audit_entry ALTER epoch SET NOT NULL",
            "audit_entry.epoch: NOT NULL, and the earlier code stores NULL",
        ),
        (
            "ALTER TABLE audit_entry ALTER reason DROP NOT NULL",
            "audit_entry.reason: can be NULL, and the earlier code reads a value",
        ),
        *(
            (
                f"ALTER TABLE audit_entry ADD CONSTRAINT stricter {rule}",
                "audit_entry: the rule stricter is new, and can refuse what the earlier code stores",
            )
            for rule in ("CHECK (length(reason) > 8) NOT VALID", "UNIQUE (target_name)")
        ),
        (
            "CREATE UNIQUE INDEX stricter ON audit_entry (actor) WHERE actor = 'ada'",
            "audit_entry: the rule stricter is new, and can refuse what the earlier code stores",
        ),
        (
            "CREATE TRIGGER stricter BEFORE INSERT ON drills_drill FOR EACH ROW"
            " EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "drills_drill: the rule stricter is new, and can refuse what the earlier code stores",
        ),
        # It does not see these: docs/upgrading.md.
        ("ALTER TABLE audit_entry ALTER epoch TYPE numeric", ""),
        ("CREATE OR REPLACE FUNCTION unused(x text) RETURNS int LANGUAGE sql AS 'SELECT 1'", ""),
        (
            "ALTER TABLE audit_entry DROP CONSTRAINT entry_chained_once;"
            " ALTER TABLE audit_entry ADD CONSTRAINT entry_chained_once UNIQUE (environment)",
            "",
        ),
        (
            "DROP TABLE series_frame",
            "series_frame: it is gone, and controlplane/gateway/postgres/series_frames.py uses it",
        ),
    ],
)
@pytest.mark.usefixtures("db")
def test_what_would_break_the_earlier_code_is_found(statement: str, found: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        models = list(apps.get_models(include_auto_created=True))
        lines = list(rollback_lint.problems(cursor, models, release.ROOT))
    assert found in lines if found else not lines, lines
