"""Services of docker-compose.yml as processes of this machine: their command, their environment, their
files, and a user who may write nowhere else than where their container may.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from controlplane.embedded.children import last_lines
from controlplane.installation import FOLDER as PROJECT
from tests.repo.test_compose import SERVICES
from tests.waiting import wait_until

#: As in the Dockerfile. A user who is not root cannot start a process as another.
USER = 10_001 if os.geteuid() == 0 else os.geteuid()
#: The user whom the entry points of Postgres and Valkey become: a container starts them as root.
STORE_USER = 999
_FOLDERS = re.compile(
    r"install --directory --owner fuseboard --mode (?P<mode>[0-7]{4}) (?P<paths>/[^\\\n&]+)"
)
_COPIED = re.compile(r"^COPY (?!--from)(?P<sources>.+) \S+$", re.MULTILINE)


def build(stage: str, folder: Path) -> Path:
    """What the Dockerfile copies to ``/app`` for this stage. Nothing in it can be written."""
    text = (PROJECT / "Dockerfile").read_text()
    found = re.search(rf"^FROM runtime AS {stage}\n(.*?)(?=^FROM|\Z)", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    app = folder / stage
    for copied in _COPIED.finditer(found[1]):
        for source in copied["sources"].split():
            if (PROJECT / source).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(PROJECT / source, app / source, ignore=ignored, dirs_exist_ok=True)
            else:
                (app / source).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(PROJECT / source, app / source)
    for name, value, command in re.findall(r"^RUN (?:(\w+)=(\S+) )?python (.+)$", found[1], re.MULTILINE):
        given = {name: value} if name else {}
        subprocess.run([sys.executable, *command.split()], cwd=app, env=_basis(app, app) | given, check=True)
    for path in [app, *app.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return app


def folders_of_image() -> dict[str, int]:
    """The folders that the Dockerfile makes, with their modes. Docker gives both to an empty volume."""
    found = _FOLDERS.finditer((PROJECT / "Dockerfile").read_text())
    return {path: int(one["mode"], 8) for one in found for path in one["paths"].split()}


def as_store() -> list[str]:
    """What runs a store as its image does: as a user of its own, without rights."""
    if os.geteuid() != 0:
        return []
    return [
        "setpriv",
        f"--reuid={STORE_USER}",
        f"--regid={STORE_USER}",
        "--clear-groups",
        "--bounding-set=-all",
    ]


def as_user() -> list[str] | None:
    """What runs a command as the user of the containers; ``None`` where nothing can.

    The user is in no group and has one right: to read. Python, or this checkout, may be where only root may
    look. Another caller than root runs it as itself, in files that it may not write.
    """
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    rights = "-all,+dac_read_search"
    user = [f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--ambient-caps=+dac_read_search"]
    return [setpriv, *user, f"--inh-caps={rights}", f"--bounding-set={rights}"] if setpriv else None


def as_first_process() -> list[str]:
    """What runs a command as process 1, as a container without an init does. Empty where nothing can."""
    words = ["unshare", "--pid", "--fork", "--kill-child"]
    tried = subprocess.run([*words, "true"], capture_output=True, check=False)
    return words if tried.returncode == 0 else []


def _basis(app: Path, commands: Path) -> dict[str, str]:
    """The environment of the image, and where this machine has what is installed in it."""
    installed = f"{PROJECT / 'agents'}:{sysconfig.get_path('purelib')}"
    path = {"PATH": f"{commands}:/usr/bin:/bin", "PYTHONPATH": f"{app}:{installed}"}
    return path | {"PYTHONDONTWRITEBYTECODE": "1"}


@dataclass
class Machine:
    """Where the services run: the names of hosts become ports of this machine."""

    folder: Path
    #: Words in front of each command.
    user: list[str]
    #: The values of ``.env``.
    secrets: Mapping[str, str]
    #: ``gateway:8001`` -> ``127.0.0.1:39001``
    addresses: dict[str, str]
    #: A folder in the container, without the ones in memory -> the folder on this machine.
    volumes: dict[str, Path]
    #: Name of a service, or of a store -> its port.
    ports: dict[str, int]
    stores: list[subprocess.Popen[bytes]] = field(default_factory=list)
    apps: dict[str, Path] = field(default_factory=dict)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def begin(self, name: str, *, copy: str = "", **replaced: str) -> subprocess.Popen[bytes]:
        """Start a service. ``replaced`` are words of its command, or variables, that differ here.

        ``copy`` is the name of another container of it, as ``--scale`` starts.
        """
        service = SERVICES[name]
        given = {**(self.secrets if "env_file" in service else {}), **service["environment"]}
        return self.start(copy or name, service | {"environment": given}, **replaced)

    def start(
        self, name: str, service: dict[str, Any], *, first: Sequence[str] = (), **replaced: str
    ) -> subprocess.Popen[bytes]:
        """As ``begin``, with the fields of the service. ``first`` are words in front of everything else."""
        stage = service["build"]["target"]
        if stage not in self.apps:
            self.apps[stage] = build(stage, self.folder)
        own = self.memory_of(name, service)
        environment = {key: self.here(str(value), own) for key, value in service["environment"].items()}
        command = [self.here(word, own) for word in service["command"]]
        command = [replaced.get(word, word) for word in command]
        environment |= {key: value for key, value in replaced.items() if key.isupper()}
        app = self.apps[stage]
        with self.log_of(name).open("wb") as log:
            self.running[name] = subprocess.Popen(
                [*first, *self.user, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=app,
                env=_basis(app, self._commands()) | {"TMPDIR": str(own["/tmp"])} | environment,  # noqa: S108
                start_new_session=True,
            )
        return self.running[name]

    def _commands(self) -> Path:
        """A folder with ``python`` and ``celery``."""
        folder = self.folder / "bin"
        if not folder.exists():
            folder.mkdir()
            (folder / "python").symlink_to(sys.executable)
            (folder / "celery").write_text('#!/bin/sh\nexec python -m celery "$@"\n')
            (folder / "celery").chmod(0o755)
        return folder

    def memory_of(self, name: str, service: dict[str, Any]) -> dict[str, Path]:
        """Its ``tmpfs``: a folder in the container -> a folder here, which only its user may open."""
        found = {}
        for mounted in service["tmpfs"]:
            inside, _, options = mounted.partition(":")
            assert "uid=10001" in options
            assert "mode=0700" in options
            found[inside] = self.folder / "memory" / name / inside.strip("/").replace("/", "-")
            self.own(found[inside])
        return found

    def own(self, folder: Path, mode: int = 0o700) -> Path:
        if not folder.exists():
            folder.mkdir(parents=True)
            os.chown(folder, USER, USER if os.geteuid() == 0 else -1)
            folder.chmod(mode)
        return folder

    def here(self, word: str, memory: Mapping[str, Path] | None = None) -> str:
        """A word of the file, as Compose fills it in, for this machine."""

        def filled(match: re.Match[str]) -> str:
            return self.secrets.get(match[1], (match[2] or "").removeprefix(":-").removeprefix("-"))

        # A default may have a variable in it: the inner one first.
        for _ in range(2):
            word = re.sub(r"\$\{(\w+)(:?-[^${}]*|:\?[^${}]*)?\}", filled, word)
        for there, here in self.addresses.items():
            word = word.replace(there, here)
        for inside, folder in {**self.volumes, **(memory or {})}.items():
            if re.match(rf"{inside}(?=/|$)", word):
                return str(folder) + word.removeprefix(inside)
        return word

    def log_of(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def ends_well(self, name: str) -> None:
        """Wait for a service that runs once."""
        code = self.running.pop(name).wait(600)
        assert code == 0, f"{name}: {last_lines(self.log_of(name))}"

    def says(self, name: str, words: str) -> None:
        """Wait until its log has these words."""

        def look() -> bool:
            assert self.running[name].poll() is None, f"{name}: {last_lines(self.log_of(name))}"
            return words in self.log_of(name).read_text()

        wait_until(look, f"{name} to say {words!r}", within_s=300.0)

    def all_run(self) -> None:
        """Check that none has ended."""
        for name, process in self.running.items():
            assert process.poll() is None, f"{name}: {last_lines(self.log_of(name))}"

    def stop(self, *names: str) -> None:
        """Ask these to end, or all, and check that they do."""
        asked = {name: self.running.pop(name) for name in names or tuple(self.running)}
        for process in asked.values():
            if process.poll() is None:
                os.kill(_inner(process.pid), signal.SIGTERM)
        late = []
        for name, process in asked.items():
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                late.append(name)
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        assert not late

    def written_elsewhere(self) -> list[Path]:
        """Files of the services' user outside of what their containers may write."""
        if os.geteuid() != 0:
            return []  # They are this user's own files.
        allowed = [self.folder / "memory", *self.volumes.values()]
        looked_at = ["/tmp", "/var/tmp", "/dev/shm"]  # noqa: S108
        # Other tests make and remove folders meanwhile, which ``os.walk`` passes over.
        found = (
            Path(folder, name)
            for place in looked_at
            for folder, *names in os.walk(place)
            for name in chain(*names)
        )
        return [
            path
            for path in found
            if _owner(path) == USER
            and not any(path.is_relative_to(each) for each in allowed)
            and not _is_of_another_run(path, self.folder)
        ]


def _inner(pid: int) -> int:
    """The process that ``unshare`` has started, and otherwise the process itself."""
    if not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"unshare\0"):
        return pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid


def _is_of_another_run(path: Path, folder: Path) -> bool:
    """Whether this test, when it ran elsewhere on the machine or was killed, made the file."""
    prefix = folder.name.rpartition("-")[0]
    return any(each.startswith(prefix) and each != folder.name for each in path.parts)


def _owner(path: Path) -> int:
    try:
        return path.lstat().st_uid
    except FileNotFoundError:
        return -1
