"""Chat, pagers and mail by apprise, in a program that is killed in time and connects to no address inside."""

import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import psutil
import pytest
from apprise.plugins import opsgenie, pagerduty

from controlplane.alerts.delivery.addresses import AddressRefused
from controlplane.alerts.delivery.apprise import apprise_send, program
from controlplane.alerts.delivery.apprise.guard import Guard
from controlplane.alerts.delivery.apprise.jobs import MAX_START_S, READY, Job, Kind, Result, without_middle
from controlplane.alerts.delivery.apprise.program import SenderPool
from controlplane.alerts.delivery.apprise.services import SERVICES, service_name, shown_address
from tests.controlplane.alerts.delivery.refused_addresses import REFUSED
from tests.controlplane.alerts.delivery.sinks import chat, endless, mail_server
from tests.waiting import PATIENCE_S

# Of modules that apprise imports for options that no receiver can set.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")

LOOPBACK = (ip_network("127.0.0.1/32"),)
ROOT = Path(__file__).resolve().parents[4]
TOKEN = "abcdefghijklmnop7Qz4"


@pytest.fixture
def senders() -> Iterator[SenderPool]:
    senders = SenderPool(LOOPBACK)
    yield senders
    senders.rest()


def programs() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [one for one in children if "controlplane.alerts.delivery.apprise" in one.cmdline()]


def job(url: str, kind: Kind = Kind.CRITICAL, **more: Any) -> Job:
    return Job(url=url, kind=kind, title="payments-api is open", body="18 of 30 calls failed.", **more)


def test_a_message_reaches_a_chat_and_a_mailbox(senders: SenderPool) -> None:
    with chat() as sink, mail_server() as (port, mails):
        sent = senders.run(job(f"mmost://127.0.0.1:{sink.port}/{TOKEN}"))
        assert sent == Result(state="sent", said="Mattermost accepted it.")
        mailed = senders.run(
            job(f"mailto://127.0.0.1:{port}?from=fuseboard@example.com&to=oncall@example.com")
        )
        assert mailed.state == "sent", mailed
    [(path, message)] = sink.got
    assert path == f"/hooks/{TOKEN}"
    assert "payments-api is open" in message["text"]
    assert "18 of 30 calls failed." in message["text"]
    [mail] = mails
    assert (mail["To"], mail["Subject"]) == ("oncall@example.com", "payments-api is open")
    assert "18 of 30 calls failed." in mail.as_string()


def test_no_address_inside_is_connected_to_in_whatever_spelling(senders: SenderPool) -> None:
    outside = SenderPool()
    spellings = ("127.0.0.1", "localhost", "127.1", "0x7f.1", "0177.0.0.1", "2130706433")
    with chat() as sink, mail_server() as (port, mails):
        for host in spellings:
            refused = outside.run(job(f"mmost://{host}:{sink.port}/{TOKEN}"))
            assert refused.state != "sent", host
        for url in (
            f"mailto://127.0.0.1:{port}?from=a@example.com&to=b@example.com",
            f"mailto://mail.example.com:{port}?smtp=127.0.0.1&from=a@example.com&to=b@example.com",
            f"gotify://[::ffff:127.0.0.1]:{sink.port}/{TOKEN}",
            "ntfys://169.254.169.254/latest",
        ):
            refused = outside.run(job(url))
            assert refused.state == "refused", (url, refused)
        assert "FUSEBOARD_WEBHOOK_NETWORKS" in outside.run(job(f"mmost://localhost:{sink.port}/{TOKEN}")).said
        outside.rest()
    assert (sink.got, mails) == ([], [])


@pytest.mark.parametrize("address", REFUSED)
def test_apprise_connects_to_no_address_that_is_refused(address: str) -> None:
    guard = Guard()
    with pytest.raises(AddressRefused):
        guard.judge("socket.connect", (None, (address, 443)))
    assert guard.refused


def test_a_redirect_inside_is_not_followed(senders: SenderPool) -> None:
    with chat(host="127.0.0.2") as inside, chat(307, location=f"http://127.0.0.2:{inside.port}/") as sink:
        assert senders.run(job(f"mmost://127.0.0.1:{sink.port}/{TOKEN}")).state == "failed"
        assert len(sink.got) == 1
    assert inside.got == []


