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


def test_the_extra_has_a_protobuf_that_reads_them() -> None:
    """Compiled messages refuse an older library, and the environment of their test has the oldest."""
    text = (ROOT / "agents" / FOLDER / "rls_pb2.py").read_text()
    (compiler,) = re.findall(r"^# Protobuf Python Version: (.+)$", text, flags=re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert f"protobuf>={compiler},<9" in project["project"]["optional-dependencies"]["envoy"]
    assert f"protobuf=={compiler}" in project["dependency-groups"]["protos"]
