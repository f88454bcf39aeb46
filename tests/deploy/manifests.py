"""Manifests of Kubernetes that are checked in, and the schemas of three of its versions."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tools.kubernetes_schemas import FOLDER as SCHEMAS
from tools.kubernetes_schemas import VERSIONS
from tools.render_chart import PLAIN, RENDERED, ROOT

EXAMPLES = ROOT / "deploy" / "chart" / "examples"
#: The processes of the control plane, by the names that compose gives them too.
PARTS = ("web", "gateway", "worker", "beat", "migrate")
#: Rendered with the least values, and with those that take every other branch.
CASES = {"plain": (PLAIN / "migrate.yaml", PLAIN / "fuseboard.yaml"), "full": (RENDERED / "full.yaml",)}


def load(path: Path) -> list[dict[str, Any]]:
    return [manifest for manifest in yaml.safe_load_all(path.read_text()) if manifest]


@cache
def manifests(case: str) -> list[dict[str, Any]]:
    return [manifest for path in CASES[case] for manifest in load(path)]


def of_kind(case: str, kind: str) -> Iterator[dict[str, Any]]:
    return (manifest for manifest in manifests(case) if manifest["kind"] == kind)


@dataclass(frozen=True)
class Process:
    """A workload with one container."""

    workload: dict[str, Any]

    @property
    def pod(self) -> dict[str, Any]:
        return self.workload["spec"]["template"]["spec"]

    @property
    def labels(self) -> dict[str, str]:
        return self.workload["spec"]["template"]["metadata"]["labels"]

    @property
    def container(self) -> dict[str, Any]:
        (container,) = self.pod["containers"]
        return container

    @property
    def environment(self) -> dict[str, str]:
        found = {variable["name"]: variable["value"] for variable in self.container["env"]}
        assert len(found) == len(self.container["env"]), "a variable twice"
        return found

    @property
    def secret_files(self) -> dict[str, tuple[str, str]]:
        """Files of `/run/secrets/fuseboard`: the name of each, its Secret, and its key there."""
        (volume,) = (volume for volume in self.pod["volumes"] if volume["name"] == "secrets")
        files = [
            (item["path"], (source["secret"]["name"], item["key"]))
            for source in volume["projected"]["sources"]
            for item in source["secret"]["items"]
        ]
        assert len(dict(files)) == len(files), "a file twice"
        return dict(files)

    @property
    def writable(self) -> dict[str, dict[str, Any]]:
        """Folders that it may write, and the volume or the claim of each."""
        volumes = {volume["name"]: volume for volume in self.pod["volumes"]}
        claims = self.workload["spec"].get("volumeClaimTemplates", ())
        volumes |= {claim["metadata"]["name"]: claim for claim in claims}
        return {
            mount["mountPath"]: volumes[mount["name"]]
            for mount in self.container["volumeMounts"]
            if not mount.get("readOnly")
        }


def process(case: str, part: str) -> Process:
    (found,) = (
        manifest
        for manifest in manifests(case)
        if "template" in manifest.get("spec", {}) and manifest["metadata"]["name"] == f"fuseboard-{part}"
    )
    return Process(found)


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """``kinds`` and ``definitions`` by version: a file has what differs from the version before it."""
    found, definitions = {}, {}
    for version in VERSIONS:
        read = json.loads((SCHEMAS / f"kubernetes-{version}.json").read_text())
        definitions = definitions | read["definitions"]
        found[version] = {"kinds": read["kinds"], "definitions": definitions}
    return found


@cache
def custom() -> dict[str, Any]:
    """Schemas of kinds that others define, which only examples have."""
    return json.loads((SCHEMAS / "custom.json").read_text())


def problems(manifest: dict[str, Any], version: str) -> list[str]:
    """Where it does not follow its schema; an unknown field is one too."""
    kind = f"{manifest['apiVersion']} {manifest['kind']}"
    if kind in custom():
        schema = custom()[kind]
    else:
        known = schemas()[version]
        schema = {"$ref": f"#/definitions/{known['kinds'][kind]}", "definitions": known["definitions"]}
    validator = jsonschema.Draft4Validator(schema)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]