_REBOUND = """
import socket, sys
from ipaddress import ip_network
from controlplane.alerts.delivery.apprise.guard import Guard
import requests
guard = Guard([ip_network("127.0.0.1/32")])
guard.install()
answers = ["127.0.0.1", "127.0.0.2", "127.0.0.2"]
socket.getaddrinfo = lambda host, port, *_, **__: [
    (socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers.pop(0), port))]
print(requests.get(f"http://hooks.example.com:{sys.argv[1]}/", timeout=5).status_code)
try:
    requests.get(f"http://hooks.example.com:{sys.argv[1]}/", timeout=5)
except Exception as error:
    print(type(error).__name__)
for attempt in (
    lambda: socket.socket(socket.AF_UNIX).connect("local"),
    lambda: socket.socket().connect(("localhost", 1)),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
    lambda: __import__("subprocess").run(["true"]),
    lambda: __import__("os").system("true"),
    lambda: open("written", "w"),
):
    try:
        attempt()
        print("allowed")
    except Exception as error:
        print(type(error).__name__)
"""


def test_a_name_that_changes_its_address_and_everything_but_connections_are_refused(tmp_path: Path) -> None:
    with chat() as sink:
        done = subprocess.run(
            [sys.executable, "-c", _REBOUND, str(sink.port)],
            env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
    # The sink answers 501 to GET.
    first, *refused = done.stdout.split()
    assert first == "501", done.stdout + done.stderr
    assert refused == ["AddressRefused"] * 3 + ["NotAllowed"] * 4
    assert list(tmp_path.iterdir()) == []


def test_a_sender_that_hangs_is_killed_and_the_next_message_is_sent() -> None:
    senders = SenderPool(LOOPBACK, most_s=3)
    with chat(None) as sink:
        url = f"mmost://127.0.0.1:{sink.port}/{TOKEN}"
        late = senders.run(job(url))
        assert late == Result(state="failed", said="The receiver did not answer within 3 s.")
        assert programs() == []
        # The next one has the time that a busy machine needs.
        for one in senders._all:
            one._most_s = PATIENCE_S
        assert senders.run(job(url)).state == "sent"
        assert len(sink.got) == 2
        senders.rest()


def test_the_start_of_a_sender_is_not_part_of_the_receivers_time(monkeypatch: pytest.MonkeyPatch) -> None:
    waited_for: list[tuple[float, bytes]] = []

    def line(process: Any, most_s: float, late: str) -> bytes:
        found = read(process, most_s, late)
        waited_for.append((most_s, found))
        return found

    read = program._line
    monkeypatch.setattr(program, "_line", line)
    senders = SenderPool(LOOPBACK, most_s=PATIENCE_S)
    assert senders.run(job(f"mmost://chat.example.com/{TOKEN}", check=True)).state == "sent"
    senders.rest()
    (start_s, ready), (receiver_s, _) = waited_for
    assert (start_s, ready, receiver_s) == (MAX_START_S, READY, PATIENCE_S)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not count what a program allocates")
def test_an_answer_without_end_fills_no_memory_and_the_next_message_is_sent(senders: SenderPool) -> None:
    with endless() as port:
        assert senders.run(job(f"mmost://127.0.0.1:{port}/{TOKEN}")).state == "failed"
    [program] = programs()
    status = Path(f"/proc/{program.pid}/status").read_text()
    [peak_kb] = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
    assert peak_kb < 320 * 1024
    with chat() as sink:
        assert senders.run(job(f"mmost://127.0.0.1:{sink.port}/{TOKEN}")).state == "sent"


def test_a_program_that_ended_is_started_again(senders: SenderPool) -> None:
    with chat() as sink:
        url = f"mmost://127.0.0.1:{sink.port}/{TOKEN}"
        assert senders.run(job(url)).state == "sent"
        [program] = programs()
        program.kill()
        program.wait()
        assert senders.run(job(url)).state == "sent"
        senders.close()
        assert senders.run(job(url)).state == "failed"


def test_the_program_gets_no_secret_of_the_environment(
    senders: SenderPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEBOARD_SECRET_KEY", "a secret of the worker")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with chat() as sink:
        senders.run(job(f"mmost://127.0.0.1:{sink.port}/{TOKEN}"))
        [program] = programs()
        assert not {"FUSEBOARD_SECRET_KEY", "HTTPS_PROXY", "HOME", "DATABASE_URL"} & program.environ().keys()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"slack://T1JJ3T3L2/A1BRTD4JD/{TOKEN}abcd/#general?template=/etc/passwd", "option 'template'"),
        (f"mmosts://chat.example.com/{TOKEN}?verify=no", "Leave out the option 'verify'"),
        (f"mmosts://chat.example.com/{TOKEN}?redirect=yes", "Leave out the option 'redirect'"),
        ("mailto://mail.example.com?to=a@example.com&from=b@example.com&pgp=yes", "option 'pgp'"),
        ("ntfys://ntfy.example.com/topic?attach=file:///etc/passwd", "option 'attach'"),
        ("mailto://mail.example.com?+Bcc=a@example.com", "Leave out the option"),
        ("slack://short", "Use the form slack://"),
        ("ntfy://secrettopic", "Use the form ntfys://"),
        ("mailtos://user:123#45@mail.example.com?to=a@example.com", "Use the form mailtos://"),
        ("syslog://localhost", "unknown scheme"),
        ("json://hooks.example.com", "unknown scheme"),
    ],
)  # fmt: skip
def test_a_url_that_apprise_must_not_use_is_explained(url: str, says: str) -> None:
    result = apprise_send.run(Job(url=url, check=True), Guard())
    assert result.state == "refused"
    assert says in result.said
    assert TOKEN not in result.said


