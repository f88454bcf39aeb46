"""Settings from the environment: a mistake is named at start, and no secret is displayed."""

import os
from pathlib import Path

import pytest

from fuseboard.contract.words import is_slug
from fuseboard.errors import Misconfigured
from fuseboard.settings import AgentSettings

REDIS = {"FUSEBOARD_REDIS_URL": "redis://limits:6379/0"}
SECRET = "hunter2-hunter2"


def read(**variables: str) -> AgentSettings:
    return AgentSettings.from_env(REDIS | {f"FUSEBOARD_{name}": value for name, value in variables.items()})


def test_redis_alone_is_enough():
    settings = read()
    assert (settings.environment, settings.service, settings.url) == ("production", "default", "")
    assert is_slug(settings.server)


def test_everything_can_be_said(tmp_path: Path):
    settings = read(
        URL="https://fuseboard.internal/gate",
        TOKEN="fb_selector_secret",
        ENVIRONMENT="staging",
        SERVICE="shop",
        SERVER="shop-7f9c",
        ZONE="eu-1a",
        STATE_DIR=str(tmp_path),
        BOOTSTRAP_FILE="/etc/fuseboard.json",
    )
    assert settings.url == "https://fuseboard.internal/gate"
    assert (settings.server, settings.zone, settings.state_dir) == ("shop-7f9c", "eu-1a", tmp_path)
    assert settings.bootstrap_file == Path("/etc/fuseboard.json")


def test_the_subjects_that_are_kept_are_a_choice():
    assert (read().most_subjects, read(MOST_SUBJECTS="2000").most_subjects) == (20_000, 2_000)


def test_no_copy_on_disk_is_a_choice():
    assert read(STATE_DIR="off").state_dir is None


def test_opentelemetry_is_off_unless_it_is_installed_and_switched_on(monkeypatch: pytest.MonkeyPatch):
    assert not read().otel
    assert not read(OTEL="off").otel
    monkeypatch.setattr("fuseboard.settings.find_spec", lambda name: None)
    with pytest.raises(Misconfigured, match=r"FUSEBOARD_OTEL=on needs.*fuseboard\[otel\]"):
        read(OTEL="on")
    with pytest.raises(Misconfigured, match="FUSEBOARD_OTEL must be 'on' or 'off'"):
        read(OTEL="yes")
    monkeypatch.setattr("fuseboard.settings.find_spec", lambda name: name)
    assert read(OTEL="on").otel


def test_the_token_may_come_from_a_file(tmp_path: Path):
    (tmp_path / "token").write_text("fb_selector_secret\n")
    settings = read(URL="https://gate", TOKEN_FILE=str(tmp_path / "token"))
    assert settings.token == "fb_selector_secret"


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"REDIS_URL": ""}, "FUSEBOARD_REDIS_URL"),
        ({"REDIS_URL": f"limits:{SECRET}"}, "FUSEBOARD_REDIS_URL"),
        ({"REDIS_URL": f"http://:{SECRET}@limits"}, "FUSEBOARD_REDIS_URL"),
        ({"REDIS_URL": f"redis://:{SECRET}@"}, "FUSEBOARD_REDIS_URL"),
        ({"REDIS_URL": f"redis://u:{SECRET}/x@limits"}, "FUSEBOARD_REDIS_URL"),
        ({"REDIS_URL": f"redis://:{SECRET}@limits:99999"}, "FUSEBOARD_REDIS_URL"),
        ({"URL": "https://gate"}, "FUSEBOARD_TOKEN"),
        ({"URL": "gate:8000", "TOKEN": SECRET}, "FUSEBOARD_URL"),
        ({"URL": "ftp://gate", "TOKEN": SECRET}, "FUSEBOARD_URL"),
        ({"URL": "https://gate", "TOKEN": f'"{SECRET} "'}, "FUSEBOARD_TOKEN"),
        ({"URL": "https://gate", "TOKEN": f"{SECRET}\r\nX: y"}, "FUSEBOARD_TOKEN"),
        ({"URL": "https://gate", "TOKEN": SECRET, "TOKEN_FILE": "/x"}, "FUSEBOARD_TOKEN_FILE"),
        ({"URL": "https://gate", "TOKEN_FILE": f"/no/such/{SECRET}"}, "FUSEBOARD_TOKEN_FILE"),
        ({"URL": "https://gate", "TOKEN_FILE": "/"}, "FUSEBOARD_TOKEN_FILE"),
        ({"SERVER": f"two words {SECRET}"}, "FUSEBOARD_SERVER"),
        ({"SERVICE": "x" * 65}, "FUSEBOARD_SERVICE"),
        ({"ENVIRONMENT": "-production"}, "FUSEBOARD_ENVIRONMENT"),
        ({"ZONE": "z" * 65}, "FUSEBOARD_ZONE"),
        ({"MOST_SUBJECTS": "99"}, "FUSEBOARD_MOST_SUBJECTS"),
        ({"MOST_SUBJECTS": "1000001"}, "FUSEBOARD_MOST_SUBJECTS"),
        ({"MOST_SUBJECTS": SECRET}, "FUSEBOARD_MOST_SUBJECTS"),
        ({"TOKENS": SECRET}, "FUSEBOARD_TOKENS"),
        ({"REDIS_URI": f"redis://:{SECRET}@limits"}, "FUSEBOARD_REDIS_URI"),
        ({"ENVIROMENT": "production"}, "FUSEBOARD_ENVIRONMENT"),
    ],
)
def test_a_mistake_names_the_variable_and_never_its_value(variables: dict[str, str], named: str):
    with pytest.raises(Misconfigured) as caught:
        read(**variables)
    assert named in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None or SECRET not in str(caught.value.__cause__)


def test_variables_of_the_control_plane_and_of_others_are_accepted():
    with_others = read(SECRET_KEY="x", BROKER_URL="redis://b", BEAT_MS="500", DEBUG="1", MY_OWN_THING="1")
    assert with_others == read(), "they are no settings of an agent"


def test_neither_the_token_nor_a_password_is_ever_shown():
    settings = AgentSettings(
        redis_url=f"redis://agent:{SECRET}@limits:6379/0", url=f"https://u:{SECRET}@gate", token=SECRET
    )
    assert SECRET not in repr(settings)
    assert "limits:6379" in repr(settings)


def test_worker_processes_of_one_host_have_different_names(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("socket.gethostname", lambda: "shop_7f9c.example")
    assert read().server == f"shop_7f9c.example-{os.getpid()}"
    assert read(SERVER="shop-1").server == "shop-1"
    # The first process of a container has the name of its pod.
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert read().server == "shop_7f9c.example"


def test_a_long_host_name_leaves_room_for_the_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("socket.gethostname", lambda: "a" * 51 + "." + "b" * 40)
    name = read().server
    assert is_slug(name)
    assert name == f"{'a' * 51}-{os.getpid()}"


def test_settings_made_before_a_fork_name_the_child(monkeypatch: pytest.MonkeyPatch):
    made = read(), read(SERVER="shop-1")
    parent = os.getpid()
    assert [one.in_this_process() for one in made] == list(made)
    monkeypatch.setattr("os.getpid", lambda: parent + 1)
    child, named = (one.in_this_process() for one in made)
    assert child.server == made[0].server.removesuffix(str(parent)) + str(parent + 1)
    assert named.server == f"shop-1-{parent + 1}"
    monkeypatch.setattr("os.getpid", lambda: parent + 2)
    assert named.in_this_process().server == f"shop-1-{parent + 2}"
