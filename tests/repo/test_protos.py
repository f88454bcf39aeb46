"""The compiled messages are those of their .proto files."""

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path("fuseboard/envoy")
COMPILER = ROOT / ".venv-protos/bin/python"
NAMES = sorted(file.stem for file in (ROOT / "agents" / FOLDER).glob("*.proto"))


@pytest.mark.parametrize("name", NAMES)
def test_compiled_messages_are_up_to_date(name: str, tmp_path: Path) -> None:
    """`make protos` writes them, with an older compiler than this one: what they describe is the same."""
    described = tmp_path / "described"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "agents", f"--descriptor_set_out={described}"]
    subprocess.run([*command, f"agents/{FOLDER}/{name}.proto"], cwd=ROOT, check=True)
    (file,) = FileDescriptorSet.FromString(described.read_bytes()).file
    compiled = FileDescriptorProto()
    import_module(f"fuseboard.envoy.{name}_pb2").DESCRIPTOR.CopyToProto(compiled)
    for message in (*file.message_type, *(nested for one in file.message_type for nested in one.nested_type)):
        for field in message.field:
            # The compiler leaves the names in JSON out of Python.
            field.ClearField("json_name")
    assert compiled == file


def test_compiled_files_are_those_that_make_protos_writes(tmp_path: Path) -> None:
    """Also the types, which the messages themselves do not show."""
    options = ["-m", "grpc_tools.protoc", "-I", "agents", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    protos = [f"agents/{FOLDER}/{name}.proto" for name in NAMES]
    if not COMPILER.exists() or not list(COMPILER.parents[1].glob("lib/*/site-packages/grpc_tools")):
        pytest.skip("no compiler in .venv-protos: run make engine-environments with Python 3.11 or 3.12")
    subprocess.run([COMPILER, *options, *protos], cwd=ROOT, check=True)
    written = {file.name: file.read_text() for file in (tmp_path / FOLDER).iterdir()}
    assert len(written) == 2 * len(NAMES)
    assert {name: (ROOT / "agents" / FOLDER / name).read_text() for name in written} == written


def test_the_extra_has_a_protobuf_that_reads_them() -> None:
    """Compiled messages refuse an older library, and the environment of their test has the oldest."""
    text = (ROOT / "agents" / FOLDER / "rls_pb2.py").read_text()
    (compiler,) = re.findall(r"^# Protobuf Python Version: (.+)$", text, flags=re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert f"protobuf>={compiler},<9" in project["project"]["optional-dependencies"]["envoy"]
    assert f"protobuf=={compiler}" in project["dependency-groups"]["protos"]
