"""``backup_manifest`` beside a dump, and ``verify_restore`` after it was restored."""

import io
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as configured
from django.core.management import CommandError, call_command
from django.db import ProgrammingError, connection

from controlplane.alerts.models import Receiver
from controlplane.editing import edits
from controlplane.encryption import fingerprints
from controlplane.policies.models import Environment
from tests.controlplane.web_process import database_url
from tests.people import ADA
from tests.postgres_programs import program

PAGE = (Path(__file__).resolve().parents[3] / "docs/backup.md").read_text()
ANOTHER_KEY = "another key, which is as long as a key should be, and random"


def written() -> str:
    out = io.StringIO()
    call_command("backup_manifest", stdout=out)
    return out.getvalue()


def verified(manifest: Path) -> str:
    out = io.StringIO()
    call_command("verify_restore", str(manifest), stdout=out)
    return out.getvalue()


@pytest.fixture
def manifest(production: str, tmp_path: Path) -> Path:
    Receiver.objects.create(environment=production, name="pager", url="https://pager.example.com/hook")
    file = tmp_path / "fuseboard.json"
    file.write_text(written())
    return file


@contextmanager
def restored(dump: Path | None) -> Iterator[None]:
    """Django's connection leads to a new database with the content of the dump, or an empty one."""
    server, _, _name = database_url().rpartition("/")
    subprocess.run([program("createdb"), f"--maintenance-db={server}/postgres", "restored"], check=True)
    kept = connection.settings_dict["NAME"]
    try:
        if dump:
            into = f"--dbname={server}/restored"
            subprocess.run([program("pg_restore"), "--exit-on-error", into, dump], check=True)
        connection.close()
        connection.settings_dict["NAME"] = "restored"
        yield
    finally:
        connection.close()
        connection.settings_dict["NAME"] = kept
        subprocess.run(
            [program("dropdb"), "--force", f"--maintenance-db={server}/postgres", "restored"], check=True
        )


def test_a_restored_dump_has_what_its_manifest_says(manifest: Path, tmp_path: Path, text_limits: Any) -> None:
    dump = tmp_path / "fuseboard.dump"
    subprocess.run([program("pg_dump"), "--format=custom", f"--file={dump}", database_url()], check=True)
    edits.create_tenant(
        tenant="later", tier="pro", environment="production", reason="after the dump", actor=ADA
    )
    with restored(dump):
        said = verified(manifest)
        assert "The database has what the manifest of" in said
        assert "Next, while Redis is up and before the first edit: python manage.py republish" in said
        call_command("republish", "production", "--new-epoch", "--reason", "restored", stdout=io.StringIO())
        said = verified(manifest)
        assert "production has begun epoch 2." in said
        assert "went on after the manifest" in said
        with connection.cursor() as cursor, pytest.raises(ProgrammingError, match="Cannot update"):
            cursor.execute("UPDATE audit_entry SET reason = 'rewritten' WHERE sequence = 1")


def test_a_manifest_contains_no_secret(manifest: Path) -> None:
    text = manifest.read_text()
    found = json.loads(text)
    assert configured.SECRET_KEY not in text
    assert "pager.example.com" not in text
    assert found["key_fingerprint"] == fingerprints()[0]
    assert found["environments"] == {
        "production": {"epoch": 1, "revision": Environment.objects.get().revision}
    }
    assert (found["rows"]["tenants"], found["rows"]["receivers"]) == (1, 1)


def test_a_database_that_this_release_cannot_read_is_named(manifest: Path) -> None:
    found = json.loads(manifest.read_text())
    with restored(None):
        with pytest.raises(CommandError, match=r"lacks \d+ migrations of this release.*dump alone\. Or run"):
            written()
        with pytest.raises(CommandError) as error:
            verified(manifest)
        assert "lacks migrations that the dump had" in str(error.value)
        assert "manage.py migrate" not in str(error.value), "it would stand in the way of the restore"
        manifest.write_text(json.dumps(found | {"migrations": {}}))
        with pytest.raises(CommandError, match=r"migrations must still run\. Run python manage\.py migrate"):
            verified(manifest)