_MAIL = "mailto://ann:pass@mail.example.com?from=a@example.com&to=b@example.com"


_PLACES = [
    *(f"{_MAIL}&{option}=x{{}}" for option in sorted(SERVICES["mailto"].options)),
    *("mailto://ann{}:pass@mail.example.com?to=b@example.com", "mailto://ann:pass{}@mail.example.com"),
    *("mailto://ann:pass@mail.example.com/c@example.com{}", "mailto://mail.example.com{}?to=b@example.com"),
    *("mailto://mail.example.com?na{}me=x", f"mmosts://chat.example.com/{TOKEN}?channel=x{{}}"),
]
_ENCODED = [
    *("%0d%0aBcc:e@e.example", "%0A", "%0D", "%00", "%09", "%1b", "%7F"),
    *("%C2%85", "%E2%80%A8", "%E2%80%A9", "%250d%250a", "%25250A"),
]


@pytest.mark.parametrize("encoded", _ENCODED)
@pytest.mark.parametrize("place", _PLACES)
def test_a_line_break_is_refused_in_every_place_of_a_url(place: str, encoded: str) -> None:
    """It began another line in a header of a mail."""
    result = apprise_send.run(Job(url=place.format(encoded), check=True), Guard())
    assert (result.state, result.said) == ("refused", apprise_send.NO_CONTROL)


def test_a_url_of_mail_without_control_characters_is_accepted() -> None:
    given = f"{_MAIL}&name=Operations%20%26%20Caf%C3%A9&cc=c%2Bx@example.com"
    assert apprise_send.run(Job(url=given, check=True), Guard()).state == "sent"


def test_only_services_that_send_over_the_network_are_there() -> None:
    never = {"syslog", "rsyslog", "dbus", "kde", "qt", "gnome", "glib", "windows", "macosx", "mqtt", "mqtts"}
    assert not SERVICES.keys() & (never | {"file", "json", "xml", "form", "apprise", "schan", "blink1"})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"slack://T1JJ3T3L2/A1BRTD4JD/{TOKEN}/#general", "slack://…7Qz4"),
        (f"pagerduty://{TOKEN}@u+secret", "pagerduty://…cret"),
        (f"mmosts://chat.example.com:8443/{TOKEN}", "mmosts://chat.example.com:8443/…7Qz4"),
        (f"mailtos://user:{TOKEN}@mail.example.com?to=a@example.com", "mailtos://mail.example.com"),
        (f"https://hooks.example.com/services/{TOKEN}", "https://hooks.example.com/…7Qz4"),
        ("https://hooks.example.com/short", "https://hooks.example.com/…"),
        ("https://hooks.example.com", "https://hooks.example.com"),
        ("", "unreadable"),
    ],
)
def test_a_url_is_displayed_without_its_secrets(url: str, shown: str) -> None:
    assert shown_address(url) == shown
    assert service_name(url)


