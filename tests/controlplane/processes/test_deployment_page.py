"""What ``docs/deployment.md`` says in figures and in blocks of settings is what the code does."""

import re
from pathlib import Path

import pytest
from django.conf import settings as configured
from django.core.management import call_command

from controlplane import reloading, shutdown
from controlplane.api.http.body_limit import MAX_OF_PLAN
from controlplane.audit_export.export import PAUSES_S
from controlplane.audit_export.skip import MIN_ATTEMPTS
from controlplane.celery import WORKER_END_S, app
from controlplane.fleet import gateway_urls
from controlplane.gateway.emergency.send import SENDERS_AT_ONCE
from controlplane.gateway.servers import fleet_bounds
from controlplane.gateway.wire import serving
from controlplane.management.commands import web, worker
from controlplane.refusals.keys import ACCEPTED_DAYS
from dashboard.consumer import LASTS_S
from fuseboard.contract.sync import MAX_BODY_BYTES
from fuseboard.integrations.idempotency import MAX_KEEP_S
from fuseboard.reporting.heartbeat import HEARTBEAT_BYTES
from tests.controlplane.processes.test_settings import PROJECT, django

TEXT = (PROJECT / "docs/deployment.md").read_text()
PAGE = " ".join(TEXT.split())
KIB, MIB = 1_024, 1_048_576
DAY_S = 86_400
OFTEN = app.conf.beat_schedule


def test_check_deploy_reports_nothing_with_the_variables_of_the_page(tmp_path: Path) -> None:
    block = TEXT.partition("```sh\n")[2].partition("```")[0]
    variables = dict(re.findall(r"^(\w+)=(\S+)", block, re.MULTILINE))
    (tmp_path / "key").write_text("k" * 25 + "0123456789" * 5)
    variables |= {"FUSEBOARD_SECRET_KEY_FILE": str(tmp_path / "key"), "FUSEBOARD_DATA_DIR": str(tmp_path)}
    done = django("check", "--deploy", "--fail-level", "WARNING", **variables)
    assert done.stdout.startswith("System check identified no issues"), done.stderr
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        f"for two files of {MAX_OF_PLAN // MIB} MiB at the same time",
        f"last {configured.SESSION_COOKIE_AGE // 3600} hours, with or without activity",
        f"look it up again after {gateway_urls.KEPT_S:.0f} s",
        f"within {OFTEN['keep-redis-ready']['schedule']} s after a restart",
        f"after {LASTS_S * 0.8 / 60:.0f} to {LASTS_S * 1.2 / 60:.0f} minutes",
        f"| head of a request | {web.LIMITS.head_bytes // KIB} KiB, {web.LIMITS.head_s:.0f} s |",
        f"| first request of a connection | {serving.LIMITS.head_s:.0f} s |",
        f"| time between requests | {serving.KEEP_ALIVE_S} s at the gateway, 5 s at web |",
        f"| body | {serving.LIMITS.body_s:.0f} s and {MAX_BODY_BYTES // KIB} KiB at the gateway,"
        f" {web.LIMITS.body_s:.0f} s at web,",
        f"| answer that the client does not read | {web.LIMITS.unread_s:.0f} s |",
        f"keeps its heartbeat below {HEARTBEAT_BYTES // KIB} KiB",
        f"at most {fleet_bounds.ORDINARY.point_bytes // KIB} KiB of counters of each heartbeat",
        f"more than {fleet_bounds.TOKEN_BYTES // MIB} MiB,"
        f" or of one environment more than {fleet_bounds.ENVIRONMENT_BYTES // MIB} MiB",
        f"{fleet_bounds.SPARSE.point_bytes} bytes of counters and {fleet_bounds.SPARSE.breakers} breakers",
        f"kept answers after {MAX_KEEP_S / DAY_S:.0f} days",
        f"refusal tokens after {ACCEPTED_DAYS + configured.REFUSAL_TOKEN_DAYS} days ({ACCEPTED_DAYS} days in",
        f"are read again every {reloading.READ_S:.0f} s",
        f"finish their requests for at most {serving.GRACE_S} s",
        f"after {shutdown.END_S:.0f} s (web, gateway) or {WORKER_END_S:.0f} s (worker)",
        f"the exit status {shutdown.NOT_ENDED}",
        f"at most {('one', 'two', 'three')[SENDERS_AT_ONCE - 1]} processes while it sends",
        f"`audit.head` every {OFTEN['note-audit-heads']['schedule'] // 60} minutes",
        f"waits {PAUSES_S[0]} s, {PAUSES_S[1]} s, {PAUSES_S[2] // 60} min, and then {PAUSES_S[3] // 60} min",
        f"only after {MIN_ATTEMPTS} refused attempts",
    ],
)
def test_the_page_has_the_figures_of_the_code(words: str) -> None:
    assert words in PAGE


def test_failed_logins_are_limited_as_the_page_says() -> None:
    limits = configured.ACCOUNT_RATE_LIMITS["login_failed"]
    [(address, minutes_of_account)] = re.findall(r"^(\d+)/m/ip,(\d+/\d+)m/key$", limits)
    count, minutes = minutes_of_account.split("/")
    assert f"limited to {address} a minute for each address, and to {count} in {minutes} minutes" in PAGE


def test_web_and_gateway_serve_with_the_limits_of_the_page() -> None:
    async def nothing(*_: object) -> None:
        pass

    served = web.server_config(nothing)
    assert (served.timeout_keep_alive, served.timeout_graceful_shutdown) == (5, serving.GRACE_S)


def test_there_is_no_django_admin() -> None:
    assert "There is no Django admin." in PAGE
    assert "django.contrib.admin" not in configured.INSTALLED_APPS


@pytest.mark.parametrize(("options", "scheduled"), [((), True), (("--without-beat",), False)])
def test_a_worker_leaves_the_schedule_to_beat_if_it_is_told(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], scheduled: bool
) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr(worker.app, "worker_main", given.append)
    call_command("worker", *options)
    assert [("--beat" in arguments) for arguments in given] == [scheduled]
