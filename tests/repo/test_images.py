"""Images of others are named by digest, so that a tag that moves changes nothing here."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.repo.test_compose import SERVICES

ROOT = Path(__file__).resolve().parents[2]
_PINNED = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")

DOCKERFILE = (ROOT / "Dockerfile").read_text()
STAGES = re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE)
IMAGES = sorted({image for image, _ in STAGES} - {name for _, name in STAGES})
IMAGES += sorted({service["image"] for service in SERVICES.values() if "build" not in service})


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_of_others_has_a_digest(image: str) -> None:
    assert _PINNED.fullmatch(image)


def test_there_are_images_and_each_has_one_digest() -> None:
    names = [image.partition("@")[0] for image in IMAGES]
    assert {"postgres", "python", "valkey/valkey"} == {name.partition(":")[0] for name in names}
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("stage", ["pod", "controlplane"])
def test_our_images_say_what_they_are(stage: str) -> None:
    """The keys are those of the OCI; registries and scanners show them."""
    bases = {name: image for image, name in STAGES}
    assert bases[stage] == "runtime"
    labels = dict[str, str]()
    for name in ("runtime", stage):
        (text,) = re.findall(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM|\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
        labels |= re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert labels["version"] == project["version"]
    assert labels["licenses"] == project["license"]
    assert labels["revision"] == "$COMMIT"
    assert all(labels[name] for name in ("title", "description", "vendor"))


def test_an_image_is_built_on_a_python_that_a_release_is_tried_with() -> None:
    (python,) = (image for image in IMAGES if image.startswith("python:"))
    version = re.match(r"python:(\d+\.\d+)-", python)
    assert version is not None
    project = tomllib.loads((ROOT / "controlplane/pyproject.toml").read_text())["project"]
    assert f"Programming Language :: Python :: {version[1]}" in project["classifiers"]
