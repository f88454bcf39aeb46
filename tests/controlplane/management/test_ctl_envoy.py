"""``fuseboard ctl envoy`` against a real web process, with the commands of the page."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.editing import edits
from controlplane.policies.models import DescriptorFile, Environment
from fuseboard.cli import main
from fuseboard.cli.ctl.exit_codes import Exit
from tests.controlplane.calling import token_of
from tests.controlplane.web_process import web_running
from tests.dashboard.fleet_rows import put_asked, put_server
from tests.people import ADA

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "envoy.md").read_text()
FILE = PAGE.split("```yaml\n")[1].split("```")[0]
SCRIPT = PAGE.split("## Keep the rules in the configuration")[1].split("```sh\n")[1].split("```")[0]
WHY = ("--reason", "As in envoyproxy/ratelimit")


@pytest.fixture(scope="module")
def web(django_db_setup: Any, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with web_running(tmp_path_factory.mktemp("web")) as processes:
        yield processes.by_name["web"].url


@pytest.fixture
def ctl(
    web: str,
    production: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., Any]:
    """Runs a command as an admin, in a folder with the file of the page: exit code, output, errors."""
    monkeypatch.setenv("FUSEBOARD_API_URL", web)
    monkeypatch.setenv("FUSEBOARD_API_TOKEN", token_of("admin"))
    monkeypatch.chdir(tmp_path)
    Path("limits.yaml").write_text(FILE)
    edits.create_dependency(
        environment="production", dependency="payments-api", kind="external", reason="for a test", actor=ADA
    )

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["ctl", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def head() -> int:
    return Environment.objects.get(pk="production").revision


def test_the_commands_of_the_page_work(ctl: Any) -> None:
    said = []
    for line in SCRIPT.splitlines():
        words = shlex.split(line)
        assert words[:3] == ["fuseboard", "ctl", "envoy"]
        code, output, errors = ctl(*words[2:])
        assert code == Exit.DONE, errors
        said.append(output)
    plan, applied, exported = said
    assert "+ descriptors edge" in plan
    assert "Applied as revision" in applied
    assert exported == FILE
    assert DescriptorFile.objects.get().file == FILE
    assert re.search(r"edge +5", ctl("envoy", "list")[1])
    assert json.loads(ctl("envoy", "list", "--json")[1]) == [{"domain": "edge", "rules": 5, "version": 1}]
    assert json.loads(ctl("envoy", "export", "edge", "--json")[1])["file"] == FILE
    assert "matches the file" in ctl("envoy", "import", "limits.yaml", "--plan")[1]


def test_a_plan_says_what_is_not_as_in_envoyproxy_ratelimit(ctl: Any) -> None:
    rule = "{key: k, rate_limit: {unit: week, requests_per_unit: 1}}"
    Path("weekly.yaml").write_text(f"domain: weekly\ndescriptors:\n- {rule}\n")
    code, planned, errors = ctl("envoy", "import", "weekly.yaml", "--plan")
    assert code == Exit.DONE, errors
    assert "+ descriptors weekly" in planned
    assert "weekly.yaml:3: note: A week begins on Monday" in errors


def test_files_are_imported_together_or_not_at_all(ctl: Any) -> None:
    before = head()
    Path("wrong.yaml").write_text("domain: mesh\ndescriptors:\n- key: k*\n")
    code, _, errors = ctl("envoy", "import", "limits.yaml", "wrong.yaml", "--apply", *WHY)
    assert code == Exit.REFUSED
    assert "wrong.yaml:3: A key cannot contain *" in errors
    Path("again.yaml").write_text(FILE)
    code, _, errors = ctl("envoy", "import", "limits.yaml", "again.yaml", "--plan")
    assert code == Exit.REFUSED
    assert "The domain edge is also in limits.yaml" in errors
    Path("mesh.yaml").write_text("domain: mesh\ndescriptors: [{key: k, dependency: nobody}]\n")
    code, _, errors = ctl("envoy", "import", "limits.yaml", "mesh.yaml", "--apply", *WHY)
    assert code == Exit.REFUSED
    assert "Line 2 of the file: there is no dependency" in errors
    assert ctl("envoy", "import", "missing.yaml", "--plan")[0] == Exit.USAGE
    assert ctl("envoy", "import", "limits.yaml", "--apply")[0] == Exit.USAGE
    assert head() == before


def test_a_domain_with_slashes_is_imported_exported_and_removed(ctl: Any) -> None:
    name = "default/gateway-1/http"
    text = FILE.replace("domain: edge", f"domain: {name}")
    Path("gateway.yaml").write_bytes(text.replace("\n", "\r\n").encode())
    assert ctl("envoy", "import", "gateway.yaml", "--apply", "--yes", *WHY)[0] == Exit.DONE
    assert DescriptorFile.objects.get().name == name
    assert ctl("envoy", "export", name)[1] == text
    assert ctl("envoy", "remove", name, *WHY)[0] == Exit.DONE
    assert not DescriptorFile.objects.exists()


def test_the_pods_that_answered_envoy_are_listed(ctl: Any) -> None:
    put_server("edge-1", service="edge", revision=7)
    put_asked("edge", {"tenant": [1_200, 0, 0]}, pods={"edge-1": 1_200})
    code, listed, errors = ctl("envoy", "pods")
    assert code == Exit.DONE, errors
    assert re.search(r"^edge-1 +edge +online +1,200 +7 +2", listed, flags=re.MULTILINE)
    assert "1 of at least 1 pods since " in listed
    (pod,) = json.loads(ctl("envoy", "pods", "--json")[1])["pods"]
    assert (pod["name"], pod["asked"]) == ("edge-1", 1_200)


def test_domains_that_no_file_has_are_deleted_with_prune(ctl: Any) -> None:
    letters = "domain: mesh # caf\u00e9 \u2013 \U0001f680\u2028# \u00a0\x85# end\n"
    Path("mesh.yaml").write_text(letters)
    assert ctl("envoy", "import", "limits.yaml", "mesh.yaml", "--apply", *WHY)[0] == Exit.DONE
    assert ctl("envoy", "export", "mesh")[1] == letters
    assert ctl("envoy", "import", "mesh.yaml", "--apply", "--prune", *WHY)[0] == Exit.DONE
    assert list(DescriptorFile.objects.values_list("name", flat=True)) == ["mesh"]
    assert ctl("envoy", "remove", "mesh", *WHY)[0] == Exit.DONE
    assert ctl("envoy", "export", "mesh")[0] == Exit.REFUSED
    assert not DescriptorFile.objects.exists()
