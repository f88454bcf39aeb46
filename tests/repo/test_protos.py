"""The compiled messages are those of their .proto files."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("fuseboard/envoy")
PROTOS = sorted((ROOT / "agents" / FOLDER).glob("*.proto"))


def test_compiled_messages_are_up_to_date(tmp_path: Path) -> None:
    """`make protos` writes them."""
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "agents"]
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    files = [str(file.relative_to(ROOT)) for file in PROTOS]
    subprocess.run([*command, *outputs, *files], cwd=ROOT, check=True)
    made = sorted((tmp_path / FOLDER).iterdir())
    assert len(made) == 2 * len(PROTOS)
    for file in made:
        assert file.read_text() == (ROOT / "agents" / FOLDER / file.name).read_text(), file.name


def test_the_extra_has_a_protobuf_that_reads_them() -> None:
    """Compiled messages refuse an older library."""
    (line,) = [
        line
        for line in (ROOT / "agents" / FOLDER / "rls_pb2.py").read_text().splitlines()
        if line.startswith("# Protobuf Python Version: ")
    ]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"protobuf>={line.rpartition(' ')[2]}" in project["optional-dependencies"]["envoy"]