def test_what_apprise_says_names_no_part_of_the_url() -> None:
    said = apprise_send.without_secrets(
        f"Failed for {TOKEN} and user@mail.example.com", f"mailtos://user:{TOKEN}@mail.example.com"
    )
    assert said == "Failed for *** and ***@***"


def test_names_in_an_alert_call_nobody() -> None:
    assert apprise_send._quiet("tenant @here <!channel> a@example.com") == (
        "tenant @\u200bhere <\u200b!channel> a@example.com"
    )


def test_pagerduty_gets_one_incident_for_each_alert(monkeypatch: pytest.MonkeyPatch) -> None:
    with chat(202, 202, 202) as sink:
        monkeypatch.setitem(pagerduty.PAGERDUTY_API_LOOKUP, "us", f"http://127.0.0.1:{sink.port}/enqueue")
        for kind in (Kind.WARNING, Kind.CRITICAL, Kind.RESOLVED):
            url = f"pagerduty://{'k' * 32}@{'a' * 20}"
            sent = job(
                url, kind, key="fb:production:open:payments-api", link="https://board.example.com/alerts"
            )
            assert apprise_send.run(sent, Guard()).state == "sent"
    documents = [document for _, document in sink.got]
    assert {one["dedup_key"] for one in documents} == {"fb:production:open:payments-api"}
    assert [one["event_action"] for one in documents] == ["trigger", "trigger", "resolve"]
    assert [one["payload"]["severity"] for one in documents[:2]] == ["warning", "critical"]
    assert documents[0]["links"] == [{"href": "https://board.example.com/alerts"}]


def test_a_long_message_is_short_enough_for_a_pager_and_keeps_its_beginning_and_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = "; ".join(f"service-{number} is open" for number in range(100))
    explained = f"These alerts follow from it: {opened}."
    body = f"18 of 30 calls failed.\n{explained}\nPage: https://board.example.com/alerts"
    with chat(202, 202) as sink:
        monkeypatch.setitem(pagerduty.PAGERDUTY_API_LOOKUP, "us", f"http://127.0.0.1:{sink.port}/enqueue")
        for text in (body, "short"):
            sent = Job(
                url=f"pagerduty://{'k' * 32}@{'a' * 20}", kind=Kind.CRITICAL, title="t" * 250, body=text
            )
            assert apprise_send.run(sent, Guard()).state == "sent"
    long, short = (document["payload"]["summary"] for _, document in sink.got)
    # PagerDuty refuses more than 1,024 characters.
    assert len(body) > 1_024 > len(long) > 1_000
    assert long.startswith("t" * 250 + "\r\n18 of 30 calls failed.\n")
    assert "\n…\n" in long
    assert long.endswith("Page: https://board.example.com/alerts")
    assert short == "t" * 250 + "\r\nshort"


@pytest.mark.parametrize("most", range(10, 25))
def test_a_text_without_its_middle_is_as_long_as_it_may_be(most: int) -> None:
    text = "abcdefghijklmnopqrst"
    shown = without_middle(text, most)
    assert len(shown) == min(most, len(text))
    assert (shown[0], shown[-1]) == ("a", "t")


def test_opsgenie_closes_by_the_alias_of_the_alert(monkeypatch: pytest.MonkeyPatch) -> None:
    with chat(202, 202, 500) as sink:
        monkeypatch.setitem(opsgenie.OPSGENIE_API_LOOKUP, "us", f"http://127.0.0.1:{sink.port}/v2/alerts")
        url = "opsgenie://aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee/#team"
        key = "fb:production:open:payments-api"
        # apprise takes an answer without a request id for a failure.
        assert apprise_send.run(job(url, Kind.CRITICAL, key=key), Guard()).state == "failed"
        assert apprise_send.run(job(url, Kind.RESOLVED, key=key), Guard()).state == "sent"
        again = apprise_send.run(job(url, Kind.RESOLVED, key=key), Guard())
    assert again == Result(state="failed", said="Opsgenie answered HTTP 500 to a close.")
    (path, opened), (closing, note), _ = sink.got
    assert (path, opened["alias"], opened["message"]) == ("/v2/alerts", key, "payments-api is open")
    assert closing == "/v2/alerts/fb%3Aproduction%3Aopen%3Apayments-api/close?identifierType=alias"
    assert note["note"] == "18 of 30 calls failed."
