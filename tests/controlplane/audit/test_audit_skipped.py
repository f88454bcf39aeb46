"""An entry that the SIEM refuses for ever is left out by an admin, and nothing else can be."""

from ipaddress import ip_network
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from controlplane.audit.models import Entry
from controlplane.audit_export.export import NotExported, export_to
from controlplane.audit_export.models import Export
from controlplane.audit_export.skip import MIN_ATTEMPTS, skip_refused
from controlplane.siem.targets import to_webhook
from tests.controlplane.alerts.delivery.sinks import chat
from tests.controlplane.audit.test_audit_export import SECRET, Target, entry
from tests.controlplane.audit.test_audit_export import _nothing_yet as _nothing_yet
from tests.controlplane.calling import API, problem, send, token_of
from tests.people import ADA

pytestmark = pytest.mark.django_db(transaction=True)

WHY = {"reason": "for a test"}


def test_an_admin_leaves_out_an_entry_that_is_refused_and_nothing_else(
    production: str, settings: Any
) -> None:
    """The entry about it arrives in its place, with its number and hash."""
    settings.AUDIT_EXPORT_SECRETS = [SECRET]
    settings.WEBHOOK_NETWORKS = [ip_network("127.0.0.0/8")]
    token = token_of("admin")
    export_to("webhook", Target(), batch=500)
    poison = entry("poison")
    poison.refresh_from_db()
    after = entry("after", production)
    after.refresh_from_db()

    def skip(sequence: int | None) -> Any:
        return send(token, "POST", f"{API}/audit/export/skip", {"sequence": sequence, **WHY})

    problem(skip(poison.sequence), 404)
    with chat(*[422] * MIN_ATTEMPTS, 200) as sink:
        settings.AUDIT_EXPORT_URL = f"http://127.0.0.1:{sink.port}/"
        for attempt in range(MIN_ATTEMPTS):
            if attempt:
                assert "Wait" in problem(skip(poison.sequence), 422)["detail"]
            Export.objects.update(not_before=None)
            assert export_to("webhook", to_webhook, batch=1) == 0
        problem(skip(after.sequence), 404)
        said = skip(poison.sequence).json()
        assert said["action"] == "audit_export.skipped"
        assert said["after"]["hash"] == poison.hash
        assert said["after"]["problem"] == "HTTP 422"
        problem(skip(poison.sequence), 404)
        assert export_to("webhook", to_webhook, batch=1) >= 2, "it does not wait for the pause"
    got = [document["data"] for _, document in sink.got[MIN_ATTEMPTS:]]
    assert [one["target_name"] for one in got if one["environment"] == production] == ["after", "webhook"]
    assert got[-1]["after"]["sequence"] == poison.sequence


def test_a_command_leaves_an_entry_out(capsys: pytest.CaptureFixture[str]) -> None:
    poison = entry("poison")
    poison.refresh_from_db()

    def refuses(_: list[Entry]) -> None:
        raise NotExported("HTTP 400", refused=True)

    asked = ("skip_audit_entry", str(poison.sequence), "--reason", "for a test")
    with pytest.raises(CommandError, match="refused audit entry"):
        call_command(*asked)
    for _ in range(MIN_ATTEMPTS):
        Export.objects.update(not_before=None)
        export_to("webhook", refuses, batch=1)
    call_command(*asked)
    assert "is not exported" in capsys.readouterr().out
    target = Target()
    export_to("webhook", target, batch=1)
    assert [one.action for one in target.got] == ["audit_export.skipped"]


def test_a_process_that_exports_while_an_entry_is_left_out_moves_nothing() -> None:
    """Otherwise the positions that it read before would come back."""
    poison = entry("poison")
    poison.refresh_from_db()
    Export.objects.update(refusals={"production": [poison.sequence, MIN_ATTEMPTS, "HTTP 400"]})

    def slow(_: list[Entry]) -> None:
        skip_refused(
            target="webhook", environment="production", sequence=poison.sequence or 0,
            reason="for a test", actor=ADA,
        )  # fmt: skip
        raise NotExported("HTTP 400", refused=True)

    assert export_to("webhook", slow, batch=1) == 0
    row = Export.objects.get(pk="webhook")
    assert (row.positions["production"], row.refusals) == ([poison.sequence, poison.hash], {})
