"""What the chart renders, as it is checked in: manifests follow the schemas of Kubernetes, and have what
``docs/kubernetes.md`` promises. Nothing here needs Helm.
"""

import copy
import re
from typing import Any

import pytest

from controlplane.checks import VARIABLES
from tests.deploy.manifests import CASES, PARTS, VERSIONS, manifests, of_kind, problems, process
from tests.repo.test_compose import SERVICES

LABELS = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}
SECRET = re.compile(r"SECRET|PASSWORD|TOKEN|(?:^DATABASE|_DATABASE|REDIS|BROKER|WATCHDOG)_URL")
each_case = pytest.mark.parametrize("case", CASES)
each_process = pytest.mark.parametrize("part", PARTS)


@pytest.mark.parametrize("version", VERSIONS)
@each_case
def test_every_manifest_follows_the_schema_of_its_kind(case: str, version: str) -> None:
    found = manifests(case)
    assert len(found) >= 15
    assert {manifest["metadata"]["name"]: problems(manifest, version) for manifest in found} == {
        manifest["metadata"]["name"]: [] for manifest in found
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"replica": 2}, "replica"),
        ({"replicas": "two"}, "replicas"),
        ({"selector": None}, "selector"),
    ],
)
def test_a_schema_refuses_a_mistake(version: str, change: dict[str, Any], named: str) -> None:
    wrong = copy.deepcopy(process("plain", "web").workload)
    wrong["spec"] |= change
    assert any(named in problem for problem in problems(wrong, version))


@each_process
def test_a_container_runs_the_command_of_its_service(part: str) -> None:
    for case in CASES:
        assert process(case, part).container["command"] == SERVICES[part]["command"]


@each_process
def test_a_container_has_the_variables_that_its_service_has_alone(part: str) -> None:
    """Those that all services have differ: here, a proxy speaks https, and secrets are files."""
    common = SERVICES["migrate"]["environment"]
    alone = {name: value for name, value in SERVICES[part]["environment"].items() if name not in common}
    assert alone.items() <= process("plain", part).environment.items()
    assert bool(alone) == (part in ("gateway", "worker", "beat"))


@each_case
@each_process
def test_every_variable_is_one_that_the_product_reads(case: str, part: str) -> None:
    known = {f"FUSEBOARD_{name}" for name in VARIABLES} | {"DATABASE_URL"}
    for name in process(case, part).environment:
        assert name in known or name.removesuffix("_FILE") in known


@each_case
@each_process
def test_no_secret_is_in_a_manifest(case: str, part: str) -> None:
    found = process(case, part)
    assert not list(of_kind(case, "Secret"))
    mounts = {mount["mountPath"]: mount for mount in found.container["volumeMounts"]}
    assert mounts["/run/secrets/fuseboard"]["readOnly"] is True
    assert "envFrom" not in found.container
    for name, value in found.environment.items():
        if SECRET.search(name):
            assert name.endswith("_FILE")
            assert re.fullmatch(r"/run/secrets/fuseboard/[\w-]+", value)
    # Readable by the group of the processes, and by no other.
    for volume in found.pod["volumes"]:
        if mounted := volume.get("secret") or volume.get("projected"):
            assert mounted["defaultMode"] == 0o440


#: The secrets that each process needs. A process that is taken over gives away no other.
SECRETS = {
    "web": {"DATABASE_URL", "FUSEBOARD_REDIS_URL", "FUSEBOARD_SECRET_KEY", "FUSEBOARD_METRICS_TOKEN"},
    "gateway": {"DATABASE_URL", "FUSEBOARD_REDIS_URL", "FUSEBOARD_SECRET_KEY", "FUSEBOARD_METRICS_TOKEN"},
    "worker": {
        "DATABASE_URL",
        "FUSEBOARD_REDIS_URL",
        "FUSEBOARD_BROKER_URL",
        "FUSEBOARD_SECRET_KEY",
        "FUSEBOARD_METRICS_TOKEN",
    },
    "beat": {"FUSEBOARD_BROKER_URL"},
    "migrate": {"DATABASE_URL", "FUSEBOARD_REDIS_URL", "FUSEBOARD_SECRET_KEY"},
}
#: Secrets that the full case has more, and the processes that need them.
MORE = {
    "FUSEBOARD_WATCHDOG_URL": {"web", "gateway", "worker"},
    "FUSEBOARD_OIDC_CLIENT_SECRET": {"web"},
}


