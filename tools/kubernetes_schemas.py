"""Write the schemas of the kinds of Kubernetes that the chart uses: ``make chart-schemas``.

They come from the Go module of Kubernetes itself, which the Go checksum database pins, so no copy by others
is needed. A manifest with an unknown field does not follow them. The file of a version has the definitions
that differ from those of the version before it.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "deploy" / "schemas"
#: The oldest version that the chart supports, and two newer ones.
VERSIONS = ("1.34.4", "1.36.3", "1.37.2")
KINDS = {
    "apps/v1": ("Deployment", "StatefulSet"),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "batch/v1": ("Job",),
    "networking.k8s.io/v1": ("Ingress", "NetworkPolicy"),
    "policy/v1": ("PodDisruptionBudget",),
    "v1": ("Namespace", "Secret", "Service", "ServiceAccount"),
}
#: Kinds of others, which the examples use: the module that defines each, and where in it.
CUSTOM = {
    "external-secrets.io/v1 ExternalSecret": (
        "github.com/external-secrets/external-secrets@v1.3.2",
        "config/crds/bases/external-secrets.io_externalsecrets.yaml",
    ),
    "keda.sh/v1alpha1 ScaledObject": (
        "github.com/kedacore/keda/v2@v2.21.0",
        "config/crd/bases/keda.sh_scaledobjects.yaml",
    ),
    "monitoring.coreos.com/v1 PodMonitor": (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
    ),
}
#: Kubernetes takes numbers here too, but its document has texts only.
WIDER = {
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
}


def of_version(version: str) -> dict[str, Any]:
    """``kinds``, by apiVersion and kind, and ``definitions`` with all that they refer to."""
    document = _module(f"k8s.io/kubernetes@v{version}") / "api" / "openapi-spec" / "swagger.json"
    definitions = json.loads(document.read_text())["definitions"]
    kinds = {}
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            api_version = "/".join(filter(None, (kind["group"], kind["version"])))
            if kind["kind"] in KINDS.get(api_version, ()):
                kinds[f"{api_version} {kind['kind']}"] = name
    wanted: dict[str, Any] = {}
    waiting = list(kinds.values())
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted[name] = WIDER.get(name) or _strict(definitions[name])
            waiting += _names(wanted[name])
    return {"kinds": kinds, "definitions": wanted}


def of_custom(kind: str) -> dict[str, Any]:
    """The schema of a kind that others define."""
    module, path = CUSTOM[kind]
    definition = yaml.safe_load((_module(module) / path).read_text())
    (found,) = (
        version
        for version in definition["spec"]["versions"]
        if f"{definition['spec']['group']}/{version['name']} {definition['spec']['names']['kind']}" == kind
    )
    return _strict(found["schema"]["openAPIV3Schema"])


def _module(name: str) -> Path:
    done = subprocess.run(  # noqa: S603 - names and versions are those above
        ["go", "mod", "download", "-json", name],  # noqa: S607
        check=True,
        capture_output=True,
        text=True,
    )
    return Path(json.loads(done.stdout)["Dir"])


def _strict(node: Any) -> Any:
    """Without descriptions and markers, and without fields that Kubernetes does not know."""
    if isinstance(node, list):
        return [_strict(each) for each in node]
    if not isinstance(node, dict):
        return node
    kept = {}
    for key, value in node.items():
        if key == "properties":
            kept[key] = {name: _strict(each) for name, each in value.items()}
        elif key not in ("description", "default", "format") and not key.startswith("x-kubernetes"):
            kept[key] = _strict(value)
    if "properties" in kept and "additionalProperties" not in kept:
        kept["additionalProperties"] = False
    return kept


def _names(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].removeprefix("#/definitions/")
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from _names(each)


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    known: dict[str, Any] = {}
    for version in VERSIONS:
        schemas = of_version(version)
        changed = {name: each for name, each in schemas["definitions"].items() if known.get(name) != each}
        known |= changed
        # A line for each definition, so that a change is small.
        lines = [f"{json.dumps(name)}:{_compact(each)}" for name, each in sorted(changed.items())]
        text = f'{{"kinds":{_compact(schemas["kinds"])},\n"definitions":{{\n' + ",\n".join(lines) + "\n}}\n"
        path = FOLDER / f"kubernetes-{version}.json"
        path.write_text(text)
        sys.stdout.write(f"{path.name}: {len(schemas['kinds'])} kinds, {len(text) / 1024:.0f} KiB\n")
    lines = [f"{json.dumps(kind)}:{_compact(of_custom(kind))}" for kind in sorted(CUSTOM)]
    (FOLDER / "custom.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 0


def _compact(node: Any) -> str:
    return json.dumps(node, sort_keys=True, separators=(",", ":"))


if __name__ == "__main__":
    sys.exit(main())
