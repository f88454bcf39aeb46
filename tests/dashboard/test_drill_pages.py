"""The drills page, and what the page of a pod says it would allow alone."""

import re

import pytest
from fleet_rows import put_server

from controlplane.drills.models import Drill
from controlplane.editing import edits
from controlplane.shares.models import Piece
from tests.people import SEED

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def pods(production):
    for name in ("pod-1", "pod-2", "pod-3", "pod-4"):
        put_server(name)


def text_of(response):
    return " ".join(re.sub(r"<[^>]+>", " ", response.content.decode()).split())


def begin(client, **typed):
    usual = {
        "act": "begin",
        "kind": "gone",
        "minutes": "5",
        "who": "servers",
        "reason": "To see what happens",
    }
    return client.post("/drills", usual | typed)


@pytest.mark.parametrize("login", ["vera", "olga"])
def test_the_page_is_for_admins(log_in, login, pods):
    assert log_in(login).get("/drills").status_code == 403
    assert begin(log_in(login), servers=["pod-1"]).status_code == 403
    assert not Drill.objects.exists()


def test_an_admin_starts_and_ends_a_drill(log_in, pods):
    admin = log_in("ada")
    assert begin(admin, servers=["pod-1", "pod-2"]).status_code == 302
    page = text_of(admin.get("/drills"))
    assert "1 drill running" in page
    assert "0 of 2 pods have started the drill: pod-1, pod-2" in page
    drill = Drill.objects.get()
    typed = {"act": "end", "drill": drill.pk, "reason": "Ended on the Drills page"}
    assert admin.post("/drills", typed).status_code == 302
    page = text_of(admin.get("/drills"))
    assert "No drill is running." in page
    assert "To see what happens" in page


def test_the_page_says_what_pods_in_a_drill_allow(log_in, pods):
    """It said "each with its share of the limits": limits that fail open allow every call."""
    page = text_of(log_in("ada").get("/drills"))
    assert "limits that fail open allow every call" in page
    assert "each with its share" not in page


def test_invalid_input_is_reported_and_kept(log_in, pods):
    answer = begin(log_in("ada"), servers=["pod-1"], minutes="500", reason="A long one, to be sure")
    assert answer.status_code == 422
    page = answer.content.decode()
    assert "Enter a whole number from 1 to 60." in page
    assert "A long one, to be sure" in page
    assert 'name="servers" value="pod-1" checked>' in page
    assert 'name="servers" value="pod-2">' in page
    assert 'name="who" value="servers" checked>' in page


def test_hostile_input_is_rejected(log_in, pods):
    admin = log_in("ada")
    for wrong in (
        {"servers": ["<script>"]},
        {"who": "percent", "percent": "1e3"},
        {"who": "service", "service": "\x00"},
        {"minutes": "99999999999999999999", "servers": ["pod-1"]},
        {"act": "end", "drill": "-1"},
        {"act": "end", "drill": "123456"},
    ):
        assert begin(admin, **wrong).status_code in (400, 404, 422)
    assert not Drill.objects.exists()


def test_a_pod_in_a_drill_differs_from_one_without_redis(log_in, production):
    put_server("pod-1", mode="drill", mode_cause="drill 1: Redis is simulated as unavailable")
    page = log_in("vera").get("/servers").content.decode()
    assert 'data-kind="drill"' in page
    assert "1 pod in a drill" in text_of(log_in("vera").get("/"))


def test_the_page_of_a_pod_lists_what_it_allows_alone_of_every_rule(log_in, pods, production):
    from controlplane.fleet.models import Server

    edits.set_vendor_limit(
        environment=production,
        dependency="search",
        name="per-minute",
        limit=1000,
        window_s=60,
        expected_version=None,
        algorithm="sliding_window",
        failure_policy="reserved",
        reason="for a test of it",
        actor=SEED,
    )
    viewer = log_in("vera")
    assert "0 of 1,000 (no share of the reserved 100 assigned)" in text_of(viewer.get("/servers/pod-1"))
    boot = Server.objects.get(name="pod-1").boot
    Piece.objects.create(
        environment=production,
        server="pod-1",
        boot=boot,
        level=1,
        place=0,
        offered=1,
        terms=1,
        hold_ms=1,
    )
    page = text_of(viewer.get("/servers/pod-1"))
    assert "50 of 1,000 here" in page
    assert "requests tier pro 1,000 / 60 s allows all, counted and reported later" in page
    assert viewer.get("/servers/nobody").status_code == 404
