"""Images of others are named by digest, so that a tag that moves changes nothing here."""

import re
from pathlib import Path

import pytest

from tests.repo.test_compose import SERVICES

ROOT = Path(__file__).resolve().parents[2]
_PINNED = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")

STAGES = re.findall(r"^FROM (\S+) AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
IMAGES = sorted({image for image, _ in STAGES} - {name for _, name in STAGES})
IMAGES += sorted({service["image"] for service in SERVICES.values() if "build" not in service})


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_of_others_has_a_digest(image: str) -> None:
    assert _PINNED.fullmatch(image)


def test_there_are_images_and_each_has_one_digest() -> None:
    names = [image.partition("@")[0] for image in IMAGES]
    assert {"postgres", "python", "valkey/valkey"} == {name.partition(":")[0] for name in names}
    assert len(set(names)) == len(names)
