"""``unleash-server`` from npm beside the gateway, where node and npm are installed."""

import http.client
import json
import os
import re
import shutil
import subprocess
import tempfile

import psycopg

from control_plane.stand import PROJECT, Skip

VERSION = "7.5.1"
FOLDER = PROJECT / ".venv-bench" / "unleash"
#: The first time it is downloaded.
INSTALL_S = 180
FLAGS = 12


def install():
    """The folder of the package. Raises ``Skip`` with the reason."""
    package = FOLDER / "node_modules" / "unleash-server"
    if not shutil.which("node") or not shutil.which("npm"):
        raise Skip("node or npm is not installed")
    if not (package / "package.json").is_file():
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--omit=dev", "--ignore-scripts"]
        try:
            subprocess.run(
                [*command, f"unleash-server@{VERSION}"],
                cwd=FOLDER,
                timeout=INSTALL_S,
                check=True,
                capture_output=True,
            )
        except subprocess.TimeoutExpired:
            raise Skip(f"npm did not install it within {INSTALL_S} s") from None
        except subprocess.CalledProcessError as error:
            lines = error.stderr.decode(errors="replace").strip().splitlines()
            raise Skip(f"npm could not install it: {lines[-1] if lines else 'no reason given'}") from None
    return package


def start_unleash(stack):
    """The process and its port. Raises ``Skip``."""
    package = install()
    url = os.environ["DATABASE_URL"]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE unleash")
    environment = os.environ | {
        "NODE_ENV": "production",
        "UNLEASH_DATABASE_URL": re.sub(r"/[^/?]*(\?|$)", r"/unleash\1", url, count=0)
        if "?" not in url
        else re.sub(r"/[^/?]*\?", "/unleash?", url),
    }
    script = PROJECT / "tools" / "bench" / "control_plane" / "unleash.js"
    # A file, because a pipe that is not read fills up and blocks the process.
    errors = stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115 - the stack closes it
    process = stack.enter_context(
        subprocess.Popen(
            ["node", str(script), str(package)],
            env=environment,
            cwd=FOLDER,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    )
    stack.callback(process.kill)
    while line := process.stdout.readline():
        if found := re.search(r"Serving .*:(\d+)/", line):
            port = int(found[1])
            _add_flags(port)
            return process, port
    errors.seek(0)
    raise Skip(f"it did not start: {errors.read().strip().splitlines()[-1:]}")


def poll(port):
    """A client's poll as bytes on the wire, which is answered 304."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/api/client/features", headers={"Authorization": "*:development.bench"})
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise Skip(f"its features were answered {answer.status}")
    lines = (
        "GET /api/client/features HTTP/1.1",
        "Host: 127.0.0.1",
        "Authorization: *:development.bench",
        "UNLEASH-APPNAME: bench",
        f"If-None-Match: {answer.headers['etag']}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def _add_flags(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for number in range(FLAGS):
        body = json.dumps({"name": f"flag-{number}", "type": "release"})
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/api/admin/projects/default/features", body, headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 201:
            raise Skip(f"a flag was answered {answer.status}")