@each_case
@each_process
def test_a_process_gets_the_secrets_that_it_needs_and_no_other(case: str, part: str) -> None:
    """``tests/repo/test_compose_runs.py`` starts each with these files only."""
    found = process(case, part)
    wanted = SECRETS[part]
    if case == "full":
        wanted = wanted - {"FUSEBOARD_METRICS_TOKEN"} | {name for name in MORE if part in MORE[name]}
    files = {
        name.removesuffix("_FILE"): value.removeprefix("/run/secrets/fuseboard/")
        for name, value in found.environment.items()
        if value.startswith("/run/secrets/fuseboard/")
    }
    assert set(files) == wanted
    assert set(files.values()) == set(found.secret_files)


def test_the_token_for_metrics_is_alone_in_its_secret() -> None:
    """Prometheus, or its operator, reads that Secret too."""
    for part in PARTS:
        secrets = {secret for secret, _ in process("plain", part).secret_files.values()}
        reads = "FUSEBOARD_METRICS_TOKEN" in SECRETS[part]
        assert secrets == ({"fuseboard", "fuseboard-metrics"} if reads else {"fuseboard"})
        if reads:
            files = process("plain", part).secret_files
            assert [name for name, (secret, _) in files.items() if secret == "fuseboard-metrics"] == [
                "metrics-token"
            ]


def test_a_variable_is_set_where_it_is_read() -> None:
    """The settings of a login are no use to a gateway, and want a secret that it does not get."""
    for part in PARTS:
        found = set(process("full", part).environment)
        assert ("FUSEBOARD_OIDC_URL" in found) == (part == "web")
        assert ("FUSEBOARD_AUDIT_EXPORT_FILE" in found) == (part in ("web", "worker"))
        assert "FUSEBOARD_TICKET_URL" in found


def test_no_address_is_believed_by_default() -> None:
    """10.0.0.0/8 would be every pod of most clusters: each could say that it is any client."""
    assert process("plain", "web").environment["FUSEBOARD_PROXIES"] == "192.0.2.0/24"


@each_case
@each_process
def test_a_pod_has_no_rights(case: str, part: str) -> None:
    """The level *restricted* of the Pod Security Standards, a disk that cannot be written, and no token."""
    found = process(case, part)
    security = found.pod["securityContext"]
    assert security["runAsNonRoot"] is True
    # The Dockerfile makes this user.
    assert {security["runAsUser"], security["runAsGroup"], security["fsGroup"]} == {10_001}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert found.pod["automountServiceAccountToken"] is False
    assert found.pod["enableServiceLinks"] is False
    own = found.container["securityContext"]
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(found.pod)
    assert found.container["resources"]["limits"]["memory"]
    assert {"cpu", "memory"} <= set(found.container["resources"]["requests"])


@each_case
@each_process
def test_a_container_writes_where_its_service_was_seen_to_write(case: str, part: str) -> None:
    """``tests/repo/test_compose_runs.py`` looks for files elsewhere."""
    service, found = SERVICES[part], process(case, part).writable
    memory = {mount.partition(":")[0]: mount for mount in service["tmpfs"]}
    volumes = {volume.split(":")[1] for volume in service.get("volumes", ())}
    assert set(found) == set(memory) | volumes
    for path, mount in memory.items():
        volume = found[path]["emptyDir"]
        assert volume["medium"] == "Memory"
        if size := re.search(r"size=(\d+)m", mount):
            assert volume["sizeLimit"] == f"{size[1]}Mi"
    for path in volumes:
        assert "medium" not in found[path].get("emptyDir", {})


