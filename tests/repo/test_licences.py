"""Packages that are installed with the control plane have licences that we allow, or that NOTICE names."""

import tomllib
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.repo.test_requirements import entries_of
from tools.release.licences import licences_of, problems
from tools.release.sbom import leave_out_installers, vendored

ROOT = Path(__file__).resolve().parents[2]
NOTICE = (ROOT / "controlplane/NOTICE").read_text()


class Package:
    """A distribution with this metadata."""

    def __init__(self, **fields: str | list[str]) -> None:
        self.metadata = Message()
        for name, values in fields.items():
            for value in [values] if isinstance(values, str) else values:
                self.metadata[name.replace("_", "-")] = value


def installed():
    from packaging.requirements import Requirement

    here = [Requirement(line) for line in entries_of(ROOT / "requirements/controlplane.txt")]
    return [distribution(one.name) for one in here if one.marker is None or one.marker.evaluate()]


def test_every_licence_is_allowed_or_named():
    packages = installed()
    assert len(packages) > 60
    assert list(problems(packages, NOTICE)) == []


def test_a_package_that_asks_for_more_must_be_in_notice():
    psycopg = [found for found in installed() if found.metadata["Name"] == "psycopg"]
    assert list(licences_of(psycopg[0])) == ["LGPL-3.0-only"]
    (problem,) = problems(psycopg, "Fuseboard")
    assert "NOTICE must name the package" in problem


@pytest.mark.parametrize(
    ("package", "found"),
    [
        (Package(License_Expression="GPL-3.0-only OR MIT"), ["MIT"]),
        (Package(License_Expression="Apache-2.0 AND GPL-3.0-only"), ["Apache-2.0", "GPL-3.0-only"]),
        (Package(License="MIT"), ["MIT"]),
        (
            Package(Classifier=["License :: OSI Approved :: BSD License", "Framework :: Django"]),
            ["BSD License"],
        ),
        (Package(License="a whole\ntext"), []),
    ],
)
def test_the_licences_of_a_package_are_read(package, found):
    assert list(licences_of(package)) == found


def test_an_unknown_licence_ends_a_release():
    unknown = Package(Name="made-up", License_Expression="GPL-3.0-only")
    silent = Package(Name="silent")
    said = list(problems([unknown, silent], "made-up silent"))
    assert [problem.split()[0] for problem in said] == ["made-up", "silent"]
    assert "on no list" in said[0]


def test_notice_names_the_vendored_files():
    vendored = tomllib.loads((ROOT / "dashboard/static/vendor/VENDORED.toml").read_text())["file"]
    for file in vendored:
        assert file["licence"] in NOTICE, file["path"]


def test_a_bill_of_materials_refers_to_nothing_that_it_leaves_out():
    parts = [{"name": name, "bom-ref": f"{name}==1"} for name in ("pip", "setuptools", "django")]
    document = {
        "components": parts,
        "dependencies": [
            {"ref": "pip==1"},
            {"ref": "setuptools==1"},
            {"ref": "django==1", "dependsOn": ["setuptools==1"]},
        ],
    }
    leave_out_installers(document)
    assert document["components"] == [parts[2]]
    assert document["dependencies"] == [{"ref": "django==1", "dependsOn": []}]


def test_a_vendored_package_is_one_part_of_the_bill_of_materials():
    refs = [part["bom-ref"] for part in vendored()]
    assert refs
    assert len(refs) == len(set(refs))
