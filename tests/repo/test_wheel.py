"""What is installed: a pod's agent with its scripts, and a control plane with its pages and no demo."""

import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.repo.distributions import COMMIT, build_wheel, built_wheels, sources_of
from tools.release.sources import COMMIT_FILE, DISTRIBUTIONS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return built_wheels(tmp_path_factory)


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def files_under(folder: str, pattern: str = "*") -> set[str]:
    found = (ROOT / folder).rglob(pattern)
    return {path.relative_to(ROOT).as_posix() for path in found if path.is_file()}


def test_the_wheel_holds_the_agent_and_only_the_agent(tmp_path):
    """Also built from the checkout itself, as in the image."""
    build_wheel(ROOT, tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    names = names_in(wheel)
    assert {"fuseboard/__init__.py", "fuseboard/py.typed", "fuseboard/contract/keys.py"} <= names
    agents = ROOT / "agents"
    scripts = {path.relative_to(agents).as_posix() for path in (agents / "fuseboard/lua").rglob("*.lua")}
    assert scripts
    assert scripts <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"fuseboard"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_agent_brings_nothing_of_the_control_plane(wheels):
    """The extra ``controlplane`` brought 70 packages, and nothing that used them."""
    wheel = metadata_of(wheels["fuseboard"])
    assert {"controlplane", "demo"} & set(wheel.get_all("Provides-Extra")) == set()
    always = {Requirement(line).name for line in wheel.get_all("Requires-Dist") if "extra" not in line}
    assert always == {"hiredis", "msgspec"}


def test_the_control_plane_has_its_pages_and_runbooks_and_no_demo(wheels):
    names = names_in(wheels["fuseboard-controlplane"])
    assert {name.split("/")[0].split("-")[0] for name in names} == {
        "controlplane",
        "dashboard",
        "fuseboard_controlplane",
    }
    for folder in ("dashboard/templates", "dashboard/static", "controlplane/templates"):
        files = files_under(folder)
        assert files
        assert files - names == set()
    runbooks = {Path(name).name for name in files_under("docs/runbooks")}
    assert {Path(name).name for name in names if name.startswith("controlplane/runbooks/pages/")} == runbooks
    assert not any("demo" in Path(name).parts or name.endswith("pyproject.toml") for name in names)


def test_both_have_licence_notice_and_commit(wheels):
    for name, wheel in wheels.items():
        names = names_in(wheel)
        for file in ("LICENSE", "NOTICE"):
            assert any("/licenses/" in found and found.endswith(file) for found in names), (name, file)
        package = "fuseboard" if name == "fuseboard" else "controlplane"
        with zipfile.ZipFile(wheel) as archive:
            assert archive.read(f"{package}/{COMMIT_FILE}").decode().strip() == COMMIT


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_metadata_is_complete(wheels, name):
    wheel = metadata_of(wheels[name])
    for field in ("Summary", "Author", "Keywords", "License-Expression", "Requires-Python"):
        assert wheel[field], field
    assert len(wheel.get_all("Classifier")) > 8
    assert wheel.get_payload().startswith("# Fuseboard")


def test_both_are_one_release():
    projects = {
        name: tomllib.loads((ROOT / sources.pyproject).read_text())["project"]
        for name, sources in DISTRIBUTIONS.items()
    }
    (version,) = {project["version"] for project in projects.values()}
    (pin,) = (
        Requirement(line)
        for line in projects["fuseboard-controlplane"]["dependencies"]
        if line.startswith("fuseboard")
    )
    assert pin.specifier == SpecifierSet(f"=={version}")


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_sources_name_no_folder_of_the_checkout(wheels, name):
    """uv would look for the agent beside the folder in which somebody has unpacked the sdist."""
    copied = tomllib.loads((sources_of(wheels[name]) / "pyproject.toml").read_text())
    ours = tomllib.loads((ROOT / DISTRIBUTIONS[name].pyproject).read_text())
    places = ours["tool"].pop("uv", {})
    assert set(places) <= {"sources"}
    assert bool(places) == (name == "fuseboard-controlplane")
    assert copied == ours
