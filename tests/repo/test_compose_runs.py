"""Every service of docker-compose.yml runs: as a user without rights, where nothing can be written."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import redis
from django.utils import timezone

from controlplane.accounts import tokens
from controlplane.embedded.children import free_port, last_lines
from controlplane.embedded.valkey import binary
from tests.controlplane.web_process import database_url
from tests.deploy import pods
from tests.deploy.manifests import PARTS
from tests.people import SEED
from tests.repo.composed import Machine, as_store, as_user, folders_of_image
from tests.repo.test_compose import OURS, SERVICES
from tests.waiting import wait_until

LISTENING = {"web": 8000, "gateway": 8001, "vendor": 8080, "shop-1": 8080, "load": 8080}
#: Containers of Kubernetes that listen.
PODS = ("pod-web", "pod-gateway", "pod-worker")
#: Copies of one service.
SAME = {"shop-2", "shop-3"}
SECRETS = {
    "LIMITS_PASSWORD": "limits-of-the-control-plane",
    "AGENT_PASSWORD": "limits-of-the-agents-of-pods",
    "BROKER_PASSWORD": "the-queue-of-the-workers",
    "FUSEBOARD_SECRET_KEY": "signs-what-this-test-runs-and-nothing-else-at-all",
}


@pytest.fixture
def machine() -> Iterator[Machine]:
    user = as_user()
    if user is None:
        pytest.skip("root needs setpriv to start a process as another user")
    folder = Path(tempfile.mkdtemp(prefix="fuseboard-compose-"))
    folder.chmod(0o755)
    ports = {name: free_port() for name in [*LISTENING, "gateway-2", *PODS, "limits", "broker"]}
    database = urlsplit(database_url())
    known = {f"{name}:{port}": f"127.0.0.1:{ports[name]}" for name, port in LISTENING.items()}
    known |= {"limits:6379": f"127.0.0.1:{ports['limits']}", "broker:6379": f"127.0.0.1:{ports['broker']}"}
    # The tests' Postgres has a user and a database of its own.
    there = f"fuseboard:{SECRETS.get('POSTGRES_PASSWORD', '')}@postgres:5432/fuseboard"
    known[there] = f"{database.netloc}{database.path}"
    modes = {path: mode for path, mode in folders_of_image().items() if path.startswith("/var/")}
    volumes = {path: folder / "volumes" / Path(path).name for path in modes}
    machine = Machine(folder, user, SECRETS | {"POSTGRES_PASSWORD": ""}, known, volumes, ports)
    for path, mode in modes.items():
        machine.own(volumes[path], mode)
    try:
        yield machine
    finally:
        try:
            machine.stop()
        finally:
            for store in machine.stores:
                store.kill()
                store.wait()
        for path in folder.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
        shutil.rmtree(folder)


def _start_stores(machine: Machine) -> None:
    """``limits`` with the file that ``acl`` has written, and ``broker``: as the user of their image."""
    users = machine.volumes["/var/lib/redis-users"] / "users.acl"
    # This user may not look into the checkout.
    server = shutil.copy(binary(), machine.folder / "valkey-server")
    for name, settings in (
        ("limits", f"aclfile {users}"),
        ("broker", f"requirepass {SECRETS['BROKER_PASSWORD']}"),
    ):
        port = machine.ports[name]
        log = machine.log_of(name).open("wb")
        process = subprocess.Popen(
            [*as_store(), server, "-"], cwd="/", stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
        )
        log.close()
        machine.stores.append(process)
        text = f'bind 127.0.0.1\nport {port}\nsave ""\nmaxmemory-policy noeviction\n'
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(f"{text}{settings}\n".encode())
        wait_until(lambda name=name, process=process: _listens(machine, name, process), f"{name} to listen")


def _listens(machine: Machine, name: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, f"{name}: {last_lines(machine.log_of(name))}"
    try:
        redis.Redis(port=machine.ports[name]).ping()
    except redis.AuthenticationError:
        return True
    except redis.ConnectionError:
        return False
    return True


def _is_healthy(machine: Machine, name: str, path: str = "/healthz") -> None:
    url = f"http://127.0.0.1:{machine.ports[name]}{path}"

    def look() -> bool:
        assert machine.running[name].poll() is None, machine.log_of(name).read_text()[-3000:]
        try:
            return httpx.get(url, timeout=5.0, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    wait_until(look, f"{name} to be healthy", within_s=300.0)


# It starts 17 processes, with Django each.
@pytest.mark.timeout(1800)
def test_every_service_runs_without_rights_on_a_read_only_tree(
    transactional_db: Any, machine: Machine
) -> None:
    """With the same command and environment as its container, apart from addresses."""
    ran = set()

    def begin(name: str, **replaced: str) -> None:
        ran.add(name)
        port = str(LISTENING.get(name, ""))
        machine.begin(name, **({port: str(machine.ports[name])} if port else {}), **replaced)

    begin("acl")
    machine.ends_well("acl")
    _start_stores(machine)
    begin("migrate")
    machine.ends_well("migrate")
    begin("web")
    begin("gateway")
    machine.begin("gateway", copy="gateway-2", **{"8001": str(machine.ports["gateway-2"])})
    begin("worker", FUSEBOARD_WORKER_METRICS_PORT="127.0.0.1:0")
    begin("beat")
    for name in ("web", "gateway", "gateway-2"):
        _is_healthy(machine, name)
    machine.says("worker", "ready")
    _upload(machine)
    _pods_run(machine)

    begin("enrol")
    machine.ends_well("enrol")
    begin("vendor")
    _is_healthy(machine, "vendor", "/control")
    begin("shop-1")
    _is_healthy(machine, "shop-1")
    # The other two shops are copies of the first.
    machine.addresses |= {f"{name}:8080": machine.addresses["shop-1:8080"] for name in SAME}
    begin("load")
    _is_healthy(machine, "load", "/figures")
    machine.all_run()
    # Gateways share a volume, and no folder of it.
    assert len(list((machine.volumes["/var/lib/fuseboard"] / "oncall").iterdir())) == 2
    assert ran | SAME == set(OURS)

    machine.stop()
    assert machine.written_elsewhere() == []
    # ``build`` took the right to write from each file, so a new one would have it.
    for app in machine.apps.values():
        assert {path.stat().st_mode & 0o222 for path in app.rglob("*")} == {0}


def _pods_run(machine: Machine) -> None:
    """The containers of ``deploy/plain`` too: their commands are those of services, their environment is not.

    They share what has taken the time: the stores, the tables, and the files of the image.
    """
    environment = SERVICES["web"]["environment"]
    keys = {
        "DATABASE_URL": "database-url",
        "FUSEBOARD_REDIS_URL": "redis-url",
        "FUSEBOARD_BROKER_URL": "broker-url",
        "FUSEBOARD_SECRET_KEY": "secret-key",
    }
    secret = {key: machine.here(environment[name]) for name, key in keys.items()}
    secrets = {"fuseboard": secret, "fuseboard-metrics": {"metrics-token": "the token of the scraper"}}
    machine.addresses |= pods.gateway_addresses(machine)
    begun = ("web", "gateway", "worker", "beat", "migrate")
    assert begun == PARTS
    for part in begun:
        pods.begin(machine, part, secrets)
    machine.ends_well("pod-migrate")
    for part in ("web", "gateway", "worker"):
        for url in pods.probes(machine, part):
            wait_until(lambda url=url: _answers(machine, url), f"{url} to answer", within_s=300.0)
    healthy = pods.beat_is_healthy(machine)
    wait_until(
        lambda: subprocess.run(healthy, check=False).returncode == 0, "beat to be healthy", within_s=300.0
    )
    machine.all_run()
    machine.stop(*(f"pod-{part}" for part in begun if part != "migrate"))


def _answers(machine: Machine, url: str) -> bool:
    machine.all_run()
    try:
        # Kubelets name the address of the pod.
        return httpx.get(url, headers={"Host": "10.1.2.3"}, timeout=5.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _upload(machine: Machine) -> None:
    """A file that Django writes to TMPDIR, because it is larger than 2.5 MiB."""
    token = tokens.create_api_token(
        name="import",
        role="admin",
        expires_at=timezone.now() + timedelta(hours=1),
        reason="for a test",
        actor=SEED,
    )
    rows = "".join(f"  tenant-{number}: {{tier: pro}}\n" for number in range(100))
    answer = httpx.post(
        f"http://127.0.0.1:{machine.ports['web']}/api/v1/production/plan",
        content=f"tenants:\n{rows}" + "# a comment\n" * 300_000,
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/yaml", "Host": "localhost"},
        timeout=120.0,
        trust_env=False,
    )
    assert answer.status_code == 200, (answer.text, machine.log_of("web").read_text()[-3000:])
    assert answer.json()["changes"] == 100


def test_the_services_that_listen_are_those_of_the_file() -> None:
    def port_of(service: Any) -> int:
        words = service["command"]
        return int(words[words.index("--port") + 1]) if "--port" in words else 0

    listening = {name: port_of(SERVICES[name]) for name in OURS if port_of(SERVICES[name])}
    assert {name: port for name, port in listening.items() if name not in SAME} == LISTENING
