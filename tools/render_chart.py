"""Render the chart: ``make chart``. It writes what is checked in of it, and needs ``make chart-tools``.

These are the manifests of ``deploy/plain``, the case of the tests that takes every other branch of the
templates, and the table of values in the chart's README.
"""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "chart" / "fuseboard"
PLAIN = ROOT / "deploy" / "plain"
CASES = ROOT / "tests" / "deploy" / "cases"
RENDERED = ROOT / "tests" / "deploy" / "rendered"
README = CHART / "README.md"
_KEY = re.compile(r"(?P<indent> *)(?P<name>[A-Za-z_]+):(?: (?P<value>.*))?")
_TABLE = re.compile(r"(?<=<!-- values -->\n).*(?=<!-- end -->)", re.DOTALL)
#: Labels that are true for a release of Helm only.
_HELM = re.compile(r"^ +(?:app\.kubernetes\.io/managed-by: Helm|helm\.sh/chart: .*)\n", re.MULTILINE)


def tool(name: str) -> Path | None:
    """The program that ``tools/chart_tools.sh`` has built, of the version in it."""
    found = re.search(rf"^build {name} (\S+)", (ROOT / "tools" / "chart_tools.sh").read_text(), re.MULTILINE)
    if found is None:
        return None
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(cache) / "fuseboard" / "chart-tools" / f"{name}-{found[1]}"
    return path if path.exists() else None


def rendered(helm: Path, values: Path, *templates: str) -> str:
    """These templates of the chart, in their order, or all of them."""
    only = [word for template in templates for word in ("--show-only", f"templates/{template}.yaml")]
    done = subprocess.run(  # noqa: S603 - files of this tree
        [helm, "template", "fuseboard", CHART, "--values", values, *only],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    # Helm leaves more or fewer lines empty at the end of a manifest.
    return re.sub(r"\n+(?=---\n|\Z)", "\n", done.stdout)


def digest(values: Path) -> str:
    """A number of what the manifests are rendered from. It shows without Helm that they are old."""
    found = hashlib.sha256()
    for file in [
        CHART / "Chart.yaml",
        CHART / "values.yaml",
        *sorted((CHART / "templates").iterdir()),
        values,
    ]:
        found.update(f"{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return found.hexdigest()


def manifests(helm: Path) -> dict[Path, str]:
    """What is checked in, by file."""
    plain = PLAIN / "values.yaml"
    templates = sorted(file.stem for file in (CHART / "templates").glob("*.yaml"))
    templates = [name for name in templates if name not in ("ingress", "migrate")]
    texts = {
        PLAIN / "migrate.yaml": (plain, _HELM.sub("", rendered(helm, plain, "migrate"))),
        PLAIN / "fuseboard.yaml": (plain, _HELM.sub("", rendered(helm, plain, *templates))),
        RENDERED / "full.yaml": (CASES / "full.yaml", rendered(helm, CASES / "full.yaml")),
    }
    head = "# Rendered by `make chart` from deploy/chart/fuseboard: change the chart instead.\n"
    return {path: f"{head}# From sha256:{digest(values)}\n{text}" for path, (values, text) in texts.items()}


def values() -> Iterator[tuple[str, str, str]]:
    """Each value of ``values.yaml``: its path, its default, and the comment above it."""
    path: list[str] = []
    comment: list[str] = []
    shown: int | None = None
    for line in (CHART / "values.yaml").read_text().splitlines():
        stripped = line.strip()
        indent = (len(line) - len(line.lstrip())) // 2
        if stripped.startswith("#"):
            comment.append(stripped.removeprefix("# "))
            continue
        found = _KEY.fullmatch(line)
        if not stripped:
            comment = []
        if found is None or (shown is not None and indent > shown):
            continue
        path[indent:] = [found["name"]]
        # The default of a value with parts is too long for a cell.
        nested = found["value"] is None
        shown = indent if nested and found["name"] in ("keys", "resources", *_LISTS) else None
        if not nested or shown is not None or comment:
            yield ".".join(path), "" if nested else found["value"], " ".join(comment)
        comment = []


_LISTS = ("agents", "proxies", "scrapers")


def table() -> str:
    rows = [
        f"| `{path}` | {f'`{default}`' if default else ''} | {text} |" for path, default, text in values()
    ]
    return "\n".join(["| value | default | |", "|---|---|---|", *rows, ""])


def readme() -> str:
    return _TABLE.sub(lambda _: table(), README.read_text())


def main() -> int:
    helm = tool("helm")
    if helm is None:
        sys.stderr.write("Helm is missing: run `make chart-tools`, which takes up to 20 minutes, once\n")
        return 1
    for path, text in manifests(helm).items():
        path.write_text(text)
    README.write_text(readme())
    return 0


if __name__ == "__main__":
    sys.exit(main())