#: Kubernetes changes none of these in a workload that exists. An upgrade fails if one differs.
FIXED: dict[str, dict[str, Any]] = {
    "web": {},
    "worker": {},
    "beat": {},
    "gateway": {
        "serviceName": "fuseboard-gateways",
        "podManagementPolicy": "Parallel",
        "volumeClaimTemplates": [
            {
                "metadata": {"name": "oncall"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "64Mi"}},
                },
            }
        ],
    },
}


@pytest.mark.parametrize("part", FIXED)
def test_what_kubernetes_never_changes_is_as_in_the_first_release(part: str) -> None:
    for case in CASES:
        found = process(case, part)
        selector = found.workload["spec"]["selector"]
        assert selector == {
            "matchLabels": {
                "app.kubernetes.io/name": "fuseboard",
                "app.kubernetes.io/instance": "fuseboard",
                "app.kubernetes.io/component": part,
            }
        }
        assert selector["matchLabels"].items() <= found.labels.items()
    spec = process("plain", part).workload["spec"]
    assert {name: spec[name] for name in FIXED[part]} == FIXED[part]


@each_case
def test_every_selector_finds_pods_and_names_no_version(case: str) -> None:
    pods = [process(case, part).labels for part in PARTS]
    found = [manifest["spec"]["selector"] for manifest in of_kind(case, "Service")]
    found += [
        manifest["spec"]["selector"]["matchLabels"] for manifest in of_kind(case, "PodDisruptionBudget")
    ]
    found += [manifest["spec"]["podSelector"]["matchLabels"] for manifest in of_kind(case, "NetworkPolicy")]
    for selector in found:
        assert set(selector) == LABELS
        assert len([labels for labels in pods if selector.items() <= labels.items()]) == 1


