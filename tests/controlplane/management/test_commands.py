import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from controlplane.accounts import tokens
from controlplane.accounts.models import AgentToken, User
from controlplane.policies.models import Environment
from controlplane.publishing.publish import publish_head
from fuseboard.contract import keys


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue().strip()


def test_creating_an_environment_twice_leaves_the_first(transactional_db: Any, limits: Any) -> None:
    assert run("create_environment") == "production is at revision 1."
    assert run("create_environment") == "production is at revision 1."
    assert Environment.objects.get().default_tier.name == "anonymous"


def test_a_token_is_printed_once_and_kept_as_a_hash(production: str) -> None:
    text = run("create_agent_token", "pods of the shop")
    row = AgentToken.objects.get()
    assert text.startswith(f"fb_{row.selector}_")
    assert row.digest not in text
    program = tokens.user_of(run("create_api_token", "pager", "--role", "operator"))
    assert program is not None
    assert (program.name, program.role) == ("pager", "operator")
    with pytest.raises(CommandError, match="expires_at"):
        run("create_agent_token", "for ever", "--days", "9999")
    with pytest.raises(CommandError, match="environment"):
        run("create_agent_token", "elsewhere", "--environment", "staging")


def test_a_user_is_created_with_a_role_and_a_fit_password(
    transactional_db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda: "password")
    with pytest.raises(CommandError, match="too common"):
        run("create_user", "olga", "--password-stdin")
    monkeypatch.setattr("builtins.input", lambda: "four random words here")
    run("create_user", "olga", "--role", "operator", "--password-stdin")
    assert User.objects.get().role == "operator"
    with pytest.raises(CommandError, match="already"):
        run("create_user", "olga", "--password-stdin")


def test_after_a_restore_the_epoch_rises_above_lost_revisions(production: str, text_limits: Any) -> None:
    text_limits.hset(keys.config_head("production"), "revision", 900)
    assert run("raise_epoch", "--reason", "restored a backup") == "production is at epoch 2, revision 901."
    assert text_limits.hmget(keys.config_head("production"), "epoch", "revision") == ["2", "901"]
    assert publish_head("production").revision == 901


def test_the_openapi_document_is_printed() -> None:
    """ninja's own command ends in a traceback, because the API is not at /api/."""
    document = json.loads(run("export_openapi_schema"))
    assert document["openapi"].startswith("3.")
    assert "/api/v1/{environment}/tenants" in document["paths"]
