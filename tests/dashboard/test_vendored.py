import base64
import hashlib
import tomllib
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "dashboard" / "static" / "vendor"
FILES = tomllib.loads((FOLDER / "VENDORED.toml").read_text())["file"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file["path"])
def test_a_vendored_file_is_the_one_its_package_published(file):
    digest = hashlib.sha384((FOLDER / file["path"]).read_bytes()).digest()
    assert base64.b64encode(digest).decode() == file["sha384"]
    assert file["version"]
    assert file["licence"]


def test_nothing_lies_beside_the_listed_files():
    found = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()}
    assert found == {file["path"] for file in FILES} | {"VENDORED.toml"}
