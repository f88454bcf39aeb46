"""Files of envoyproxy/ratelimit, as commands read them."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fuseboard.errors import Misconfigured

if TYPE_CHECKING:
    from fuseboard.contract.descriptor_file import DescriptorFile


class FileAt(NamedTuple):
    path: Path
    text: str
    file: "DescriptorFile"


def read_files(paths: Sequence[Path]) -> list[FileAt]:
    """Read files, right or not. Raises ``Misconfigured`` for one that cannot be read, or without PyYAML."""
    if find_spec("yaml") is None:
        raise Misconfigured("reading YAML needs PyYAML: pip install 'fuseboard[envoy]'")
    # Here, so that the other commands need no PyYAML.
    from fuseboard.contract.descriptor_file import read_file

    texts = [(path, _text(path)) for path in paths]
    return [FileAt(path, text, read_file(text)) for path, text in texts]


def are_right(files: Sequence[FileAt]) -> bool:
    """Whether all files are right, and no two are of one domain. Every problem goes to standard error."""
    first: dict[str, Path] = {}
    wrong = 0
    for path, _, file in files:
        problems = [(line, text) for line, text in file.problems]
        domain = file.domain.domain if file.domain is not None else ""
        if domain and (other := first.setdefault(domain, path)) is not path:
            problems.append((file.lines[()], f"The domain {domain} is also in {other}."))
        for line, text in problems:
            sys.stderr.write(f"{path}:{line}: {text}\n")
        wrong += len(problems)
    return not wrong


def _text(path: Path) -> str:
    from fuseboard.contract.descriptor_file import MAX_FILE

    try:
        with path.open(encoding="utf-8") as file:
            # No file of this many characters is right, so the rest of it is not read.
            return file.read(MAX_FILE + 1)
    except (OSError, UnicodeError) as error:
        raise Misconfigured(f"cannot read {path}: {error}") from error
