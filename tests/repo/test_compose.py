"""docker-compose.yml says nothing that Compose would refuse, and names only what exists."""

import importlib.util
import json
import re
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import yaml
from django.core.management import get_commands

from controlplane.checks import VARIABLES

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict] = COMPOSE["services"]
OURS = sorted(name for name, service in SERVICES.items() if "build" in service)


def _schema() -> dict:
    """The schema of the compose-spec project, as check-jsonschema carries it along."""
    file = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    return json.loads(file.read_text())


def test_it_follows_the_compose_schema():
    jsonschema.validate(COMPOSE, _schema())


def test_the_schema_would_refuse_a_mistake():
    with pytest.raises(jsonschema.ValidationError, match="comand"):
        jsonschema.validate({"services": {"web": {"image": "x", "comand": "y"}}}, _schema())


def test_every_process_of_the_product_is_there():
    assert {"postgres", "limits", "broker", "migrate", "web", "gateway", "worker", "beat"} <= set(SERVICES)


@pytest.mark.parametrize("name", OURS)
def test_the_command_of_a_service_exists(name):
    _check_command(SERVICES[name]["command"])


def _check_command(command: list[str]) -> None:
    match command:
        case ["python", "manage.py", name, *_]:
            assert name in get_commands()
        case ["sh", "-c", script]:
            for part in script.split(" && "):
                _check_command(part.split())
        case ["python", "-m", module, *_]:
            assert importlib.util.find_spec(module) is not None
        case ["celery", "-A", module, ("worker" | "beat"), *_]:
            assert importlib.import_module(f"{module}.celery").app.main == module
        case ["uvicorn", *_]:
            target = next(word for word in command if re.fullmatch(r"[\w.]+:\w+", word))
            module, _, attribute = target.partition(":")
            assert callable(getattr(importlib.import_module(module), attribute))
        case _:
            raise AssertionError(f"a command this test does not know: {command}")


@pytest.mark.parametrize("name", OURS)
def test_the_image_of_a_service_has_its_target(name):
    targets = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert SERVICES[name]["build"]["target"] in targets


@pytest.mark.parametrize("name", OURS)
def test_services_run_unprivileged_on_a_read_only_disk(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "privileged" not in service
    for stage in ("controlplane", "pod"):
        body = re.search(rf"AS {stage}\n(.*?)(?:\nFROM|\Z)", (ROOT / "Dockerfile").read_text(), re.DOTALL)
        assert "USER fuseboard" in body.group(1)


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_has_its_own_resource_limits(name):
    limits = SERVICES[name]["deploy"]["resources"]["limits"]
    assert {"cpus", "memory"} <= set(limits)


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"acl", "migrate", "beat", "enrol", "load"}))
def test_every_listening_service_has_a_health_check(name):
    assert SERVICES[name]["healthcheck"]["test"]


def test_no_secret_has_a_default():
    for variable, default in re.findall(
        r"\$\{(\w+)(:?[-?][^}]*)?\}", (ROOT / "docker-compose.yml").read_text()
    ):
        # There may be no other environment.
        if re.search(r"PASSWORD|SECRET|TOKEN", variable) and variable != "MORE_AGENT_PASSWORDS":
            assert default.startswith(":?"), f"{variable} may be empty"


def test_the_example_names_every_variable_and_holds_no_secret():
    asked = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))
    # The name that FUSEBOARD_ALLOWED_HOSTS had in this file until 0.2.
    asked.remove("FUSEBOARD_HOST")
    example = dict(re.findall(r"^#? ?(\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert asked <= set(example)
    # The others are variables of the control plane, which reads the file.
    known = {f"FUSEBOARD_{name}" for name in VARIABLES}
    assert set(example) - asked <= known
    assert [name for name in example if re.search(r"PASSWORD|SECRET|TOKEN", name) and example[name]] == []


@pytest.mark.parametrize("name", ["web", "gateway", "worker"])
def test_there_can_be_several_of_a_service(name):
    """`docker compose up --scale gateway=2`: no two have one name, or one port."""
    assert not {"hostname", "container_name"} & set(SERVICES[name])
    assert all(port.startswith("${") for port in SERVICES[name].get("ports", []))


def test_limits_and_broker_are_two_servers_that_never_evict():
    urls = SERVICES["web"]["environment"]
    assert "@limits:" in urls["FUSEBOARD_REDIS_URL"]
    assert "@broker:" in urls["FUSEBOARD_BROKER_URL"]
    pods = SERVICES["shop-1"]["environment"]["FUSEBOARD_REDIS_URL"]
    assert pods.startswith("redis://agent-production:")
    assert urls["FUSEBOARD_REDIS_URL"].startswith("redis://control:")
    assert "--aclfile" in SERVICES["limits"]["command"]
    for name in ("limits", "broker"):
        assert "--maxmemory-policy noeviction" in " ".join(SERVICES[name]["command"])


def test_volumes_are_declared_and_only_loopback_is_published():
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in COMPOSE["volumes"], name
        for port in service.get("ports", []):
            assert re.match(r"(\$\{[A-Z_]+:-)?127\.0\.0\.1:", port), name


def _networks(name: str) -> set[str]:
    return set(SERVICES[name]["networks"])


def test_pods_see_neither_postgres_nor_the_queue():
    pods = {"vendor", "shop-1", "shop-2", "shop-3", "load"}
    for name in pods:
        for store in ("postgres", "broker"):
            assert not _networks(name) & _networks(store), name
    for name in ("shop-1", "shop-2", "shop-3"):
        assert _networks(name) & _networks("limits")
        assert _networks(name) & _networks("gateway")
        assert _networks(name) & _networks("vendor")


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_reaches_what_its_environment_names(name):
    """And has no network but those of this file: the default one would join all of them."""
    assert _networks(name) <= set(COMPOSE["networks"])
    environment = SERVICES[name].get("environment", {})
    for host in re.findall(r"(?:@|//)(postgres|limits|broker|gateway|vendor)\b", json.dumps(environment)):
        # Read by its settings, and never asked.
        if (name, host) not in {("acl", "postgres"), ("acl", "broker"), ("beat", "limits")}:
            assert _networks(name) & _networks(host), host


def test_only_one_network_reaches_other_hosts():
    open_ones = {name for name, options in COMPOSE["networks"].items() if not (options or {}).get("internal")}
    assert open_ones == {"outside"}
    reaching = {name for name in SERVICES if _networks(name) & open_ones}
    assert reaching == {"web", "gateway", "worker"}
    assert {name for name, service in SERVICES.items() if service.get("ports")} == reaching - {"worker"}


@pytest.mark.parametrize("name", OURS)
def test_a_read_only_service_has_a_folder_for_temporary_files(name):
    """Django writes a body of more than 2.5 MiB there, and answers 500 if there is none."""
    mounted = {mount.partition(":")[0]: mount for mount in SERVICES[name]["tmpfs"]}
    assert "size=" in mounted["/tmp"]  # noqa: S108
    assert re.search(r"^ENV .*\bTMPDIR=/tmp\b", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


def test_the_temporary_folder_of_web_takes_what_is_read_at_once():
    """A form is there twice: as it was received, and as the file in it."""
    from controlplane.api.http.body_limit import MAX_OF_PLAN
    from controlplane.api.http.large_bodies import MAX_AT_ONCE

    [mount] = [mount for mount in SERVICES["web"]["tmpfs"] if mount.startswith("/tmp:")]  # noqa: S108
    size = int(re.search(r"size=(\d+)m", mount).group(1)) * 1_048_576
    assert 2 * MAX_AT_ONCE * MAX_OF_PLAN < size < 512 * 1_048_576
