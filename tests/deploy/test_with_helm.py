"""The chart as Helm renders it.

CI may skip this file (CONTRIBUTING.md has the list): ``make chart-tools`` builds Helm in up to 20 minutes.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import CASES, VERSIONS, Process, schemas
from tests.deploy.test_chart_files import LEAST, WRONG
from tests.deploy.test_kubernetes_page import page_values
from tools import render_chart
from tools.render_chart import CHART, PLAIN


def _tool(name: str) -> Path:
    found = render_chart.tool(name)
    if found is None:
        pytest.skip(f"{name} is not built: make chart-tools")
    return found


@pytest.fixture
def helm() -> Path:
    return _tool("helm")


def _template(helm: Path, tmp_path: Path, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    command = [helm, "template", "fuseboard", CHART, "--values", file]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_helm_has_no_advice_about_the_chart(helm: Path) -> None:
    command = [helm, "lint", "--strict", CHART, "--values", PLAIN / "values.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_checked_in_is_what_helm_renders(helm: Path) -> None:
    for path, text in render_chart.manifests(helm).items():
        assert path.read_text() == text, f"{path.name}: run `make chart`"


@pytest.mark.parametrize(("values", "where"), WRONG, ids=[str(values) for values, _ in WRONG])
def test_helm_refuses_a_wrong_value_by_name(
    helm: Path, tmp_path: Path, values: dict[str, Any], where: str
) -> None:
    done = _template(helm, tmp_path, _with_nulls(values, LEAST))
    assert done.returncode != 0
    # `$.hosts[0]` is `/hosts/0` here.
    place = "".join(f"/{name}" for name in re.findall(r"\w+", where))
    assert re.search(rf"at '{place}['/]", done.stderr), done.stderr


#: Values that each follow the schema, but not together, and what Helm says.
TOGETHER_WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"web": {"autoscaling": {"enabled": True, "minReplicas": 7}}},
        "web.autoscaling.minReplicas is larger than web.autoscaling.maxReplicas",
    ),
    (
        {
            "secrets": {"keys": {"FUSEBOARD_EXPLAIN_URL": "explain"}},
            "env": {"FUSEBOARD_EXPLAIN_URL": "https://fuseboard.example.com/explain"},
        },
        "FUSEBOARD_EXPLAIN_URL is in env and in secrets.keys: remove one of them",
    ),
]


@pytest.mark.parametrize(
    ("values", "said"), TOGETHER_WRONG, ids=[said.split()[0] for _, said in TOGETHER_WRONG]
)
def test_helm_refuses_values_that_contradict_each_other(
    helm: Path, tmp_path: Path, values: dict[str, Any], said: str
) -> None:
    done = _template(helm, tmp_path, _with_nulls(values, LEAST))
    assert done.returncode != 0
    assert said in done.stderr


def test_one_secret_may_have_every_key_and_two_variables_one_of_them(helm: Path, tmp_path: Path) -> None:
    """As with the chart of 0.2.0. Kubernetes refuses a volume that has a file twice."""
    keys = {"FUSEBOARD_DIRECT_DATABASE_URL": "database-url"}
    done = _template(helm, tmp_path, _with_nulls({"secrets": {"metricsName": "", "keys": keys}}, LEAST))
    assert done.returncode == 0, done.stderr
    (web,) = (
        Process(each)
        for each in yaml.safe_load_all(done.stdout)
        if each and each["kind"] == "Deployment" and each["metadata"]["name"] == "fuseboard-web"
    )
    assert web.secret_files == {
        key: ("fuseboard", key) for key in ("database-url", "metrics-token", "redis-url", "secret-key")
    }
    assert web.environment["FUSEBOARD_DIRECT_DATABASE_URL_FILE"] == web.environment["DATABASE_URL_FILE"]


def test_processes_listen_with_ipv6_where_there_is_nothing_else(helm: Path, tmp_path: Path) -> None:
    done = _template(helm, tmp_path, _with_nulls({"listen": "::"}, LEAST))
    assert done.returncode == 0, done.stderr
    assert "0.0.0.0" not in done.stdout  # noqa: S104 - it is only looked for
    found = {
        each["metadata"]["name"]: Process(each)
        for each in yaml.safe_load_all(done.stdout)
        if each and "template" in each.get("spec", {})
    }
    for part in ("web", "gateway"):
        command = found[f"fuseboard-{part}"].container["command"]
        assert command[command.index("--host") + 1] == "::"
    assert found["fuseboard-worker"].environment["FUSEBOARD_WORKER_METRICS_PORT"] == "[::]:9101"


def _with_nulls(values: dict[str, Any], basis: dict[str, Any]) -> dict[str, Any]:
    """Both, and a null stays for Helm to remove a default."""
    nested = {name: value for name, value in values.items() if isinstance(value, dict)}
    merged = {name: _with_nulls(value, basis.get(name, {})) for name, value in nested.items()}
    return {**basis, **values, **merged}


def test_helm_renders_the_values_of_the_page(helm: Path, tmp_path: Path) -> None:
    done = _template(helm, tmp_path, page_values())
    assert done.returncode == 0, done.stderr
    (ingress,) = (each for each in yaml.safe_load_all(done.stdout) if each and each["kind"] == "Ingress")
    assert ingress["spec"]["ingressClassName"] == page_values()["ingress"]["className"]


#: As long as Helm allows, and different in its last letter only.
LONG = (
    "fuseboard-of-the-warehouses-of-the-northern-regions-1",
    "fuseboard-of-the-warehouses-of-the-northern-regions-2",
)


@pytest.mark.parametrize("releases", [("fuseboard", "second"), LONG], ids=["short", "long"])
def test_another_installation_shares_no_name(helm: Path, releases: tuple[str, str]) -> None:
    values = ["--values", PLAIN / "values.yaml"]
    found = []
    for release in releases:
        done = subprocess.run(
            [helm, "template", release, CHART, *values], capture_output=True, text=True, check=True
        )
        rendered = [each for each in yaml.safe_load_all(done.stdout) if each]
        found.append({(each["kind"], each["metadata"]["name"]) for each in rendered})
    assert found[0] & found[1] == set()
    # The label of a StatefulSet's pods has 11 more letters, of 63.
    assert max(len(name) for kind, name in found[0] | found[1] if kind == "StatefulSet") <= 52


def test_a_number_of_web_pods_that_something_else_sets_is_not_set(helm: Path, tmp_path: Path) -> None:
    done = _template(helm, tmp_path, _with_nulls({"web": {"replicas": None}}, LEAST))
    assert done.returncode == 0, done.stderr
    web = {
        each["kind"]: each["spec"]
        for each in yaml.safe_load_all(done.stdout)
        if each and each["metadata"]["name"] == "fuseboard-web"
    }
    assert "replicas" not in web["Deployment"]
    assert "PodDisruptionBudget" in web
    assert "HorizontalPodAutoscaler" not in web


@pytest.mark.parametrize("version", VERSIONS)
def test_kubeconform_accepts_every_manifest(tmp_path: Path, version: str) -> None:
    """A second opinion on the schemas: another program reads them."""
    kubeconform = _tool("kubeconform")
    known = schemas()[version]
    for name, definition in known["kinds"].items():
        kind = name.rpartition(" ")[2].lower()
        schema = {"$ref": f"#/definitions/{definition}", "definitions": known["definitions"]}
        (tmp_path / f"{kind}.json").write_text(json.dumps(schema))
    command = [kubeconform, "-strict", "-summary", "-kubernetes-version", version]
    command += ["-schema-location", str(tmp_path / "{{.ResourceKind}}.json")]
    for case, paths in CASES.items():
        done = subprocess.run([*command, *paths], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (case, done.stdout + done.stderr)
        assert "Invalid: 0, Errors: 0, Skipped: 0" in done.stdout
    wrong = (PLAIN / "fuseboard.yaml").read_text().replace("replicas:", "replica:")
    done = subprocess.run([*command, "-"], input=wrong, capture_output=True, text=True, check=False)
    assert done.returncode != 0
