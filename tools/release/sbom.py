"""What a distribution is installed with, as CycloneDX: its packages, and the files of others inside it."""

import base64
import json
import sys
import tomllib
from itertools import groupby
from pathlib import Path
from typing import Any

from tools.release.build import run
from tools.release.licences import INSTALLERS
from tools.release.sources import DISTRIBUTIONS, ROOT

VENDORED = ROOT / "dashboard/static/vendor/VENDORED.toml"


def write_sbom(distribution: str, python: Path, file: Path, *, epoch: str) -> int:
    """Write the bill of materials of an environment in which a distribution is installed; count its parts."""
    run(
        Path(sys.executable).with_name("cyclonedx-py"),
        *("environment", python, "--pyproject", ROOT / DISTRIBUTIONS[distribution].pyproject),
        *("--output-reproducible", "--output-format", "JSON", "--output-file", file),
        SOURCE_DATE_EPOCH=epoch,
    )
    document = json.loads(file.read_text())
    leave_out_installers(document)
    parts = document["components"]
    for part in parts:
        # Where a wheel was on this machine.
        found = part.get("externalReferences", [])
        part["externalReferences"] = [one for one in found if not one["url"].startswith("file:")]
    document["components"] = parts + (vendored() if distribution == "fuseboard-controlplane" else [])
    file.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    return len(document["components"])


def leave_out_installers(document: dict[str, Any]) -> None:
    """Remove them from the parts, and from what depends on what: no reference may lead nowhere."""
    removed = {part["bom-ref"] for part in document["components"] if part["name"] in INSTALLERS}
    document["components"] = [part for part in document["components"] if part["bom-ref"] not in removed]
    document["dependencies"] = [part for part in document["dependencies"] if part["ref"] not in removed]
    for part in document["dependencies"]:
        if needed := part.get("dependsOn"):
            part["dependsOn"] = [ref for ref in needed if ref not in removed]


def vendored() -> list[dict[str, Any]]:
    """The packages of others whose files are in the control plane."""
    files = tomllib.loads(VENDORED.read_text())["file"]
    return [
        {
            "type": "library",
            "bom-ref": f"vendored-{name}@{version}",
            "name": name,
            "version": version,
            "purl": f"pkg:npm/{name.replace('@', '%40')}@{version}",
            "licenses": [{"license": {"id": licence}}],
            "components": [_file(file) for file in of_package],
        }
        for (name, version, licence), of_package in groupby(
            files, key=lambda file: (file["package"], file["version"], file["licence"])
        )
    ]


def _file(file: dict[str, str]) -> dict[str, Any]:
    path = f"dashboard/static/vendor/{file['path']}"
    digest = base64.b64decode(file["sha384"]).hex()
    return {
        "type": "file",
        "bom-ref": f"vendored-{path}",
        "name": path,
        "hashes": [{"alg": "SHA-384", "content": digest}],
    }
