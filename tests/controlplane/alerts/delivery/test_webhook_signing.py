"""Signatures as Standard Webhooks describes them, checked by a receiver that knows only the secret."""

import hmac
from base64 import b64decode, b64encode
from typing import Any

from controlplane.alerts.delivery.signing import headers_of, secret_of


def accepts(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """What a receiver does, after the specification."""
    key = b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = b64encode(hmac.digest(key, signed, "sha256")).decode()
    return any(one == f"v1,{expected}" for one in headers["webhook-signature"].split(" "))


def test_the_example_of_the_specification() -> None:
    """The same bytes by hand: identity, time and body with dots between them."""
    headers = headers_of(b"{}", identity="msg_1", at=1_700_000_000, receiver=7, versions=[1])
    assert headers["webhook-timestamp"] == "1700000000"
    assert accepts(secret_of(7, 1), headers, b"{}")
    assert not accepts(secret_of(7, 1), headers, b"{} ")
    assert not accepts(secret_of(7, 1), headers | {"webhook-timestamp": "1700000001"}, b"{}")
    assert not accepts(secret_of(7, 1), headers | {"webhook-id": "msg_2"}, b"{}")


def test_each_receiver_and_version_has_its_own_secret() -> None:
    secrets = {secret_of(receiver, version) for receiver in (1, 11) for version in (1, 11)}
    assert len(secrets) == 4
    assert all(len(b64decode(secret.removeprefix("whsec_"))) == 32 for secret in secrets)


def test_during_a_change_both_secrets_are_accepted() -> None:
    headers = headers_of(b"{}", identity="m", at=1, receiver=7, versions=[2, 1])
    assert accepts(secret_of(7, 1), headers, b"{}")
    assert accepts(secret_of(7, 2), headers, b"{}")
    assert not accepts(secret_of(7, 3), headers, b"{}")


def test_a_new_secret_key_keeps_the_receivers_working(settings: Any) -> None:
    old = secret_of(7, 1)
    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "another" * 10
    headers = headers_of(b"{}", identity="m", at=1, receiver=7, versions=[1])
    assert accepts(old, headers, b"{}")
    assert accepts(secret_of(7, 1), headers, b"{}")
