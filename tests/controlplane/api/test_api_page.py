"""The commands of docs/api.md, exactly as written."""

import contextlib
import http.client
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from controlplane.audit.models import Entry
from controlplane.breakers.models import Override
from controlplane.editing import edits
from controlplane.policies.models import TenantQuota
from fuseboard.cli.ctl.exit_codes import Exit
from tests.controlplane.calling import token_of
from tests.controlplane.web_process import web_running

PAGE = (Path(__file__).resolve().parents[3] / "docs/api.md").read_text()


def test_the_commands_of_the_page_work(production: str, ada: Any, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        if os.environ.get("CI"):
            pytest.fail("needs curl")
        pytest.skip("needs curl: install it with `apt-get install curl`")
    edits.create_dependency(
        environment=production, dependency="payments-api", kind="external", reason="for a test", actor=ada
    )
    (tmp_path / "token").write_text(token_of("admin"))
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    with web_running(tmp_path) as processes:
        script = "\n".join(blocks).replace("https://fuseboard.example.com", processes.by_name["web"].url)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert has_head_wherever_get(processes.by_name["web"].url)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert '"quotas.requests.limit"' in done.stdout
    # Applied, and rolled back to the result of the first command.
    assert TenantQuota.objects.get().limit == 2000
    assert Override.objects.filter(ended_at__isnull=False).count() == 2
    assert Entry.objects.filter(action="configuration.rolled_back").exists()
    assert Entry.objects.filter(action="plan.applied").exists()
    assert "dependency.created" in (tmp_path / "audit.jsonl").read_text()
    assert "acme:" in (tmp_path / "production.yaml").read_text()


def has_head_wherever_get(url: str) -> bool:
    """A probe of a load balancer, and ``curl -I``: as GET, without a body."""
    for path, status in (("/healthz", 200), ("/", 302), ("/api/v1/production/tenants", 401), ("/nope", 404)):
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
        with contextlib.closing(connection):
            connection.request("HEAD", path)
            answer = connection.getresponse()
            if (answer.status, answer.read()) != (status, b""):
                return False
    return True


def test_the_page_lists_every_exit_code() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d+) \| [a-z`]", PAGE, re.MULTILINE)}
    assert set(map(int, Exit)) <= listed