def test_no_replicas_are_set_where_an_autoscaler_sets_them() -> None:
    (scaler,) = of_kind("full", "HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == "fuseboard-web"
    assert "replicas" not in process("full", "web").workload["spec"]
    assert not list(of_kind("plain", "HorizontalPodAutoscaler"))
    assert process("plain", "web").workload["spec"]["replicas"] == 2


@each_case
def test_there_is_one_beat_and_never_two(case: str) -> None:
    spec = process(case, "beat").workload["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


@each_case
def test_the_address_of_the_gateways_is_that_of_each_of_them(case: str) -> None:
    service = process(case, "gateway").workload["spec"]["serviceName"]
    headless = [manifest for manifest in of_kind(case, "Service") if manifest["metadata"]["name"] == service]
    assert [manifest["spec"]["clusterIP"] for manifest in headless] == ["None"]
    # They ask each other while none of them is ready.
    assert headless[0]["spec"]["publishNotReadyAddresses"] is True
    for part in ("web", "gateway"):
        address = process(case, part).environment["FUSEBOARD_GATEWAY_URL"]
        # A name for all, so another number of gateways restarts no process.
        assert address == f"dns+http://{service}:8001"


@each_case
@pytest.mark.parametrize("part", ["web", "gateway"])
def test_a_process_that_serves_goes_on_until_load_balancers_know(case: str, part: str) -> None:
    """Then it finishes its requests, which takes at most 10 s (``docs/deployment.md#stopping``)."""
    found = process(case, part)
    waits_s = found.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert waits_s >= 5
    assert found.pod["terminationGracePeriodSeconds"] > waits_s + 10


def test_a_worker_has_the_time_to_finish_its_tasks() -> None:
    from controlplane.celery import WORKER_END_S

    assert process("plain", "worker").pod["terminationGracePeriodSeconds"] > WORKER_END_S


def test_a_rollout_takes_no_web_and_no_worker_away() -> None:
    for part in ("web", "worker"):
        spec = process("plain", part).workload["spec"]
        assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_a_drain_takes_one_pod_of_a_process_at_a_time() -> None:
    def parts(case: str) -> set[str]:
        return {
            manifest["metadata"]["name"].removeprefix("fuseboard-")
            for manifest in of_kind(case, "PodDisruptionBudget")
            if manifest["spec"]["maxUnavailable"] == 1
        }

    assert parts("plain") == {"web", "gateway", "worker"}
    # A budget that lets one pod go protects no single one.
    assert parts("full") == {"web", "gateway"}


@each_case
def test_the_migration_runs_before_the_release_and_stops_it_when_it_fails(case: str) -> None:
    job = process(case, "migrate").workload
    assert job["kind"] == "Job"
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert job["spec"]["activeDeadlineSeconds"] == 3600
    # It exists before the account of the chart does.
    assert "serviceAccountName" not in process(case, "migrate").pod


@each_case
def test_the_probes_of_beat_are_those_of_its_service(case: str) -> None:
    kind, script = SERVICES["beat"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    container = process(case, "beat").container
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["exec"]["command"] == ["sh", "-c", script.replace("$$", "$")]


def test_the_other_probes_ask_what_answers_without_postgres() -> None:
    """``tests/repo/test_compose_runs.py`` asks them, and ``test_probes.py`` without Postgres."""
    for part, ready in (("web", "/readyz"), ("gateway", "/readyz"), ("worker", "/healthz")):
        container = process("plain", part).container
        (port,) = (port["name"] for port in container["ports"])
        asked = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": ready}
        for probe, path in asked.items():
            assert container[probe]["httpGet"] == {"path": path, "port": port}


def _peers(case: str, part: str) -> list[dict[str, Any]]:
    (policy,) = (
        manifest
        for manifest in of_kind(case, "NetworkPolicy")
        if manifest["metadata"]["name"] == f"fuseboard-{part}"
    )
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    return [peer for rule in policy["spec"]["ingress"] for peer in rule["from"]]


def test_pods_reach_gateways_and_nothing_else() -> None:
    anywhere: dict[str, Any] = {"namespaceSelector": {}}

    def of_namespace(name: str) -> dict[str, Any]:
        return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}

    assert anywhere in _peers("plain", "gateway")
    assert _peers("plain", "web") == [of_namespace("ingress-nginx"), of_namespace("monitoring")]
    assert _peers("plain", "worker") == [of_namespace("monitoring")]
    assert _peers("plain", "beat") == _peers("plain", "migrate") == []


def test_web_and_gateways_reach_gateways() -> None:
    asking = [
        peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for peer in _peers("plain", "gateway")
        if "podSelector" in peer
    ]
    assert asking == ["web", "gateway"]


def test_a_policy_opens_the_ports_that_its_process_has() -> None:
    for part in ("web", "gateway", "worker"):
        (policy,) = (
            manifest
            for manifest in of_kind("plain", "NetworkPolicy")
            if manifest["metadata"]["name"] == f"fuseboard-{part}"
        )
        ports = {port["name"] for port in process("plain", part).container["ports"]}
        assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} == ports


def test_the_ingress_leads_every_host_to_web() -> None:
    (ingress,) = of_kind("full", "Ingress")
    hosts = process("full", "web").environment["FUSEBOARD_ALLOWED_HOSTS"].split(",")
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == ingress["spec"]["tls"][0]["hosts"] == hosts
    for rule in ingress["spec"]["rules"]:
        (path,) = rule["http"]["paths"]
        assert path["backend"]["service"] == {"name": "fuseboard-web", "port": {"name": "http"}}


def test_a_secret_key_set_to_null_is_left_out_and_a_new_one_is_a_file() -> None:
    found = process("full", "web").environment
    assert "FUSEBOARD_METRICS_TOKEN_FILE" not in found
    assert found["FUSEBOARD_WATCHDOG_URL_FILE"] == "/run/secrets/fuseboard/watchdog-url"
    assert found["FUSEBOARD_CA_FILE"] == "/run/secrets/ca/ca.crt"


def test_a_number_stays_as_it_was_written() -> None:
    """Helm would write a million as 1e+06, which processes refuse."""
    found = process("full", "web").environment
    assert (found["FUSEBOARD_ANNOUNCE_S"], found["FUSEBOARD_REDIS_CAPACITY_OPS"]) == ("7200", "1000000")


@each_case
def test_pods_are_spread_over_zones(case: str) -> None:
    for part in ("web", "gateway", "worker"):
        (spread,) = process(case, part).pod["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"].items() <= process(case, part).labels.items()
