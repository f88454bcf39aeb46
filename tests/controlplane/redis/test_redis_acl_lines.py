"""The lines of the users of Redis contain what scripts and keys need, and hashes of good passwords."""

import os
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command

from controlplane import redis_acl
from fuseboard.contract import keys

ROOT = Path(__file__).resolve().parents[3]
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


def lines(monkeypatch: pytest.MonkeyPatch, *options: str, **passwords: str) -> str:
    for name in ("AGENT_PASSWORD", "AGENT_PASSWORDS", "CONTROL_PASSWORD"):
        monkeypatch.delenv(f"FUSEBOARD_ACL_{name}", raising=False)
    for name, value in ({"CONTROL_PASSWORD": CONTROL} | passwords).items():
        monkeypatch.setenv(f"FUSEBOARD_ACL_{name}", value)
    out = StringIO()
    call_command("redis_acl", *options, stdout=out)
    return out.getvalue()


def hashes(text: str) -> dict[str, str]:
    return dict(re.findall(r"^user (\S+) on resetpass #(\w+)", text, re.MULTILINE))


BOTH = f"production={AGENT},staging=another {AGENT}"


def test_each_environment_has_its_own_password(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/"  # nobody asks it
    found = hashes(lines(monkeypatch, AGENT_PASSWORDS=BOTH))
    assert set(found) == {"agent-production", "agent-staging", "control"}
    assert len(set(found.values())) == 3
    # One environment of several, and the only one, have the line that they had.
    for chosen in (
        lines(monkeypatch, "--environment", "production", AGENT_PASSWORDS=BOTH),
        lines(monkeypatch, AGENT_PASSWORD=AGENT),
        lines(monkeypatch, "--environment", "production", AGENT_PASSWORD=AGENT),
    ):
        assert hashes(chosen) == {name: found[name] for name in ("agent-production", "control")}


@pytest.mark.parametrize(
    ("options", "passwords", "says"),
    [
        (
            ("a", "b"),
            {"AGENT_PASSWORD": AGENT},
            "password of one environment.*AGENT_PASSWORDS to a=...,b=...",
        ),
        (("a", "b"), {"AGENT_PASSWORDS": f"a={AGENT}"}, "AGENT_PASSWORDS to b=..."),
        ((), {"AGENT_PASSWORDS": f"a={AGENT},b={AGENT}"}, "different passwords"),
        ((), {"AGENT_PASSWORDS": f"a={CONTROL}"}, "different passwords"),
        ((), {"AGENT_PASSWORDS": f"a={AGENT}", "AGENT_PASSWORD": AGENT}, "both set"),
        ((), {"AGENT_PASSWORDS": f"A b={AGENT}"}, "A b is not a valid environment name"),
        ((), {"AGENT_PASSWORDS": "a=short"}, "20 characters"),
        ((), {}, "Set FUSEBOARD_ACL_AGENT_PASSWORDS to production=..."),
        ((), {"AGENT_PASSWORD": AGENT, "CONTROL_PASSWORD": ""}, "Set FUSEBOARD_ACL_CONTROL_PASSWORD"),
    ],
)
def test_no_environment_gets_the_password_of_another(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], passwords: dict[str, str], says: str
) -> None:
    with pytest.raises(CommandError, match=says):
        lines(monkeypatch, *(word for name in options for word in ("--environment", name)), **passwords)


@pytest.mark.parametrize("wrong", [AGENT, f"a={AGENT},a={CONTROL}", "a=", f"={AGENT}"])
def test_a_list_of_passwords_that_cannot_be_read_is_refused(
    monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    with pytest.raises(
        ImproperlyConfigured, match="FUSEBOARD_ACL_AGENT_PASSWORDS must list name=value"
    ) as error:
        lines(monkeypatch, AGENT_PASSWORDS=wrong)
    assert AGENT not in str(error.value)


@pytest.mark.parametrize(
    ("version", "granted"),
    [(None, False), ("7", False), ("7.0.15", False), ("7.2", True), ("8.0.1", True), ("9", True)],
)
def test_a_server_gets_only_commands_that_it_knows(
    monkeypatch: pytest.MonkeyPatch, version: str | None, granted: bool
) -> None:
    options = ("--server-version", version) if version else ()
    text = lines(monkeypatch, *options, AGENT_PASSWORDS=BOTH)
    assert text.count("+client|setinfo") == (3 if granted else 0)


@pytest.mark.parametrize("version", ["6.2", "6", "valkey", "7.2-rc1", "", "-7"])
def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    with pytest.raises(CommandError, match=r"7\.0"):
        lines(monkeypatch, f"--server-version={version}", AGENT_PASSWORD=AGENT)


def test_the_server_may_read_the_file_whatever_the_umask(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = os.umask(0o077)
    try:
        lines(monkeypatch, "--to", str(tmp_path / "users.acl"), AGENT_PASSWORD=AGENT)
    finally:
        os.umask(before)
    file = tmp_path / "users.acl"
    assert file.stat().st_mode & 0o777 == 0o644
    assert AGENT not in file.read_text()
    assert CONTROL not in file.read_text()
