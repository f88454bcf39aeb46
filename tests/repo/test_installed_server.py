"""``fuseboard-server``: the control plane without a checkout, from the files of its wheel."""

import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.contract.compat.release import python_path
from tests.repo.distributions import COMMIT, built_wheels
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "controlplane/pyproject.toml").read_text())["project"]["version"]
RUN = "import sys; sys.argv[0] = 'fuseboard-server'; from controlplane.command_line import main; main()"


class Installation:
    """Both wheels in a folder of their own, and a user with an empty home."""

    def __init__(self, folder: Path, wheels: Mapping[str, Path]) -> None:
        sites = {name: folder / name for name in wheels}
        for name, wheel in wheels.items():
            with zipfile.ZipFile(wheel) as files:
                files.extractall(sites[name])
        self.site = sites["fuseboard-controlplane"]
        self.home = folder / "home"
        self.home.mkdir()
        self.data = self.home / ".local/share/fuseboard"
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("FUSEBOARD", "XDG"))
        }
        self.environment = kept | {"HOME": str(self.home), "PYTHONPATH": python_path(*sites.values())}
        for name in ("DJANGO_SETTINGS_MODULE", "PYTHONDONTWRITEBYTECODE"):
            self.environment.pop(name, None)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-c", RUN, *words]

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=self.home,
            env=self.environment | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    def python(self, script: str, **variables: str) -> str:
        """What a script prints that imports the installed packages."""
        return subprocess.run(
            [sys.executable, "-c", script],
            cwd=self.home,
            env=self.environment | variables | {"DJANGO_SETTINGS_MODULE": "controlplane.settings"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("installed"), built_wheels(tmp_path_factory))


def test_it_says_its_version_and_its_commit(installed):
    """The version of Django says nothing to an operator."""
    for words in (["--version"], ["version"]):
        ended = installed.run(*words)
        assert ended.stdout == f"fuseboard-server {VERSION} (commit {COMMIT[:12]})\n", ended.stderr


def test_the_agent_says_its_version_and_its_commit(installed):
    asking = "import sys; sys.argv[1:] = ['--version']; from fuseboard.cli import main; main()"
    shown = installed.python(asking)
    assert shown == f"fuseboard {VERSION} (commit {COMMIT[:12]})\n"


def test_a_checkout_says_the_commit_that_git_knows():
    ended = subprocess.run(
        [sys.executable, "manage.py", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ended.stdout.startswith(f"manage.py {VERSION}")
    git = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if git.returncode == 0:
        assert f"(commit {git.stdout.strip()}" in ended.stdout


def test_it_has_the_commands_of_a_checkout_but_not_those_of_the_demo(installed):
    known = installed.run("help").stdout
    for command in ("web", "gateway", "worker", "beat", "migrate", "first_admin"):
        assert f"    {command}\n" in known
    assert "demo" not in known


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({}, ".local/share/fuseboard"),
        ({"XDG_DATA_HOME": "{home}/elsewhere"}, "elsewhere/fuseboard"),
        ({"XDG_DATA_HOME": "relative"}, ".local/share/fuseboard"),
        ({"FUSEBOARD_DATA_DIR": "{home}/mine"}, "mine"),
    ],
)
def test_its_data_is_the_users_and_never_beside_the_code(installed, variables, folder):
    here = {name: value.format(home=installed.home) for name, value in variables.items()}
    shown = installed.python("from controlplane import embedded; print(embedded.FOLDER)", **here)
    assert shown == f"{installed.home / folder}\n"


def test_a_user_without_a_home_is_told_what_to_set(installed, tmp_path):
    """The user of a container may have no entry in passwd."""
    begin = "import os, pwd; pwd.getpwuid = lambda uid: {}[uid]; del os.environ['HOME']"
    asking = f"{begin}\ntry:\n    from controlplane import settings; print(settings.DATA_DIR)\n"
    asking += "except SystemExit as problem:\n    print(problem)"
    assert "set FUSEBOARD_DATA_DIR to a folder" in installed.python(asking)
    shown = installed.python(asking, FUSEBOARD_DATA_DIR=str(tmp_path), FUSEBOARD_SECRET_KEY="x" * 50)
    assert shown == f"{tmp_path}\n"


def test_nothing_is_written_beside_the_code(installed, tmp_path):
    def files() -> list[Path]:
        found = (path for path in installed.site.rglob("*") if path.is_file())
        return sorted(path for path in found if "__pycache__" not in path.parts)

    before = files()
    settings = "from controlplane import settings; print(settings.STATIC_ROOT or settings.DATA_DIR)"
    assert installed.python(settings) == f"{installed.data}\n"
    assert (installed.data / "secret_key").exists()
    # Collected files too: the next installation replaces the folder of the code.
    collecting = f"import sys; sys.argv[1:] = ['collectstatic']; {settings}"
    assert installed.python(collecting) == f"{installed.data / 'staticfiles'}\n"
    assert files() == before


STORES = {
    "FUSEBOARD_REDIS_URL": "redis://127.0.0.1:1",
    "FUSEBOARD_BROKER_URL": "redis://127.0.0.1:1",
}


def test_it_shows_the_runbooks_of_its_release(installed):
    shown = installed.python("from controlplane.runbooks.shipped import shipped; print(*sorted(shipped()))")
    assert shown.split() == sorted(path.stem for path in (ROOT / "docs/runbooks").glob("*.md"))


def test_its_messages_name_the_command_that_the_user_has(installed):
    asked = "from controlplane.checks import stores_are_configured; print(*stores_are_configured())"
    shown = installed.python(asked)
    assert "`fuseboard-server`" in shown
    assert "manage.py" not in shown


def test_it_writes_files_for_prometheus_only_where_it_is_told(installed, tmp_path):
    """A checkout has the folder docs; an installation has none to write into."""
    refused = installed.run("write_monitoring")
    assert (refused.returncode, "--folder" in refused.stderr) == (1, True)
    assert installed.run("write_monitoring", "--folder", str(tmp_path)).returncode == 0
    assert (tmp_path / "rules.yml").read_text() == (ROOT / "docs/monitoring/rules.yml").read_text()


def test_beat_is_a_command_and_says_that_it_runs(installed, tmp_path):
    """Workers that leave the schedule to it are started with --without-beat."""
    file = tmp_path / "beat"
    variables = {"FUSEBOARD_BEAT_FILE": str(file), "DATABASE_URL": "postgres://127.0.0.1:1/none", **STORES}
    log = (tmp_path / "log").open("wb")
    with log:
        process = subprocess.Popen(
            installed.command("beat"),
            cwd=tmp_path,
            env=installed.environment | variables,
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(
            lambda: file.exists() or process.poll() is not None, "beat to touch its file", within_s=120
        )
        assert process.poll() is None, (tmp_path / "log").read_text()
    finally:
        process.terminate()
        process.wait(60)
