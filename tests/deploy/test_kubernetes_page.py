"""What ``docs/kubernetes.md`` and the examples name exists: values, keys of the Secret, workloads, files."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from controlplane.alerts.people.upgrades import MAX_MINUTES
from controlplane.api.http.body_limit import MAX_BODY, MAX_OF_PLAN
from controlplane.checks import VARIABLES
from controlplane.gateway.settings import GatewaySettings
from controlplane.management.commands.web import server_config
from tests.controlplane.processes.test_settings import django
from tests.deploy.manifests import CASES, EXAMPLES, PARTS, VERSIONS, load, manifests, problems, process
from tests.deploy.test_chart_files import SCHEMA, merged
from tools.render_chart import CHART, ROOT

PAGE = (ROOT / "docs/kubernetes.md").read_text()
KEYS = set(yaml.safe_load((CHART / "values.yaml").read_text())["secrets"]["keys"].values())
WORKLOADS = {"deploy": "Deployment", "statefulset": "StatefulSet", "job": "Job"}


def page_values() -> Any:
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return yaml.safe_load(block)


def test_the_values_of_the_page_are_valid() -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(merged(page_values()))


def secrets_of_the_manifests() -> dict[str, set[str]]:
    """Name of each Secret -> the keys that some process reads."""
    found: dict[str, set[str]] = {}
    for part in PARTS:
        for secret, key in process("plain", part).secret_files.values():
            found.setdefault(secret, set()).add(key)
    return found


def test_the_secrets_of_the_page_have_the_keys_that_the_chart_reads() -> None:
    commands = re.findall(
        r"create secret generic ([\w-]+) ((?:.*\\\n)*.*)", PAGE.replace("kubectl", "\nkubectl")
    )
    found = {name: set(re.findall(r"--from-(?:file|literal)=([\w-]+)", keys)) for name, keys in commands}
    assert found == secrets_of_the_manifests()
    assert set().union(*found.values()) == KEYS
    assert page_values()["secrets"] == {"name": "fuseboard", "metricsName": "fuseboard-metrics"}


def test_the_secrets_that_the_page_makes_are_long_enough_and_end_without_a_line_break(tmp_path: Path) -> None:
    lines = re.findall(r"^python3 (-c .*) > ([\w-]+)$", PAGE, re.MULTILINE)
    assert {file for _, file in lines} == {"secret-key", "metrics-token"}
    for words, file in lines:
        subprocess.run(["sh", "-euc", f'"{sys.executable}" {words} > {file}'], cwd=tmp_path, check=True)
        assert re.fullmatch(r"[\w-]{64}", (tmp_path / file).read_text())


def test_a_worker_has_what_check_deploy_asks_for_and_no_other_process_has(tmp_path: Path) -> None:
    """The page says to run it there. Each other one lacks a secret, which it would report."""
    of_parts = {part: {name for name, _ in process("plain", part).secret_files.items()} for part in PARTS}
    assert all(of_parts[part] < of_parts["worker"] for part in set(PARTS) - {"worker"})
    secret = {
        "database-url": "postgres://fuseboard:x@db.example.com/fuseboard?sslmode=verify-full",
        "redis-url": "rediss://control:x@limits.example.com:6379/0",
        "broker-url": "rediss://:x@broker.example.com:6379/0",
        "secret-key": "k" * 25 + "0123456789" * 5,
        "metrics-token": "the token of the scraper",
    }
    for name in of_parts["worker"]:
        (tmp_path / name).write_text(secret[name])
    variables = {
        name: value.replace("/run/secrets/fuseboard", str(tmp_path))
        for name, value in process("plain", "worker").environment.items()
    }
    done = django(
        "check", "--deploy", "--fail-level", "INFO", **variables, FUSEBOARD_DATA_DIR=str(tmp_path / "data")
    )
    assert done.stdout.startswith("System check identified no issues"), done.stderr


def test_every_workload_that_the_page_names_exists() -> None:
    named = set(re.findall(r"\b(deploy|statefulset|job)[/ ](fuseboard-\w+)", PAGE))
    assert len(named) >= 5
    existing = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests("plain")}
    assert {(WORKLOADS[kind], name) for kind, name in named} <= existing


def test_every_file_that_the_page_names_exists() -> None:
    named = set(re.findall(r"\b(?:deploy|tests)/[\w./-]*\w", PAGE)) - {"deploy/fuseboard-web"}
    named = {name for name in named if not name.startswith("deploy/fuseboard-")}
    assert len(named) >= 10
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_the_page_names_the_versions_whose_schemas_are_here() -> None:
    (row,) = (line for line in PAGE.splitlines() if line.startswith("| Manifests follow the schemas"))
    assert tuple(re.findall(r"\d+\.\d+\.\d+", row)) == VERSIONS
    oldest = VERSIONS[0].rpartition(".")[0]
    assert f"* Kubernetes {oldest} or newer" in PAGE
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"] == f">={oldest}.0-0"


@pytest.mark.parametrize("part", PARTS)
def test_the_table_of_processes_is_that_of_the_manifests(part: str) -> None:
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| {part} |"))
    _, _, kind, pods, ready, writes, _ = (cell.strip() for cell in row.split("|"))
    found = process("plain", part)
    assert found.workload["kind"] == kind
    assert str(found.workload["spec"].get("replicas", 1)) == re.findall(r"\d+", pods)[0]
    assert set(re.findall(r"`(/[^`]+)`", writes)) == set(found.writable)
    probe = found.container.get("readinessProbe", {}).get("httpGet", {}).get("path")
    assert re.findall(r"`(/[^`]+)`", ready) == ([probe] if probe else [])


def test_the_times_of_the_page_are_those_of_the_manifests() -> None:
    for part in ("web", "gateway"):
        seconds = process("plain", part).container["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert f"go on for {seconds} s after" in PAGE
    # Helm must wait for longer than the job may take.
    minutes = process("plain", "migrate").workload["spec"]["activeDeadlineSeconds"] // 60
    assert [int(found) > minutes for found in re.findall(r"--timeout (\d+)m", PAGE)] == [True, True]
    assert f"--for=jsonpath='{{.status.conditions}}' --timeout={minutes + 1}m job/fuseboard-migrate" in PAGE
    # A long migration must not outlive the time in which nobody is called.
    (muted,) = re.findall(r"begin_upgrade --for (\d+)m", PAGE)
    assert minutes <= int(muted) <= MAX_MINUTES
    assert f"for at most {minutes} minutes" in PAGE


def test_the_page_goes_on_only_after_a_migration_that_succeeded() -> None:
    """Waiting for `complete` alone takes an hour after a job that has failed."""
    (commands,) = re.findall(
        r"^```sh\n(.*deploy/plain/fuseboard\.yaml)\n```$", PAGE, re.MULTILINE | re.DOTALL
    )
    lines = commands.splitlines()[-4:]
    conditions = [re.findall(r"wait --for=(\S+)", line) for line in lines]
    assert conditions == [[], ["jsonpath='{.status.conditions}'"], ["condition=complete"], []]


def test_the_image_of_the_page_is_that_of_the_chart() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert re.findall(r"--tag (\S+) ", PAGE) == [
        f"{page_values()['image']['repository']}:{chart['appVersion']}"
    ]


def test_the_page_names_what_must_be_replaced_without_helm() -> None:
    assert f"`{process('plain', 'web').environment['FUSEBOARD_PROXIES']}`" in PAGE
    text = "\n".join(path.read_text() for path in CASES["plain"])
    namespaces = set(re.findall(r"kubernetes\.io/metadata\.name: ([\w-]+)", text))
    assert namespaces == {"ingress-nginx", "monitoring"}
    assert all(f"`{name}`" in PAGE for name in namespaces)


async def nothing(*_: Any) -> None:
    """An application that is never asked."""


def test_open_pages_are_not_silent_for_as_long_as_the_ingress_waits() -> None:
    """Uvicorn sends pings by itself, with this kind of WebSockets too."""
    (ping, silent) = map(int, re.findall(r"ping each (\d+) s\. That is less than the\s+(\d+) s", PAGE)[0])
    assert server_config(nothing).ws_ping_interval == ping < silent


def test_helm_waits_for_what_the_next_command_needs() -> None:
    """A pod for `exec`, and all processes replaced before alerts are sent again."""
    commands = re.findall(r"^helm upgrade .*", PAGE, re.MULTILINE)
    assert ["--wait" in command.split() for command in commands] == [True, True]


def test_every_command_of_the_page_names_the_namespace() -> None:
    """Without it, Helm and kubectl look into another one."""
    commands = re.findall(r"(?:^|`)((?:kubectl|helm) [^`\n]*)", PAGE, re.MULTILINE)
    # The row about what was not tried has the words `helm upgrade`.
    commands = [found for found in commands if found != "helm upgrade"]
    assert len(commands) >= 15
    elsewhere = [found for found in commands if "--namespace fuseboard" not in found]
    assert elsewhere == ["kubectl create namespace fuseboard"]


def test_the_files_with_secrets_do_not_stay_in_the_checkout() -> None:
    """Nobody else of the machine reads them meanwhile."""
    (block,) = re.findall(r"^```sh\n(kubectl create namespace.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    made = re.findall(r" > ([\w-]+)$", block, re.MULTILINE)
    lines = block.splitlines()
    assert lines[-1] == f"rm {' '.join(made)}"
    assert lines.index("umask 077") < next(number for number, line in enumerate(lines) if " > " in line)


def test_the_page_leads_the_host_to_web_where_no_manifest_does() -> None:
    assert not [manifest for manifest in manifests("plain") if manifest["kind"] == "Ingress"]
    (port,) = (
        manifest["spec"]["ports"][0]["port"]
        for manifest in manifests("plain")
        if (manifest["kind"], manifest["metadata"]["name"]) == ("Service", "fuseboard-web")
    )
    assert f"port {port} of the Service `fuseboard-web`" in PAGE


def test_selectors_of_runbooks_find_pods_of_the_chart() -> None:
    texts = "\n".join(path.read_text() for path in sorted((ROOT / "docs/runbooks").glob("*.md")))
    found = re.findall(r"kubectl[^`\n]* (?:-l|--selector)[ =](\S+?)`", texts)
    assert found
    labels = [set(process("plain", part).labels.items()) for part in PARTS]
    for selector in found:
        wanted = {tuple(label.split("=")) for label in selector.split(",")}
        assert any(wanted <= each for each in labels), selector


def test_the_page_removes_the_claims_of_gateways() -> None:
    """A claim has the labels of its selector."""
    (label,) = re.findall(r"delete pvc --selector (\S+)", PAGE)
    name, _, value = label.partition("=")
    gateways = process("plain", "gateway").workload["spec"]
    assert gateways["volumeClaimTemplates"]
    assert gateways["selector"]["matchLabels"][name] == value


def test_the_last_job_stays_for_the_time_of_the_page() -> None:
    job = process("plain", "migrate").workload
    # Without a policy for its end, Helm leaves it.
    assert job["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation"
    assert job["spec"]["ttlSecondsAfterFinished"] == 24 * 3600
    assert "Helm keeps the last job, which Kubernetes deletes after a day" in PAGE


def test_the_page_lets_the_largest_body_through_the_ingress() -> None:
    passes = f"{MAX_OF_PLAN // MAX_BODY}m"
    assert f"`nginx.ingress.kubernetes.io/proxy-body-size: {passes}`" in PAGE


def test_prometheus_finds_the_ports_of_the_page() -> None:
    for part, name in (("web", "http"), ("gateway", "http"), ("worker", "metrics")):
        assert [port["name"] for port in process("plain", part).container["ports"]] == [name]
    assert "the ports `http` of web and gateway and `metrics` of the worker" in PAGE


def test_gateways_of_the_page_bear_the_heartbeats_of_their_pods() -> None:
    """Each process takes a number of heartbeats per second, and then pods send them less often."""
    (pods,) = re.findall(r"divided by\s+([\d,]+), and one more", PAGE)
    defaults = GatewaySettings()
    assert int(pods.replace(",", "")) * 1_000 / defaults.beat_ms <= 0.8 * defaults.beats_per_s


#: Its module cannot be had, so this kind has no schema here. The page says that the example is not tried.
WITHOUT_SCHEMA = {"cloudnative-pg.yaml": "postgresql.cnpg.io/v1 Cluster"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_an_example_follows_the_schema_of_its_kind(path: Path) -> None:
    for manifest in load(path):
        kind = f"{manifest['apiVersion']} {manifest['kind']}"
        if WITHOUT_SCHEMA.get(path.name) == kind:
            continue
        for version in VERSIONS:
            assert problems(manifest, version) == []


@pytest.mark.parametrize("name", ["external-secret", "keda", "pod-monitor"])
def test_a_schema_of_others_refuses_a_mistake(name: str) -> None:
    manifest, *_ = load(EXAMPLES / f"{name}.yaml")
    for field in manifest["spec"]:
        spec = {f"{key}s" if key == field else key: value for key, value in manifest["spec"].items()}
        assert problems(manifest | {"spec": spec}, VERSIONS[0]) != []


def test_the_example_of_a_service_reads_what_an_agent_reads() -> None:
    (service,) = load(EXAMPLES / "application.yaml")
    pod = service["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    known = {f"FUSEBOARD_{name}" for name in VARIABLES}
    variables = {variable["name"]: variable.get("value", "") for variable in container["env"]}
    assert all(name in known or name.removesuffix("_FILE") in known for name in variables)
    (gateway,) = (
        manifest
        for manifest in manifests("plain")
        if (manifest["kind"], manifest["metadata"]["name"]) == ("Service", "fuseboard-gateway")
    )
    port = gateway["spec"]["ports"][0]["port"]
    assert variables["FUSEBOARD_URL"] == f"http://fuseboard-gateway.fuseboard:{port}"
    assert variables["FUSEBOARD_URL"] in PAGE
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    for name in ("FUSEBOARD_TOKEN_FILE", "FUSEBOARD_REDIS_URL_FILE"):
        assert variables[name].rpartition("/")[0] in mounts
    assert variables["FUSEBOARD_STATE_DIR"] in mounts


def test_the_example_of_external_secrets_makes_the_secrets_of_the_page() -> None:
    made = {
        secret["spec"]["target"]["name"]: {entry["secretKey"] for entry in secret["spec"]["data"]}
        for secret in load(EXAMPLES / "external-secret.yaml")
    }
    assert made == secrets_of_the_manifests()


def test_the_example_of_keda_scales_web_and_asks_for_a_metric_that_exists() -> None:
    (scaled,) = load(EXAMPLES / "keda.yaml")
    target = scaled["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (
        "Deployment",
        process("plain", "web").workload["metadata"]["name"],
    )
    (metric,) = re.findall(r"fuseboard_\w+", scaled["spec"]["triggers"][0]["metadata"]["query"])
    assert f"`{metric}`" in (ROOT / "docs/metrics.md").read_text()


def test_the_example_of_prometheus_finds_every_port_and_its_token() -> None:
    (monitor,) = load(EXAMPLES / "pod-monitor.yaml")
    selector = monitor["spec"]["selector"]["matchLabels"]
    endpoints = monitor["spec"]["podMetricsEndpoints"]
    serving = [process("plain", part) for part in ("web", "gateway", "worker")]
    assert all(selector.items() <= found.labels.items() for found in serving)
    ports = {port["name"] for found in serving for port in found.container["ports"]}
    assert {endpoint["port"] for endpoint in endpoints} == ports
    for endpoint in endpoints:
        credentials = endpoint["authorization"]["credentials"]
        assert credentials["name"] == page_values()["secrets"]["metricsName"]
        # The operator reads all of it.
        assert secrets_of_the_manifests()[credentials["name"]] == {credentials["key"]}
