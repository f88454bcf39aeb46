"""The guide "How to add a limit algorithm" names every file that must change."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from fuseboard.contract.words import Algorithm

ROOT = Path(__file__).resolve().parents[2]

#: Files that name an algorithm and stay as they are when another one is added.
STAY: dict[str, str] = {
    "agents/fuseboard/cli/ctl/limit_templates.py": "prints the burst of a bucket, and the word of any other",
    "agents/fuseboard/cli/ctl/tenants.py": "prints the burst of a bucket, and the word of any other",
    "agents/fuseboard/admission/followed_limits.py": "only what refills follows; only a bucket has a burst",
    "agents/fuseboard/contract/descriptors.py": "only a bucket has a burst, which is its limit in files",
    "agents/fuseboard/contract/descriptor_file.py": "units of envoyproxy/ratelimit need only these two",
    "agents/fuseboard/contract/budget_limits.py": "a calendar period, which only fixed windows have",
    "agents/fuseboard/batching/probe.py": "any limit of one call serves to refuse a question",
    "controlplane/status/descriptor_limits.py": "only a bucket has a burst, which is whole at first",
    "controlplane/usage/clear_counter.py": "slots belong to calls that run; any other counter can be cleared",
    "agents/fuseboard/cli/doctor/redis_check.py": "only slots follow the time of calls",
    "controlplane/policies/latency_advice.py": "only slots follow the time of calls",
    "agents/fuseboard/sidecar/routes.py": "only slots of a request end by themselves, after their window",
    "agents/fuseboard/envoy/answers.py": "Envoy gets no rest of slots; only a bucket has a burst",
    "agents/fuseboard/integrations/wsgi.py": "only slots are freed when a response ends",
    "agents/fuseboard/integrations/legacy_headers.py": "only slots have no older headers",
    "controlplane/api/examples/configuration_out.json": "examples",
    "dashboard/words/labels.py": "only a bucket has a burst",
    "controlplane/api/examples/limits.json": "examples",
    "tools/demo/story/sidecar.py": "one limit of the demo",
    "tools/demo/seed.py": "a budget has a calendar period, which only fixed windows have",
    "controlplane/policies/template_starts.py": "values to start from, for the usual limits",
    "controlplane/weekly/summarize.py": "asks only whether hours show what a window of the limit needs",
    "controlplane/reconciliation/naming.py": "only a token bucket has a burst, which it allows once more",
    "controlplane/usage/budgets.py": "a budget has a calendar period, which only fixed windows have",
    "controlplane/suggestions/reading.py": "only slots are calls at once, which no rate describes",
    "controlplane/policies/older_defaults.py": "asks only for budgets, which are fixed windows",
    "dashboard/views/limits/budget_form.py": "a budget has a calendar period, which only fixed windows have",
    "dashboard/views/limits/template_form.py": "only a token bucket has a burst, which begins as its limit",
    "dashboard/live/capacity.py": "sliding windows are not leased; any other limit is, above the usual rate",
    "dashboard/views/editor/form_input.py": "only a token bucket has a burst, so any other gets 1",
    "docs/examples/quotas.yaml": "an example",
}
#: Words that mean nothing but an algorithm. ``concurrency`` is also a reason.
WORDS = sorted(word.value for word in Algorithm if word is not Algorithm.CONCURRENCY)


def guide() -> dict[str, list[str]]:
    """File -> names in it, from the table."""
    section = (
        (ROOT / "CONTRIBUTING.md").read_text().split("### How to add a limit algorithm")[1].split("###")[0]
    )
    rows = re.findall(r"^\| `([\w./]+)` \| (.+?) \|", section, re.MULTILINE)
    assert len(rows) == len({file for file, _ in rows})
    return {file: re.findall(r"`([\w.]+)`", names) for file, names in rows}


def product_files() -> list[str]:
    out = subprocess.check_output(
        [
            "git",
            "ls-files",
            "-co",
            "--exclude-standard",
            "agents",
            "controlplane",
            "dashboard",
            "docs/examples",
            "tools/demo",
        ],
        cwd=ROOT,
        text=True,
    )
    return [name for name in out.split() if "/migrations/" not in name and (ROOT / name).is_file()]


def names_an_algorithm(name: str, text: str) -> bool:
    if name.endswith(".py"):
        return any(map(_is_algorithm, ast.walk(ast.parse(text))))
    if name.endswith(".lua"):
        return "algorithm" in text.replace("The four algorithms", "") or "CONCURRENCY" in text
    return name.endswith((".html", ".js", ".yaml", ".json")) and any(word in text for word in WORDS)


def _is_algorithm(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id == "Algorithm" and node.attr in Algorithm.__members__
    return isinstance(node, ast.Constant) and node.value in WORDS


@pytest.mark.parametrize("file", guide())
def test_the_guide_names_what_exists(file):
    text = (ROOT / file).read_text()
    assert guide()[file], "what to look for in the file"
    assert [name for name in guide()[file] if not re.search(rf"\b{re.escape(name)}\b", text)] == []


def test_every_file_that_names_an_algorithm_is_in_the_guide_or_excluded_with_a_reason():
    found = {name for name in product_files() if names_an_algorithm(name, _read(name))}
    listed = {file for file in guide() if not file.startswith("docs/")}
    assert found - listed - set(STAY) == set(), "add them to the guide in CONTRIBUTING.md, or to STAY"
    assert (listed | set(STAY)) - found == set(), "these name no algorithm any more"
    assert listed & set(STAY) == set()


def _read(name: str) -> str:
    try:
        return (ROOT / name).read_text()
    except UnicodeDecodeError:
        return ""  # a font or a picture


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.py", "x = Algorithm.CONCURRENCY", True),
        ("a.py", "x = {'fixed_window': 1}", True),
        ("a.py", "from fuseboard.contract.words import Algorithm\nx = Reason.CONCURRENCY", False),
        ("a.lua", "if limit.algorithm == 5 then", True),
        ("a.html", "{% if quota.algorithm == 'token_bucket' %}", True),
        ("a.html", "{{ quota.algorithm }}", False),
    ],
)
def test_what_names_an_algorithm(name, text, found):
    assert names_an_algorithm(name, text) is found
