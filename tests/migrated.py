"""A migrated Postgres to copy: to create and migrate one takes longer than most test files."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
from psycopg import sql

from controlplane.embedded.postgres import DATABASE, USER, Postgres

PROJECT = Path(__file__).resolve().parents[1]
#: The tests' own database, beside the one of the server's URL.
TEST_DATABASE = f"test_{DATABASE}"
_CACHE = PROJECT / ".pytest_cache" / "postgres"
#: What decides how a migrated database looks.
_SOURCES = (
    "controlplane/**/migrations/*.py",
    "controlplane/**/models.py",
    "controlplane/audit/*.py",
    "controlplane/embedded/postgres.py",
    "requirements/dev.txt",
    "tests/migrated.py",
)


def copy_into(folder: Path) -> None:
    """Put the data of a Postgres into ``folder``: ``DATABASE`` and ``TEST_DATABASE``, both migrated."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = _CACHE / _version()
        if not kept.exists():
            for old in _CACHE.iterdir():
                if old.is_dir():
                    shutil.rmtree(old)
            _make(kept)
        folder.mkdir(parents=True, exist_ok=True)
        # Owners are kept: root's Postgres runs as somebody else.
        subprocess.run(["cp", "--archive", *kept.iterdir(), folder], check=True)


def _version() -> str:
    found = hashlib.sha256(str(sys.version_info).encode())
    for pattern in _SOURCES:
        for path in sorted(PROJECT.glob(pattern)):
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _make(kept: Path) -> None:
    folder = kept.with_suffix(".new")
    folder.mkdir()
    server = Postgres(folder, durable=False)
    server.start()
    try:
        variables = {
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            "DATABASE_URL": server.url,
            "FUSEBOARD_REDIS_URL": "redis://127.0.0.1:1",
            "FUSEBOARD_BROKER_URL": "redis://127.0.0.1:2",
            "FUSEBOARD_SECRET_KEY": "made-for-migrations-and-never-used-again-1234567890",
        }
        # Not by manage.py, which looks first whether every server answers.
        command = [sys.executable, "-m", "django", "migrate", "--verbosity", "0"]
        subprocess.run(command, cwd=PROJECT, env=os.environ | variables, check=True)
        with psycopg.connect(server.url, dbname="postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {TEST_DATABASE} TEMPLATE {DATABASE}")
            # The same password, proved at once: each request of a web process connects again.
            connection.execute("SET scram_iterations = 1")
            connection.execute(
                sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(USER), server.password)
            )
    finally:
        server.stop()
    (folder / "log").unlink()
    folder.rename(kept)
