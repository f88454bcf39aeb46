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
    parts = [part for part in document["components"] if part["name"] not in INSTALLERS]
    for part in parts:
        # Where a wheel was on this machine.
        found = part.get("externalReferences", [])
        part["externalReferences"] = [one for one in found if not one["url"].startswith("file:")]
    document["components"] = parts + (vendored() if distribution == "fuseboard-controlplane" else [])
    document["dependencies"] = [
        part for part in document["dependencies"] if not part["ref"].startswith("pip=")
    ]
    file.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    return len(document["components"])


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
