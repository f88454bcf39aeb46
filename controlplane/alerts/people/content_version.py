"""A version for rows without a version column: a number made from their content."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any


def content_version(content: Mapping[str, Any]) -> int:
    """A number from 1 to 999,999,999. It differs after each change, and is the same again after its Undo."""
    return int(sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16], 16) % 999_999_999 + 1
