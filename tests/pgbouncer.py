"""Debian's PgBouncer in transaction mode, with nothing set for Fuseboard."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psycopg

from controlplane.embedded.children import free_port
from controlplane.embedded.postgres import DATABASE, USER, Postgres
from tests.waiting import wait_until

#: It refuses to run as root.
_USER_ID = 65_534
_CONFIGURATION = """
[databases]
{database} = host=127.0.0.1 port={postgres} dbname={database}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 5
max_client_conn = 500
"""


class PgBouncer:
    """Between clients and ``postgres``; the port stays the same when ``start`` is called again."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        self._folder = Path(tempfile.mkdtemp(prefix="fuseboard-pgbouncer-"))
        self._folder.chmod(0o755)
        self.port = free_port()
        self.url = re.sub(r":\d+/", f":{self.port}/", postgres.url)
        text = _CONFIGURATION.format(
            database=DATABASE, postgres=postgres.port, port=self.port, folder=self._folder
        )
        (self._folder / "ini").write_text(text)
        (self._folder / "users").write_text(f'"{USER}" "{postgres.password}"\n')
        self.start()

    def start(self) -> None:
        program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        drop = (
            ["setpriv", f"--reuid={_USER_ID}", f"--regid={_USER_ID}", "--clear-groups"]
            if os.geteuid() == 0
            else []
        )
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*drop, program, str(self._folder / "ini")],
                cwd="/",
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        wait_until(self._answers, "PgBouncer to answer")

    def _answers(self) -> bool:
        assert self.process.poll() is None, (self._folder / "log").read_text()[-3000:]
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._folder)
