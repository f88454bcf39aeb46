"""``fuseboard ctl`` against a real web process."""

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.accounts import tokens
from controlplane.approvals import rules
from controlplane.approvals.models import ChangeRequest
from controlplane.audit.models import Entry
from controlplane.breakers.models import Override
from controlplane.editing import edits
from controlplane.policies.models import Environment, TenantQuota
from controlplane.refusals.models import RefusalSample, RefusalService
from controlplane.refusals.samples import token_of as token_of_sample
from controlplane.series import sealing
from controlplane.series.kinds import DEPENDENCY, RULE
from controlplane.usage.models import Demand
from fuseboard.cli import main
from fuseboard.cli.ctl.exit_codes import Exit
from tests.controlplane.calling import API, send, token_of
from tests.controlplane.series.test_series_sealing import measure, row, thing, writer
from tests.controlplane.web_process import web_running
from tests.people import ADA, BOB, create_people

ROOT = Path(__file__).resolve().parents[3]
PLAN = """\
tiers:
  pro:
    quotas:
      requests: {limit: 1200, window_s: 60, burst: 120}
tenants:
  acme:
    quotas:
      requests: {limit: 2500, window_s: 60, burst: 250}
  globex:
    tier: pro
    title: Globex
"""
WHY = ("--reason", "Agreed with Acme")


