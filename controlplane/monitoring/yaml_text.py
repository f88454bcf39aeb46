"""A document as the text of a generated YAML file."""

from typing import Any

import yaml

_HEAD = "# Written by `python manage.py write_monitoring`.\n"


def yaml_text(document: dict[str, Any]) -> str:
    return _HEAD + yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True)