def raised(manifest: dict[str, Any]) -> None:
    manifest["environments"]["production"]["revision"] += 1


def renamed(manifest: dict[str, Any]) -> None:
    manifest["environments"]["staging"] = manifest["environments"]["production"]


def continued(manifest: dict[str, Any]) -> None:
    manifest["audit"] = [f"production:9999:{'a' * 64}"]


def rewritten(manifest: dict[str, Any]) -> None:
    manifest["audit"] = [f"production:1:{'a' * 64}"]


def migrated(manifest: dict[str, Any]) -> None:
    manifest["migrations"]["audit"] = "9999_of_a_later_release"


def guarded(manifest: dict[str, Any]) -> None:
    manifest["triggers"] += 1


def counted(manifest: dict[str, Any]) -> None:
    manifest["rows"]["receivers"] = 7


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (raised, "production is at epoch 1, revision .* the manifest says epoch 1"),
        (renamed, "The environment staging is missing"),
        (continued, "and all later ones are missing"),
        (rewritten, "differs from the copy noted elsewhere. Restore another dump"),
        (migrated, "lacks migrations that the dump had: audit 9999_of_a_later_release"),
        (guarded, "triggers. They guard the audit"),
        (counted, "The number of receivers is 1; the manifest says 7"),
    ],
)
def test_a_difference_is_named_with_what_to_do(
    manifest: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    found = json.loads(manifest.read_text())
    change(found)
    manifest.write_text(json.dumps(found))
    with pytest.raises(CommandError, match=said):
        verified(manifest)


def test_rows_that_edits_have_removed_since_are_no_difference(manifest: Path) -> None:
    edits.create_tenant(
        tenant="later", tier="pro", environment="production", reason="after the dump", actor=ADA
    )
    assert "so the numbers of rows can differ" in verified(manifest)


def test_another_key_is_named_and_an_accepted_one_is_not_a_difference(manifest: Path, settings: Any) -> None:
    before, settings.SECRET_KEY = settings.SECRET_KEY, ANOTHER_KEY
    with pytest.raises(CommandError, match="FUSEBOARD_SECRET_KEY is another key than that of the dump"):
        verified(manifest)
    settings.SECRET_KEY_FALLBACKS = [before]
    assert "manage.py renew_secrets" in verified(manifest)


def test_postgres_understands_the_settings_of_the_archive_as_pasted(transactional_db: Any) -> None:
    """They have quotes within quotes. Only a restart or a reload would apply them."""
    lines = re.findall(r"^psql .*ALTER SYSTEM SET .*$", PAGE, re.MULTILINE)
    variables = os.environ | {"DATABASE_URL": database_url()}
    variables["PATH"] = f"{program('psql').parent}:{variables['PATH']}"
    with connection.cursor() as cursor:
        try:
            for line in lines:
                subprocess.run(["bash", "-euc", line], env=variables, check=True, capture_output=True)
            cursor.execute(
                "SELECT name, setting FROM pg_file_settings WHERE name LIKE 'archive%' ORDER BY seqno"
            )
            found = dict(cursor.fetchall())
        finally:
            for name in ("archive_mode", "archive_command"):
                cursor.execute(f"ALTER SYSTEM RESET {name}")
    assert found == {"archive_mode": "on", "archive_command": "test ! -f /archive/%f && cp %p /archive/%f"}


def test_what_is_no_manifest_is_refused(tmp_path: Path, transactional_db: Any) -> None:
    file = tmp_path / "other.json"
    with pytest.raises(CommandError, match="cannot be read as the output of backup_manifest"):
        verified(file)
    file.write_text('{"audit": ["production:x"]}')
    with pytest.raises(CommandError, match="Name the file that was written beside the dump"):
        verified(file)
