"""Files of the chart fit together: values, schema, templates, README, and what is checked in of it.

Nothing here needs Helm. ``test_with_helm.py`` renders the chart.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.manifests import CASES, PARTS
from tools import render_chart
from tools.render_chart import CHART, PLAIN

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
LEAST = yaml.safe_load((PLAIN / "values.yaml").read_text())
FULL = yaml.safe_load((render_chart.CASES / "full.yaml").read_text())


def merged(changed: dict[str, Any], basis: dict[str, Any] = VALUES) -> dict[str, Any]:
    """Values as Helm merges them: a null removes a default."""
    found = dict(basis)
    for name, value in changed.items():
        if isinstance(value, dict) and isinstance(found.get(name), dict):
            found[name] = merged(value, found[name])
        elif value is None:
            found.pop(name, None)
        else:
            found[name] = value
    return found


def _wrong(values: dict[str, Any]) -> list[str]:
    return [error.json_path for error in jsonschema.Draft7Validator(SCHEMA).iter_errors(merged(values))]


@pytest.mark.parametrize("values", [LEAST, FULL], ids=["plain", "full"])
def test_the_values_of_the_cases_are_valid(values: dict[str, Any]) -> None:
    assert _wrong(values) == []


#: Values that are wrong, and where.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"hosts": []}, "$.hosts"),
    ({"hosts": ["https://fuseboard.example.com"]}, "$.hosts[0]"),
    ({"secrets": {"name": ""}}, "$.secrets.name"),
    ({"secrets": {"keys": {"FUSEBOARD_SECRET_KEY": None}}}, "$.secrets.keys"),
    ({"image": {"digest": "sha256:abc"}}, "$.image.digest"),
    ({"gateway": {"replicas": 0}}, "$.gateway.replicas"),
    ({"gateway": {"replica": 3}}, "$.gateway"),
    ({"gateway": {"autoscaling": {"enabled": True}}}, "$.gateway"),
    ({"beat": {"replicas": 2}}, "$.beat"),
    ({"env": {"FUSEBOARD_SECRET_KEY": "in the clear"}}, "$.env.FUSEBOARD_SECRET_KEY"),
    ({"env": {"FUSEBOARD_METRICS_TOKEN": "in the clear"}}, "$.env.FUSEBOARD_METRICS_TOKEN"),
    ({"env": {"FUSEBOARD_WATCHDOG_URL": "https://example.com"}}, "$.env.FUSEBOARD_WATCHDOG_URL"),
    ({"env": {"LOG_LEVEL": "DEBUG"}}, "$.env"),
    ({"secrets": {"keys": {"SECRET_KEY": "secret-key"}}}, "$.secrets.keys"),
    ({"networkPolicies": {"agents": []}}, "$.networkPolicies.agents"),
    # Kubernetes takes rules without `from` as rules for everybody.
    ({"networkPolicies": {"scrapers": None}}, "$.networkPolicies"),
    ({"mfa_roles": "admin"}, "$"),
    ({"listen": "127.0.0.1"}, "$.listen"),
    ({"proxies": ""}, "$.proxies"),
    ({"proxies": "*"}, "$.proxies"),
    ({"proxies": "0.0.0.0/0"}, "$.proxies"),
    ({"proxies": "10.4.0.0/16,ingress"}, "$.proxies"),
    ({"mfaRoles": "anything"}, "$.mfaRoles"),
    ({"podLabels": {"app.kubernetes.io/component": "web"}}, "$.podLabels"),
    ({"env": {"FUSEBOARD_TLS_CERT_FILE": "/tls/tls.crt"}}, "$.env.FUSEBOARD_TLS_CERT_FILE"),
    ({"env": {"FUSEBOARD_AUDIT_EXPORT_FILE": "/audit"}}, "$.env.FUSEBOARD_AUDIT_EXPORT_FILE"),
    ({"env": {"FUSEBOARD_DATA_DIR": "/data"}}, "$.env.FUSEBOARD_DATA_DIR"),
]


@pytest.mark.parametrize(("values", "where"), WRONG, ids=[str(values) for values, _ in WRONG])
def test_a_wrong_value_is_refused_where_it_is(values: dict[str, Any], where: str) -> None:
    (found,) = _wrong(merged(values, LEAST))
    # Python's library names the parent of a value that may not be there; Helm names the value.
    assert found in (where, where.rpartition(".")[0])


def _paths(values: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each value, and the path in the schema; free objects have no parts."""
    for name, value in values.items():
        yield name, name
        inner = schema["properties"].get(name, {}).get("properties")
        if isinstance(value, dict) and inner is not None:
            for path, _ in _paths(value, schema["properties"][name]):
                yield f"{name}.{path}", path


