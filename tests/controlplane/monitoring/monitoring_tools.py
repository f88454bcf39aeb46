"""Debian's Prometheus and Alertmanager, for tests."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest


def tool(name: str) -> str:
    """The path of a program; skips the test where it is missing, except in CI."""
    found = shutil.which(name)
    if found is None:
        assert not os.environ.get("CI"), f"{name} is not installed"
        pytest.skip(f"{name} is not installed")
    return found


def run(name: str, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [tool(name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)
