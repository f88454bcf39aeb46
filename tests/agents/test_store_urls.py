"""All forms of the URL of Redis, and the messages for wrong ones."""

import pytest

from fuseboard.cli.doctor.findings import Level
from fuseboard.cli.doctor.redis_check import check_options
from fuseboard.contract.store_url import Address, StoreUrl
from fuseboard.errors import Misconfigured
from fuseboard.settings import AgentSettings
from fuseboard.store import open_store
from fuseboard.store.cluster_store import ClusterStore
from fuseboard.store.sentinel_store import SentinelStore
from fuseboard.store.single_store import SingleStore


def test_one_server():
    url = StoreUrl.parse("rediss://ann:p%40ss@cache.example:7000/2")
    assert (url.kind, url.addresses, url.tls) == ("single", (Address("cache.example", 7000),), True)
    assert (url.username, url.password, url.database) == ("ann", "p@ss", 2)
    assert StoreUrl.parse("redis://").addresses == (Address("127.0.0.1", 6379),)
    socket = StoreUrl.parse("unix://:secret@/run/redis/limits.sock")
    assert (socket.socket, socket.password, socket.addresses) == ("/run/redis/limits.sock", "secret", ())


def test_a_cluster():
    url = StoreUrl.parse("redis+cluster://:secret@one:7001,[::1]:7002,three/")
    assert (url.kind, url.password, url.tls) == ("cluster", "secret", False)
    assert url.addresses == (Address("one", 7001), Address("::1", 7002), Address("three", 6379))


def test_sentinels():
    url = StoreUrl.parse(
        "rediss+sentinel://ann:a@one:1,two/limits/3?sentinel_username=b&sentinel_password=c%2Cd"
    )
    assert (url.kind, url.primary, url.database, url.tls) == ("sentinel", "limits", 3, True)
    assert url.addresses == (Address("one", 1), Address("two", 26379))
    assert (url.username, url.password) == ("ann", "a")
    assert (url.sentinel_username, url.sentinel_password) == ("b", "c,d")
    assert StoreUrl.parse("redis+sentinel://one/limits").database == 0


@pytest.mark.parametrize(
    ("url", "store"),
    [
        ("redis://one", SingleStore),
        ("unix:///run/redis.sock", SingleStore),
        ("redis+cluster://one,two", ClusterStore),
        ("redis+sentinel://one,two/limits", SentinelStore),
    ],
)
def test_each_has_its_store(url: str, store: type):
    assert type(open_store(url)) is store
    assert AgentSettings(redis_url=url if "//one" not in url else url.replace("//one", "//one:1")).redis_url


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("http+cluster://one:1", "must begin with redis://, rediss://"),
        ("redis+cluster://one:1/3", "only number 0"),
        ("redis+cluster://one:1,two:x/", "no host or port"),
        ("redis+cluster://:a,b@one:99999/", "no host or port"),
        ("redis+sentinel://one:1,two:2/", "must name the primary"),
        ("redis+sentinel://one:1/limits/two", "number of a database"),
    ],
)
def test_a_wrong_url_raises_at_start(url: str, wrong: str):
    with pytest.raises(Misconfigured, match=wrong):
        AgentSettings(redis_url=url)
    with pytest.raises(Misconfigured, match=wrong):
        open_store(url)


def test_no_secret_is_shown():
    url = "redis+sentinel://:secret@one:1,two:2/limits?sentinel_password=hidden"
    shown = repr(AgentSettings(redis_url=url)) + repr(StoreUrl.parse(url))
    assert "secret" not in shown
    assert "hidden" not in shown


def test_doctor_names_options_that_have_no_effect_without_their_values():
    (finding,) = check_options("redis://one:1/0?socket_timeout=3&password=secret&ssl_ca_certs=/ca.pem")
    assert finding.level is Level.WARN
    assert "socket_timeout, password" in finding.says
    assert "secret" not in repr(finding)
    assert check_options("rediss://one:1/0?ssl_ca_certs=/ca.pem") == []
