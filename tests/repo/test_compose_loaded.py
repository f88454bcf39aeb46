"""docker-compose.yml as Compose's own loader reads it: who reaches whom, as which user, on which disk."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECRETS = {
    name: f"{name.lower()}-of-this-test"
    for name in (
        "POSTGRES_PASSWORD",
        "LIMITS_PASSWORD",
        "AGENT_PASSWORD",
        "BROKER_PASSWORD",
        "FUSEBOARD_SECRET_KEY",
    )
}


@dataclass(frozen=True)
class Reach:
    """What a service connects to: services of this file, and hosts elsewhere."""

    services: set[str] = field(default_factory=set)
    #: What it is that it calls elsewhere; empty if it calls nothing.
    elsewhere: str = ""
    #: Whether the image starts as root, and its entry point becomes a user of its own.
    store: bool = False


_CONTROL_PLANE = {"postgres", "limits", "broker"}
_SHOP = Reach({"limits", "gateway", "vendor"})
TABLE = {
    "postgres": Reach(store=True),
    "limits": Reach(store=True),
    "broker": Reach(store=True),
    "acl": Reach(),
    "migrate": Reach({"postgres", "limits"}),
    "web": Reach({*_CONTROL_PLANE, "gateway"}, elsewhere="the identity provider"),
    "gateway": Reach({"postgres", "limits"}, elsewhere="receivers of level 3, and the watchdog"),
    "worker": Reach(_CONTROL_PLANE, elsewhere="receivers, the watchdog, and the target of the audit"),
    "beat": Reach({"broker"}),
    "enrol": Reach({"postgres", "limits"}),
    "vendor": Reach(),
    "shop-1": _SHOP,
    "shop-2": _SHOP,
    "shop-3": _SHOP,
    "load": Reach({"shop-1", "shop-2", "shop-3"}),
}


def _load(
    build: Path, *, file: Path = ROOT / "docker-compose.yml", **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [build, file],
        capture_output=True,
        text=True,
        check=False,
        # No .env of this checkout.
        cwd=build.parent,
        env=variables,
    )


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed: it builds the loader of the Compose specification")
    built = tmp_path_factory.mktemp("compose") / "composeload"
    subprocess.run(
        [go, "build", "-o", built, "."], cwd=ROOT / "tests/repo/composeload", check=True, timeout=500
    )
    return built


@pytest.fixture(scope="module")
def project(loader: Path) -> Any:
    loaded = _load(loader, **SECRETS)
    assert loaded.returncode == 0, loaded.stderr
    return json.loads(loaded.stdout)


# The loader is built first.
pytestmark = pytest.mark.timeout(600)


def test_every_service_is_in_the_table(project: Any) -> None:
    assert set(project["services"]) == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_a_service_reaches_what_it_calls_and_no_other_host(project: Any, name: str) -> None:
    networks = set(project["services"][name]["networks"])
    for called in TABLE[name].services:
        assert networks & set(project["services"][called]["networks"]), called
    reaches = {network for network in networks if not project["networks"][network].get("internal")}
    assert bool(reaches) == bool(TABLE[name].elsewhere)


@pytest.mark.parametrize("name", TABLE)
def test_a_service_runs_as_a_user_on_a_disk_that_it_cannot_write(project: Any, name: str) -> None:
    service = project["services"][name]
    if TABLE[name].store:
        # Their entry points own their volumes and drop to a user of their own.
        assert "user" not in service
        return
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    stage = service["build"]["target"]
    [text] = re.findall(rf"AS {stage}\n(.*?)(?:\nFROM|\Z)", (ROOT / "Dockerfile").read_text(), re.DOTALL)
    assert "USER fuseboard" in text


def test_volumes_are_read_by_users_who_may(project: Any) -> None:
    """A volume that two users mount needs a folder of the image that the other user may enter."""
    from tests.repo.composed import folders_of_image

    mounted: dict[str, list[tuple[str, str]]] = {}
    for name, service in project["services"].items():
        for volume in service.get("volumes", ()):
            mounted.setdefault(volume["source"], []).append((name, volume["target"]))
    modes = folders_of_image()
    shared = {
        volume: places
        for volume, places in mounted.items()
        if len({TABLE[name].store for name, _ in places}) == 2
    }
    assert set(shared) == {"redis-users"}
    for places in shared.values():
        for name, target in places:
            assert TABLE[name].store or modes[target] & 0o005 == 0o005, name


def test_the_control_plane_gets_the_variables_of_the_file(loader: Path, tmp_path: Path) -> None:
    """Seven of fifty-six reached it."""
    file = Path(shutil.copy(ROOT / "docker-compose.yml", tmp_path))
    (tmp_path / ".env").write_text("FUSEBOARD_OIDC_NAME=Example\nFUSEBOARD_BEHIND_PROXY=1\n")
    loaded = _load(loader, file=file, **SECRETS, FUSEBOARD_HOST="board.example.com")
    assert loaded.returncode == 0, loaded.stderr
    services = json.loads(loaded.stdout)["services"]
    ours = {name for name, service in services.items() if service.get("image") == "fuseboard-controlplane"}
    assert {"acl", "migrate", "web", "gateway", "worker", "beat"} <= ours
    for name, service in services.items():
        found = service.get("environment", {})
        wanted = ("Example", "1") if name in ours else (None, None)
        assert (found.get("FUSEBOARD_OIDC_NAME"), found.get("FUSEBOARD_BEHIND_PROXY")) == wanted, name
    # The older name of a variable goes on to count.
    assert services["web"]["environment"]["FUSEBOARD_ALLOWED_HOSTS"] == "board.example.com"


def test_a_range_of_ports_has_room_for_several(loader: Path) -> None:
    loaded = _load(loader, **SECRETS, GATEWAY_PORTS="127.0.0.1:8001-8003")
    [port] = json.loads(loaded.stdout)["services"]["gateway"]["ports"]
    assert (port["host_ip"], port["published"], port["target"]) == ("127.0.0.1", "8001-8003", 8001)


@pytest.mark.parametrize("missing", SECRETS)
def test_a_missing_secret_is_named(loader: Path, missing: str) -> None:
    loaded = _load(loader, **{name: value for name, value in SECRETS.items() if name != missing})
    assert loaded.returncode != 0
    assert missing in loaded.stderr
    assert "set it in .env" in loaded.stderr
