"""``make release``: the page that it follows has its commands in their order, and its files are complete."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.release import __main__ as release
from tools.release.walk import blocks, let_through


def test_the_page_has_the_blocks_of_the_walk():
    install, start, pod = blocks()
    lines = install.splitlines()
    assert lines[0].startswith("python3 -m venv venv")
    assert [line.split()[1] for line in lines if line.startswith("fuseboard-server ")] == [
        "migrate",
        "create_environment",
        "first_admin",
    ]
    assert start.split() == [
        "fuseboard-server",
        "web",
        "fuseboard-server",
        "gateway",
        "fuseboard-server",
        "worker",
    ]
    assert pod.splitlines()[-1] == "pip install dist/fuseboard-*.whl"


def test_a_release_needs_a_tree_without_changes(monkeypatch):
    """It reads the page, NOTICE and the list of vendored files from the tree."""
    answers = {"rev-parse": "0123456789abcdef", "status": "?? docs/draft.md"}
    monkeypatch.setattr(release, "git", lambda command, *_: answers[command])
    with pytest.raises(SystemExit, match=r"Commit them(.|\n)*\?\? docs/draft\.md"):
        release.main()


def test_each_python_has_its_own_bills_of_materials(monkeypatch, tmp_path):
    """Some packages are installed for one version of Python only."""
    names = ("fuseboard-1.0-py3-none-any.whl", "fuseboard_controlplane-1.0-py3-none-any.whl")

    def build_twice(_: str, folder: Path) -> list[Path]:
        folder.mkdir()
        for name in names:
            (folder / name).write_text(name)
        return sorted(folder.iterdir())

    def write_sbom(name: str, python: Path, file: Path, *, epoch: str) -> int:
        file.write_text(f"{name} {python.relative_to(tmp_path)} {epoch}")
        return 1

    strangers = {version: SimpleNamespace(folder=tmp_path / version) for version in ("3.11", "3.13")}
    for name, stand_in in {
        "build_twice": build_twice,
        "write_sbom": write_sbom,
        "git": lambda *_: "1700000000",
        "_walks": lambda *_: strangers,
        "installed_in": lambda environment: [],
    }.items():
        monkeypatch.setattr(release, name, stand_in)
    dist = release._make("0123456789abcdef", tmp_path)
    assert {path.name: path.read_text() for path in dist.glob("*.json")} == {
        f"{name.replace('-', '_')}-1.0-python{version}.cdx.json": (
            f"{name} {version}/{machine}/venv/bin/python 1700000000"
        )
        for name, machine in (("fuseboard", "pod"), ("fuseboard-controlplane", "server"))
        for version in strangers
    }
    listed = [line.split()[1] for line in (dist / "SHA256SUMS").read_text().splitlines()]
    assert listed == sorted(path.name for path in dist.iterdir() if path.name != "SHA256SUMS")


def test_the_walk_counts_the_requests_that_the_limit_has_counted():
    """On a busy machine, Redis answers too late for one of them."""
    said = [
        "True shared 1",
        "True alone 2 orders",
        "True shared 2 requests",
        "True shared 2 requests orders",
        "True shared 2",
        "True shared 2 orders",
        "True shared 21 orders",
        "False shared 2 orders",
    ]
    assert let_through("\n".join(said), "2") == 2
