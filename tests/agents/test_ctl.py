"""``fuseboard ctl`` without a control plane: variables, invalid answers, and shells."""

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from fuseboard.cli import main
from fuseboard.cli.ctl import client as ctl_client
from fuseboard.cli.ctl.breakers import duration
from fuseboard.cli.ctl.exit_codes import Exit
from fuseboard.contract.limit_fields import QUOTAS, LimitField, fields_of

TOKEN = "fb_0123456789abcdef_" + "5" * 64
WHY = ["--reason", "vendor is down"]
TRIP = ["ctl", "trip", "payments-api", "--for", "10m", *WHY]


class Api:
    """Answers from a list: status, headers, body; an exception in place of an answer hangs up."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length)
                api.asked.append((self.command, self.path, dict(self.headers), body))
                answer = api.answers.pop(0)
                if answer is None:
                    self.close_connection = True
                    return
                status, headers, content = answer
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = _answer  # noqa: N815 - as http.server wants them

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    api = Api()
    thread = threading.Thread(target=api.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("FUSEBOARD_API_URL", api.url)
    monkeypatch.setenv("FUSEBOARD_API_TOKEN", TOKEN)
    monkeypatch.setattr(ctl_client, "_PAUSES_S", (0.01, 0.01, 0.01))
    yield api
    api.server.shutdown()
    api.server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, "FUSEBOARD_API_URL is not set"),
        ({"FUSEBOARD_API_URL": "https://board.example.com"}, "FUSEBOARD_API_TOKEN is not set"),
        ({"FUSEBOARD_API_URL": "board.example.com"}, "must be an address"),
        ({"FUSEBOARD_API_URL": "file:///etc/passwd"}, "must be an address"),
        ({"FUSEBOARD_API_URL": "https://board.example.com:\n443"}, "must be an address"),
        ({"FUSEBOARD_API_URL": "https://board.example.com:abc"}, "must be an address"),
        ({"FUSEBOARD_API_URL": "http://board.example.com"}, "must begin with https://"),
        ({"FUSEBOARD_API_URL": "https://me:secret@board.example.com"}, "must not contain a password"),
        ({"FUSEBOARD_API_TOKEN_FILE": "/nowhere/token"}, "TOKEN_FILE cannot be read: No such file"),
        ({"FUSEBOARD_API_TOKEN_FILE": "/x", "FUSEBOARD_API_TOKEN": TOKEN}, "both set: keep one"),
        ({"FUSEBOARD_API_TOKEN": f'"{TOKEN}" '}, ""),
        ({"FUSEBOARD_API_TOKEN": "fb_\u00e9_x"}, "characters that no token has"),
        ({"FUSEBOARD_ENVIRONMENT": "not a slug"}, "the environment must be"),
    ],
)
def test_a_wrong_variable_is_named_and_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variables: dict[str, str], says: str
) -> None:
    if any("TOKEN" in name or "ENVIRONMENT" in name for name in variables):
        monkeypatch.setenv("FUSEBOARD_API_URL", "http://127.0.0.1:1")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ctl_client, "_PAUSES_S", ())
    code = main(["ctl", "pods"])
    errors = capsys.readouterr().err
    assert code == (Exit.USAGE if says else Exit.UNREACHABLE)
    assert says in errors
    assert "secret" not in errors
    assert TOKEN not in errors


def test_no_option_takes_a_token() -> None:
    with pytest.raises(SystemExit) as refused:
        main(["ctl", "--token", TOKEN, "pods"])
    assert refused.value.code == 2


def test_an_edit_without_an_answer_is_sent_again_under_the_same_key(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = {"title": "Conflict", "status": 409, "detail": "still being worked on"}
    api.answers = [None, (503, {}, b"<html>"), (409, {"Retry-After": "0"}, busy), (200, {}, {"revision": 7})]
    assert main(TRIP) == Exit.DONE
    assert "as revision 7" in capsys.readouterr().out
    assert len({asked[2]["Idempotency-Key"] for asked in api.asked}) == 1
    assert len({asked[3] for asked in api.asked}) == 1
    method, path, headers, body = api.asked[0]
    assert (method, path) == ("POST", "/api/v1/production/breakers/payments-api/override")
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert json.loads(body) == {"mode": "forced_open", "expires_in_s": 600, "reason": "vendor is down"}


@pytest.mark.parametrize(
    ("answer", "known"),
    [
        (None, False),
        ((502, {}, b"<html>"), False),
        ((503, {}, {"title": "Service Unavailable", "detail": "Postgres is down."}), True),
        ((429, {"Retry-After": "0"}, {"title": "Too Many Requests", "detail": "slow down"}), True),
    ],
)
def test_an_edit_that_never_got_an_answer_may_have_been_made(
    api: Api, capsys: pytest.CaptureFixture[str], answer: Any, known: bool
) -> None:
    attempts = len(ctl_client._PAUSES_S) + 1
    api.answers = [answer] * attempts
    assert main(TRIP) == Exit.UNREACHABLE
    assert ("It is not known whether a change was made" not in capsys.readouterr().err) == known
    # A request that only reads changes nothing.
    api.answers = [answer] * attempts
    assert main(["ctl", "pods"]) == Exit.UNREACHABLE
    assert "not known" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "document", "code", "says"),
    [
        (422, {"errors": [{"field": "reason", "message": "Say why."}]}, Exit.REFUSED, "reason: Say why."),
        (404, {"detail": "There is no dependency."}, Exit.REFUSED, "There is no dependency."),
        (401, {"detail": "Log in."}, Exit.FORBIDDEN, "Log in."),
        (403, {"detail": "Your role may not do this."}, Exit.FORBIDDEN, "Your role"),
        (409, {"detail": "ada changed it"}, Exit.CONFLICT, "ada changed it"),
        (428, {"detail": "Send the version"}, Exit.CONFLICT, "Send the version"),
        (500, {"detail": "our fault"}, Exit.UNREACHABLE, "our fault"),
        (200, {"revision": "seven"}, Exit.UNREACHABLE, "not from this API"),
        (200, [], Exit.UNREACHABLE, "not from this API"),
    ],
)
def test_an_answer_becomes_an_exit_code_and_a_sentence(
    api: Api, capsys: pytest.CaptureFixture[str], status: int, document: Any, code: Exit, says: str
) -> None:
    api.answers = [(status, {"RateLimit": "caller"}, document)]
    assert main(TRIP) == code
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "new", "old"),
    [(TRIP, "override", "hold"), (["ctl", "end", "payments-api", *WHY], "end-override", "release")],
)
def test_a_server_of_version_0_1_0_is_asked_by_the_old_name(
    api: Api, capsys: pytest.CaptureFixture[str], command: list[str], new: str, old: str
) -> None:
    missing = {"title": "Not Found", "status": 404, "detail": "There is nothing at this address."}
    api.answers = [(404, {}, missing), (200, {}, {"revision": 7})]
    assert main(command) == Exit.DONE
    assert [asked[1].rpartition("/")[2] for asked in api.asked] == [new, old]
    assert api.asked[0][3] == api.asked[1][3]
    # What the operation itself does not find is not asked for again.
    api.answers = [(404, {"RateLimit": "caller"}, {"detail": "There is no dependency."})]
    assert main(command) == Exit.REFUSED
    assert "There is no dependency." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        (["hold", *TRIP[2:], "--mode", "disabled"], "override", {"revision": 7}),
        (["servers", "--json"], "pods", []),
        (["requests", "--json"], "change-requests", {"items": [], "next": None}),
    ],
)
def test_a_deprecated_command_works_and_names_the_new_one(
    api: Api, capsys: pytest.CaptureFixture[str], old: list[str], new: str, answer: Any
) -> None:
    api.answers = [(200, {}, answer), (200, {}, answer)]
    assert main(["ctl", new, *old[1:]]) == Exit.DONE
    out, err = capsys.readouterr()
    assert err == ""
    assert main(["ctl", *old]) == Exit.DONE
    expected = f"fuseboard ctl: {old[0]} is deprecated and will be removed in release 0.3: use {new}\n"
    assert capsys.readouterr() == (out, expected)
    assert api.asked[0][:2] == api.asked[1][:2]
    with pytest.raises(SystemExit):
        main(["ctl", "--help"])
    assert f"deprecated: use {new}" in capsys.readouterr().out


def test_a_redirect_is_not_followed_so_that_the_token_goes_nowhere_else(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    api.answers = [(302, {"Location": "https://elsewhere.example.com/"}, b"")]
    assert main(["ctl", "pods"]) == Exit.UNREACHABLE
    assert "elsewhere.example.com" in capsys.readouterr().err
    assert len(api.asked) == 1


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    api.answers = [(200, {}, {"revision": 7})]
    assert main(TRIP) == Exit.DONE


def test_names_and_words_of_others_do_no_harm(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "dependency": "llm",
        "state": "open",
        "since": None,
        "until": None,
        "cause": "forced",
        "source": "redis",
        "override": {
            "mode": "forced_open",
            "reason": "\x1b[2J\u202egone",
            "actor": "mallory",
            "expires_at": "2027-01-01T00:00:00Z",
        },
    }
    api.answers = [(200, {}, [row]), (200, {}, {"revision": 1})]
    assert main(["ctl", "breakers"]) == Exit.DONE
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert main(["ctl", "end", "../tenants?x=1#y", "--reason", "for a test"]) == Exit.DONE
    assert api.asked[-1][1] == "/api/v1/production/breakers/..%2Ftenants%3Fx%3D1%23y/end-override"


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200)])
def test_times_are_written_with_their_unit(text: str, seconds: int) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "0s", "-1h", "1d", "1.5h", "\uff11h", "1h30m", "9999999s"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["ctl", "trip", "llm", "--for", text, "--reason", "vendor is down"])
    assert refused.value.code == 2


def complete(words: str) -> set[str]:
    """What bash offers at the end of the line."""
    typed = ["fuseboard", *words.split(" ")]
    ask = """eval "$1"; COMP_WORDS=("${@:2}"); COMP_CWORD=$(($# - 2)); _fuseboard; echo "${COMPREPLY[@]}" """
    script = subprocess.run(
        ["bash", "-c", ask, "bash", _script("bash"), *typed], capture_output=True, text=True, check=True
    )
    return set(script.stdout.split())


def _script(shell: str) -> str:
    import contextlib
    import io

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["ctl", "completion", shell]) == Exit.DONE
    return said.getvalue()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_and_options() -> None:
    assert complete("c") == {"ctl"}
    assert {"plan", "apply", "trip", "tail"} <= complete("ctl ")
    assert complete("ctl tr") == {"trip"}
    assert complete("ctl quota ") >= {"set"}
    assert {"--limit", "--reason", "--tier"} <= complete("ctl quota set acme requests --")
    assert {"bash", "zsh", "fish"} <= complete("ctl completion ")
    assert complete("ctl --environment staging tr") == {"trip"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script_that_names_every_command(shell: str) -> None:
    script = _script(shell)
    for word in ("plan", "rollback", "extend", "quota", "explain"):
        assert word in script
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True)


def test_a_quota_is_set_with_any_field_of_a_limit(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    tenant = {"key": "acme", "title": "", "tier": "pro", "suspended": False, "version": 3, "quotas": []}
    tier = {"name": "pro", "version": 1, "quotas": []}
    api.answers = [(200, {}, tenant), (200, {}, tier), (200, {}, {"revision": 7})]
    numbers = ["--limit", "5", "--window-s", "86400", "--burst", "1"]
    calendar = ["--algorithm", "fixed_window", "--period", "day", "--time-zone", "Europe/Berlin"]
    lists = ["--per", "user", "--per", "ip", "--endpoints", "POST /v1/*"]
    others = ["--shadow", "yes", "--warn-percent", "80", "--dependency", "llm", "--reason", "for a test"]
    assert main(["ctl", "quota", "set", "acme", "daily", *numbers, *calendar, *lists, *others]) == Exit.DONE
    assert json.loads(api.asked[-1][3]) == {
        "limit": 5,
        "window_s": 86400,
        "burst": 1,
        "algorithm": "fixed_window",
        "period": "day",
        "time_zone": "Europe/Berlin",
        "per": ["user", "ip"],
        "endpoints": ["POST /v1/*"],
        "shadow": True,
        "warn_percent": 80,
        "dependency": "llm",
        "reason": "for a test",
    }
    assert "warn_percent 80" in capsys.readouterr().out


@pytest.mark.parametrize("field", fields_of(QUOTAS), ids=lambda field: field.name)
def test_every_field_of_a_quota_is_an_option(field: LimitField) -> None:
    option = f"--{field.name.replace('_', '-')}"
    assert option in complete("ctl quota set acme requests --")
    assert (option in complete("ctl template set standard --")) != bool(field.only)
