"""The lines of the users of Redis contain what scripts and keys need, and hashes of good passwords."""

import re
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from controlplane import redis_acl
from fuseboard.contract import keys

ROOT = Path(__file__).resolve().parents[2]
AGENT, CONTROL = "the password of the pods", "the password of the control plane"


@pytest.mark.parametrize(
    ("folder", "granted"),
    [
        ("agents/fuseboard/lua", (*redis_acl.AGENT, *redis_acl.SPEAK)),
        ("controlplane", redis_acl.CONTROL),
    ],
)
def test_every_command_of_a_script_is_granted_to_its_callers(folder: str, granted: tuple[str, ...]) -> None:
    used = set()
    for file in (ROOT / folder).rglob("*.lua"):
        used |= {word.lower() for word in re.findall(r"redis\.p?call\(\s*'([A-Za-z]+)'", file.read_text())}
    assert used
    assert used <= set(granted)


def test_every_key_of_the_contract_is_granted_to_a_user() -> None:
    line = redis_acl.agent_user("production", AGENT)
    prefixes = [word.partition("~")[2].rstrip("*") for word in line.split() if "~" in word]
    for key in (
        keys.breaker("production", "openai"),
        keys.vendor_limit("production", "openai", "contract"),
        keys.dependency_quota("production", "openai", "acme", "q"),
        keys.tenant_quota("production", "acme", "q"),
        keys.member_quota("production", "acme", "ann", "q"),
        keys.subject_limit("production", "10.0.0.1", "l"),
        keys.ramp("production"),
        keys.config_head("production"),
        keys.own_bucket("production", 1023),
    ):
        assert any(key.startswith(prefix) for prefix in prefixes), key
    assert not any(keys.emergency("production").startswith(prefix) for prefix in prefixes)


@pytest.mark.parametrize(
    ("agent", "control", "says"),
    [
        ("", CONTROL, "Set FUSEBOARD_ACL"),
        (CONTROL, CONTROL, "different passwords"),
        ("short", CONTROL, "20 characters"),
    ],
)
def test_passwords_are_required(monkeypatch: pytest.MonkeyPatch, agent: str, control: str, says: str) -> None:
    monkeypatch.setenv("FUSEBOARD_ACL_AGENT_PASSWORD", agent)
    monkeypatch.setenv("FUSEBOARD_ACL_CONTROL_PASSWORD", control)
    with pytest.raises(CommandError, match=says):
        call_command("redis_acl", stdout=StringIO())
