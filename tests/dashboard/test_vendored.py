import base64
import hashlib
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (ROOT / "dashboard" / "static" / "vendor", ROOT / "tests" / "dashboard" / "axe")
FILES = [
    (folder, file)
    for folder in FOLDERS
    for file in tomllib.loads((folder / "VENDORED.toml").read_text())["file"]
]


@pytest.mark.parametrize(("folder", "file"), FILES, ids=[file["path"] for _, file in FILES])
def test_a_vendored_file_is_the_one_that_is_recorded(folder, file):
    digest = hashlib.sha384((folder / file["path"]).read_bytes()).digest()
    assert base64.b64encode(digest).decode() == file["sha384"]
    assert file["version"]
    assert file["licence"]
    assert ("changed_with" in file) == ("sha384_of_source" in file), (
        "a changed file names what it was made of"
    )


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_there_are_no_files_beside_the_listed_ones(folder):
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {file["path"] for of, file in FILES if of == folder} | {"VENDORED.toml"}