@pytest.fixture(scope="module")
def web(django_db_setup: Any, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with web_running(tmp_path_factory.mktemp("web")) as processes:
        yield processes.by_name["web"].url


@pytest.fixture
def ctl(
    web: str, production: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Runs a command as an admin, or as another role: exit code, output, errors."""
    monkeypatch.setenv("FUSEBOARD_API_URL", web)
    given: dict[str, str] = {}

    def run(*arguments: str, role: str = "admin") -> tuple[int, str, str]:
        if role not in given:
            given[role] = token_of(role)
        monkeypatch.setenv("FUSEBOARD_API_TOKEN", given[role])
        code = main(["ctl", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "quotas.yaml"
    path.write_text(PLAN)
    return str(path)


def revision() -> int:
    return Environment.objects.get(pk="production").revision


def test_a_plan_is_shown_applied_and_applied_again_without_a_change(ctl: Any, file: str) -> None:
    before = revision()
    code, said, _ = ctl("plan", file)
    assert code == Exit.DONE
    assert "1 to create, 2 to change, 0 to remove" in said
    assert "2,500" in said
    assert revision() == before
    assert ctl("plan", file, "--detailed-exit-code")[0] == Exit.CHANGES
    code, said, _ = ctl("apply", file, *WHY)
    assert (code, f"Applied as revision {before + 1}." in said) == (Exit.DONE, True)
    assert TenantQuota.objects.get().limit == 2500
    entries = Entry.objects.count()
    for command in (("plan", file, "--detailed-exit-code"), ("apply", file, *WHY)):
        code, said, _ = ctl(*command)
        assert (code, said) == (
            Exit.DONE,
            f"Nothing would change: revision {before + 1} matches the file.\n",
        )
    assert (revision(), Entry.objects.count()) == (before + 1, entries)


def test_the_commands_of_the_readme_do_what_it_says(ctl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    commands = re.findall(r"^fuseboard ctl (.*?)(?:\s+#.*)?$", (ROOT / "README.md").read_text(), re.MULTILINE)
    said = [ctl(*shlex.split(command)) for command in commands]
    assert [code for code, _, _ in said] == [Exit.DONE] * 3
    assert "acme-retail" in said[0][1]
    assert "Applied as revision" in said[1][1]
    assert "Nothing would change" in said[2][1]


def test_a_plan_is_replayed_on_recorded_demand(ctl: Any, file: str) -> None:
    assert "There are no measurements of the last 7 days" in ctl("what-if", file)[1]
    minute = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=5)
    for number in range(3):
        Demand.objects.create(
            environment="production",
            tenant="acme",
            grain_s=60,
            at=minute + timedelta(minutes=number),
            asked=2000,
            refused=900,
        )
    code, said, _ = ctl("what-if", file, "--days", "2", role="viewer")
    assert (code, "6,000 requests" in said) == (Exit.DONE, True)
    before, after = re.search(r"refused +([\d,]+) -> ([\d,]+)", said).groups()
    assert int(before.replace(",", "")) > int(after.replace(",", "")) == 0
    [first, *_] = usage_of("acme")
    assert (first["asked"], first["refused"]) == (2000, 900)


def usage_of(tenant: str) -> Any:
    return send(token_of("viewer"), "GET", f"{API}/tenants/{tenant}/usage").json()


def test_the_request_limits_are_exported_for_nginx(ctl: Any) -> None:
    code, said, _ = ctl("export", "--nginx", "--header", "X-Org", "--gateways", "2")
    assert code == Exit.DONE
    assert "map $http_x_org $fuseboard_class {" in said
    assert re.search(r"^limit_req_zone \S+ zone=\w+:10m rate=500r/m;$", said, re.MULTILINE)
    assert ctl("export", "--nginx", "--header", "X{")[0] == Exit.REFUSED


def test_an_export_changes_nothing_and_a_rollback_brings_everything_back(
    ctl: Any, file: str, tmp_path: Path
) -> None:
    start = revision()
    ctl("apply", file, *WHY)
    exported = tmp_path / "all.yaml"
    exported.write_text(ctl("export")[1])
    assert json.loads(ctl("export", "--json")[1])["text"] == exported.read_text()
    assert ctl("plan", str(exported), "--prune", "--detailed-exit-code")[0] == Exit.DONE
    code, said, _ = ctl("rollback", str(start), *WHY)
    assert (code, f"as revision {start + 2}" in said) == (Exit.DONE, True)
    assert not TenantQuota.objects.exists()
    assert "configuration.rolled_back" in ctl("revisions")[1]


def test_a_revert_undoes_one_revision_after_a_dry_run(ctl: Any, file: str) -> None:
    ctl("apply", file, *WHY)
    number = revision()
    code, said, _ = ctl("revert", str(number), "--dry-run", *WHY)
    assert (code, revision()) == (Exit.DONE, number)
    assert "Nothing was changed." in said
    code, said, _ = ctl("revert", str(number), "--tenant", "acme", *WHY)
    assert (code, revision()) == (Exit.DONE, number + 1)
    assert f"Revision {number} is reverted, as revision {number + 1}." in said
    assert "Nothing to do." in ctl("revert", str(number), "--tenant", "acme", *WHY)[1]
    assert json.loads(ctl("revert", str(number), "--json", *WHY)[1])["kept"] == []


def test_an_invalid_plan_names_its_lines_and_applies_nothing(ctl: Any, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("tenants:\n  acme:\n    quotas:\n      requests: {limit: -1, window_s: 60}\n")
    before = revision()
    code, said, errors = ctl("apply", str(path), *WHY)
    assert (code, said, revision()) == (Exit.REFUSED, "", before)
    assert "Line 4" in errors
    assert ctl("plan", str(tmp_path / "missing.yaml"))[0] == Exit.USAGE


def test_a_refusal_is_listed_and_explained_by_its_token_or_number(ctl: Any, monkeypatch: Any) -> None:
    now = timezone.now()
    RefusalService.objects.create(environment="production", service="shop", last_on=now.date())
    sample = RefusalSample.objects.create(
        environment="production",
        at=now - timedelta(minutes=2),
        service="shop",
        server="web-1",
        rule="requests",
        reason="quota",
        mode="shared",
        tenant="acme",
        endpoint="POST /v1/\x1b[31morders",
        revision=1,
        retry_after_ms=12_400,
        weight=30.0,
    )
    code, said, _ = ctl("refusals", "--tenant", "acme", role="viewer")
    assert code == 0
    assert "Pods do not count this combination. Samples: 1." in said
    assert "web-1  100 %" in said
    assert "\x1b" not in said
    assert str(sample.pk) in said
    for given in (str(sample.pk), token_of_sample(sample)):
        code, said, _ = ctl("explain", given, role="viewer")
        assert code == 0
        assert "Asking again was possible after 12.4 s." in said
    while not token_of_sample(sample).endswith("-"):
        sample.retry_after_ms += 1
    code, said, _ = ctl("explain", token_of_sample(sample), role="viewer")
    assert code == 0, "the last letter is part of the token"
    monkeypatch.setattr("sys.stdin", StringIO(f"{token_of_sample(sample)}\n"))
    code, said, _ = ctl("explain", "-", "--json", role="viewer")
    assert json.loads(said)["tenant"] == "acme"
    code, said, _ = ctl("refusals", "--pod", "web-9", "--json")
    assert json.loads(said)["samples"] == []
    code, _, wrong = ctl("explain", "fr1.nothing")
    assert (code, "not a token of this installation" in wrong) == (Exit.REFUSED, True)


def test_error_budgets_are_printed_as_the_page_has_them(ctl: Any) -> None:
    hour = timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
    openai, quota = thing(DEPENDENCY, "openai", first_at=hour), thing(RULE, "acme", sub="rpm", first_at=hour)
    measure(one := writer(), 0, DEPENDENCY, {openai: row(DEPENDENCY, 980, failures=20)}, hour=hour)
    measure(one, 0, RULE, {quota: row(RULE, 10_000, refused=5)}, hour=hour)
    sealing.seal(hour + timedelta(hours=1, minutes=30))
    code, said, _ = ctl("error-budgets", role="viewer")
    assert code == Exit.DONE
    assert said.startswith("1 error budget is spent. The target is 99.9 % over 28 days.")
    lines = [line.split() for line in said.splitlines()]
    assert ["openai", "spent", "20", "1,000", "no", "calls", "20.0", "20.0"] in lines
    assert ["acme", "rpm", "50.0", "%", "5", "10,000", "no", "calls", "0.5", "0.5"] in lines
    code, said, _ = ctl("error-budgets", "--tenant", "acme", "--json", role="viewer")
    found = json.loads(said)
    assert (code, found["dependencies"], found["tenants"][0]["bad"]) == (Exit.DONE, [], 5)


def test_a_breaker_is_tripped_extended_explained_ended_and_reset(ctl: Any) -> None:
    code, said, _ = ctl("trip", "openai", "--for", "10m", "--reason", "The vendor is down")
    assert (code, "openai is overridden to forced_open for 10 min" in said) == (Exit.DONE, True)
    ticket = "https://tickets.example.com/OPS-4821"
    assert ctl("extend", "openai", "--for", "1h", *WHY, "--ticket", ticket)[0] == Exit.DONE
    assert ctl("extend", "openai", "--for", "1h", "--reason", "They need longer")[0] == Exit.DONE
    held = Override.objects.get(ended_at=None)
    assert (held.expires_at - held.created_at).total_seconds() == pytest.approx(3600, abs=5)
    code, said, _ = ctl("explain", "--dependency", "openai")
    assert "calls to openai are refused" in said
    assert "They need longer" in said
    assert f"ticket {ticket}" in said
    assert f"They need longer ({ticket})" in ctl("breakers")[1]
    assert ctl("trip", "openai", "--for", "1h", *WHY, "--ticket", "javascript:1")[0] == Exit.REFUSED
    assert ctl("end", "openai", "--reason", "They are back")[0] == Exit.DONE
    code, _, errors = ctl("end", "openai", "--reason", "They are back")
    assert (code, "override of 'openai'" in errors) == (Exit.REFUSED, True)
    assert ctl("reset", "openai", "--reason", "They are back")[0] == Exit.DONE
    code, _, errors = ctl(
        "override", "openai", "--mode", "forced_closed", "--for", "2h", "--reason", "Trust me"
    )
    assert (code, errors) == (
        Exit.REFUSED,
        "fuseboard ctl: expires_at: Choose a time at most 15 minutes from now.\n",
    )


def test_a_quota_edit_keeps_omitted_values(ctl: Any) -> None:
    code, said, _ = ctl("quota", "set", "acme", "requests", "--limit", "2000", *WHY)
    assert code == Exit.DONE
    assert "2000 per 60 s, 100 at once (was 1000 per 60 s, 100 at once)" in said
    assert "its own" in ctl("tenant", "show", "acme")[1]
    assert ctl("quota", "set", "--tier", "pro", "requests", "--burst", "90", *WHY)[0] == Exit.DONE
    code, _, errors = ctl("quota", "set", "acme", "tokens", "--limit", "5", *WHY)
    assert (code, "--window-s, --burst" in errors) == (Exit.USAGE, True)
    code, _, errors = ctl("quota", "set", "acme", "requests", "--limit", "1", "--if-version", "1", *WHY)
    assert (code, "token test admin changed it meanwhile" in errors) == (Exit.CONFLICT, True)


def test_a_template_is_set_followed_shown_and_removed(ctl: Any) -> None:
    new = ("template", "set", "standard", "--limit", "900", "--window-s", "60", *WHY)
    assert "This changes no limit." in ctl(*new, "--dry-run")[1]
    assert "Template standard is saved as revision" in ctl(*new)[1]
    code, said, _ = ctl("quota", "set", "acme", "requests", "--template", "standard", "--burst", "7", *WHY)
    assert (code, "with the values of template standard, own values: burst 7" in said) == (Exit.DONE, True)
    assert ctl("quota", "set", "acme", "requests", "--burst", "8", *WHY)[0] == Exit.DONE
    code, said, _ = ctl("template", "set", "standard", "--limit", "901", *WHY)
    assert (code, "This changes 1 limit of 1 tenant." in said) == (Exit.DONE, True)
    assert "901 per 60 s, 8 at once, template standard" in ctl("tenant", "show", "acme")[1]
    said = ctl("template", "show", "standard")[1]
    assert all(word in said for word in ("tenant acme", "requests", "burst 8"))
    assert "1 limit of 1 tenant" in ctl("template", "list")[1]
    code, _, errors = ctl("template", "remove", "standard", *WHY)
    assert (code, "followed by 1 limit of 1 tenant" in errors) == (Exit.REFUSED, True)
    assert ctl("template", "remove", "standard", "--keep-values", *WHY)[0] == Exit.DONE
    assert ctl("template", "list", "--json")[1] == "[]\n"


def test_every_command_has_json_output(ctl: Any) -> None:
    for command in (
        ("breakers",),
        ("pods",),
        ("revisions",),
        ("tenant", "list"),
        ("tenant", "show", "acme"),
        ("tenant", "effective", "acme"),
        ("explain", "--tenant", "acme"),
    ):
        code, said, errors = ctl(*command, "--json", role="viewer")
        assert (code, errors) == (Exit.DONE, "")
        json.loads(said)
        assert ctl(*command, role="viewer")[0] == Exit.DONE


def test_missing_permission_is_reported(ctl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ctl("trip", "openai", "--for", "10m", *WHY, role="viewer")[0] == Exit.FORBIDDEN
    assert ctl("--environment", "staging", "breakers")[0] == Exit.REFUSED
    monkeypatch.setattr(tokens, "create_api_token", lambda **_: "fb_0_0")
    code, _, errors = ctl("breakers", role="operator")
    assert (code, "valid token" in errors) == (Exit.FORBIDDEN, True)


def test_tail_prints_events_as_they_happen(ctl: Any, ada: Any) -> None:
    def edit() -> None:
        from django.db import connection

        edits.suspend_tenant(environment="production", tenant="acme", reason="unpaid since May", actor=ada)
        connection.close()

    timer = threading.Timer(0.5, edit)
    timer.start()
    code, said, _ = ctl("tail", "--for", "3s", "--every", "0.2")
    timer.join()
    assert code == Exit.DONE
    assert said.count("tenant.suspended  tenant acme") == 1
    assert "unpaid since May" in said


def test_the_command_needs_no_django(web: str, production: str) -> None:
    token = token_of("viewer")
    code = (
        "import sys; sys.modules['django'] = None;"
        "from fuseboard.cli import main; sys.exit(main(['ctl', 'tenant', 'list']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "FUSEBOARD_API_URL": web, "FUSEBOARD_API_TOKEN": token},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "acme" in done.stdout


def test_an_edit_that_needs_approval_is_proposed_approved_and_applied(
    ctl: Any, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    create_people("ada", "bob")
    rules.set_approvals(environment="production", needed=1, reason="for a test", actor=ADA)
    before = revision()
    code, said, _ = ctl("apply", file, *WHY)
    number = str(ChangeRequest.objects.get().pk)
    assert (code, f"Proposed as request {number}: it needs 1 approval." in said) == (Exit.WAITS, True)
    code, said, _ = ctl("quota", "set", "acme", "requests", "--limit", "7", "--json", *WHY)
    assert (code, json.loads(said)["state"]) == (Exit.WAITS, "open")
    assert ctl("approve", number)[0] == Exit.FORBIDDEN
    other = tokens.create_api_token(
        name="of bob",
        role="operator",
        expires_at=timezone.now() + timedelta(hours=1),
        reason="for a test",
        actor=BOB,
    )
    monkeypatch.setenv("FUSEBOARD_API_TOKEN", other)
    code = main(["ctl", "approve", number, "--note", "as agreed"])
    said = capsys.readouterr().out
    assert (code, "requests.limit: nothing -> 2500" in said) == (Exit.DONE, True)
    assert f"Request {number} is approved, 1 of 1 approvals." in said
    assert "approved  1 of 1" in ctl("change-requests")[1]
    assert f"as revision {before + 1}" in ctl("apply-request", number)[1]
    assert TenantQuota.objects.get().limit == 2500
    code, _, errors = ctl("apply-request", number)
    assert (code, "already" in errors) == (Exit.REFUSED, True)