def test_the_schema_has_every_value_and_no_other() -> None:
    def of_schema(schema: dict[str, Any]) -> Iterator[str]:
        for name, part in schema.get("properties", {}).items():
            yield name
            yield from (f"{name}.{path}" for path in of_schema(part))

    # Values are not set for what Helm itself gives to charts.
    assert {path for path, _ in _paths(VALUES, SCHEMA)} == set(of_schema(SCHEMA)) - {"global"}


def test_every_value_is_used_and_every_used_value_exists() -> None:
    text = "\n".join(file.read_text() for file in (CHART / "templates").iterdir())
    used = set(re.findall(r"(?:\.Values|\$values)\.([A-Za-z.]*[A-Za-z])", text))
    known = {path for path, _ in _paths(VALUES, SCHEMA)}
    assert used <= known
    # A template takes these from a list of names.
    used |= {"imagePullSecrets", "nodeSelector", "tolerations"}
    assert 'list "imagePullSecrets" "nodeSelector" "tolerations"' in text
    used |= {f"{part}.resources" for part in PARTS}
    assert 'get (get .root.Values .part) "resources"' in text

    def is_used(path: str) -> bool:
        return any(f"{path}.".startswith(f"{each}.") or each.startswith(f"{path}.") for each in used)

    assert {path for path in known if not is_used(path)} == set()


def test_the_readme_lists_every_value() -> None:
    assert render_chart.README.read_text() == render_chart.readme(), "run `make chart`"
    listed = {path for path, _, _ in render_chart.values()}
    known = {path for path, _ in _paths(VALUES, SCHEMA) if ".resources." not in path}
    groups = {path for path in known if any(each.startswith(f"{path}.") for each in known)}
    # A group of values is there if it has a comment.
    assert known - groups <= listed <= known


def test_what_is_checked_in_was_rendered_from_this_chart() -> None:
    """Without Helm, a number in each file shows it. With Helm, ``test_with_helm.py`` compares the files."""
    for values, paths in (
        (PLAIN / "values.yaml", CASES["plain"]),
        (render_chart.CASES / "full.yaml", CASES["full"]),
    ):
        for path in paths:
            assert f"sha256:{render_chart.digest(values)}\n" in path.read_text(), "run `make chart`"


def test_the_chart_has_the_number_of_the_release_that_it_installs() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((render_chart.ROOT / "controlplane/pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]
    # Helm takes versions of another form. Between two releases, no chart has the number of one.
    assert chart["version"] == re.sub(r"\.dev(\d+)$", r"-dev.\1", project["version"])
    assert re.fullmatch(r"\d+\.\d+\.\d+(-dev\.\d+)?", chart["version"])


def test_the_readme_of_the_chart_says_that_no_cluster_ran_it() -> None:
    assert "**No cluster has run this chart yet.**" in render_chart.README.read_text()


def test_a_null_removes_a_default() -> None:
    assert merged({"web": {"replicas": None}}, {"web": {"replicas": 2, "tmpSize": "1Mi"}}) == {
        "web": {"tmpSize": "1Mi"}
    }
