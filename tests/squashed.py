"""Migrations as they were before they were squashed, and as they are when the replaced files are gone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader


@contextmanager
def earlier_files() -> Iterator[None]:
    """Without squashed migrations: a part of one can be undone or applied.

    A database that then lacks a part of it uses the earlier files, also without this.
    """
    with _only(lambda _, migration, __: not migration.replaces):
        yield


@contextmanager
def squashed_files() -> Iterator[None]:
    """Without those that are replaced, as when their files are deleted."""
    with _only(lambda node, _, replaced: node not in replaced):
        yield


@contextmanager
def _only(keep: Callable[[tuple[str, str], Migration, set[tuple[str, str]]], bool]) -> Iterator[None]:
    load = MigrationLoader.load_disk

    def load_some(loader: MigrationLoader) -> None:
        load(loader)
        replaced = {node for migration in loader.disk_migrations.values() for node in migration.replaces}
        loader.disk_migrations = {
            node: migration
            for node, migration in loader.disk_migrations.items()
            if keep(node, migration, replaced)
        }

    with patch.object(MigrationLoader, "load_disk", load_some):
        yield
