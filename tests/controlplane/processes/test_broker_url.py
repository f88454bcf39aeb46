"""The address of the broker: one server, or the primary that Sentinels watch, as Celery reads it."""

import pytest
from django.core.exceptions import ImproperlyConfigured
from kombu import Connection

from controlplane.broker import broker_url, tls_options, transport_options

SENTINELS = "redis+sentinel://:p%40ss@one:26379,[::1]:26380/queue/2?sentinel_password=watch"


def test_one_server_stays_as_it_is() -> None:
    url = "rediss://:secret@broker.example.com:6379/0"
    assert broker_url(url) == url
    assert "master_name" not in transport_options(url)


def test_celery_finds_the_sentinels_and_the_name_of_the_primary() -> None:
    options = transport_options(SENTINELS)
    connection = Connection(broker_url(SENTINELS), transport_options=options)
    assert connection.alt == ["sentinel://:p%40ss@one:26379/2", "sentinel://:p%40ss@[::1]:26380/2"]
    # Kombu logs in with these at the primary, once a Sentinel has named it.
    assert (connection.password, connection.virtual_host) == ("p@ss", "2")
    assert options["master_name"] == "queue"
    assert options["sentinel_kwargs"]["password"] == "watch"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis+sentinel://one:26379", "must name the primary"),
        ("redis+sentinel://:secret@one:x/queue", "has no host or port"),
    ],
)
def test_a_wrong_address_is_named_without_its_password(url: str, says: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"FUSEBOARD_BROKER_URL {says}") as raised:
        broker_url(url)
    assert "secret" not in str(raised.value)


def test_only_tls_has_certificates() -> None:
    assert tls_options("redis://one:6379", "/ca.pem") is None
    options = tls_options("rediss://one:6379", "/ca.pem")
    assert options is not None
    assert options["ssl_ca_certs"] == "/ca.pem"
