"""The token of a refusal: fixed vectors, every field, and texts that are not tokens."""

import random
import string

import msgspec
import pytest

from fuseboard.contract.refusal_token import (
    BYTES,
    LENGTH,
    MAX_LENGTH,
    MODES,
    PREFIX,
    REASONS,
    URN,
    RefusalKey,
    TokenContent,
    TokenError,
    make_token,
    read_token,
)
from fuseboard.contract.words import Mode, Reason

KEY = RefusalKey(day=20_780, id=bytes(range(4)), key=bytes(range(32)))
OTHER = RefusalKey(day=20_780, id=bytes(range(4)), key=bytes(range(1, 33)))
REFUSED = TokenContent(
    at_ms=1_795_426_323_412,
    number=0x010203,
    revision=4_211,
    reason=Reason.QUOTA,
    mode=Mode.SHARED,
    rule="requests",
    tenant="acme ünd sons",
    server="shop-2",
    retry_after_ms=12_400,
)
#: Outside every range, and a name that UTF-8 cannot encode.
EXTREME = TokenContent(
    at_ms=2**60,
    number=2**30,
    revision=2**60,
    reason=None,
    mode=Mode.LOCAL,
    rule="\ud800",
    dependency="openai",
    retry_after_ms=2**40,
)
VECTORS = {
    "fr1.USwAAQIDAaIHv4vUAQIDAAAAEHMAADBwAADgyLca9owwst0rAmDcVc7IU4Yh25e-QKrkGesw": REFUSED,
    "fr1.USwAAQID________AAAA_____________wEy_-VAm-rA-maqI0-S-r_n4RQiAE4YDqEY3UYt": EXTREME,
}


@pytest.mark.parametrize(("text", "refused"), VECTORS.items(), ids=["usual", "extreme"])
def test_tokens_of_this_release_are_the_vectors(text, refused):
    assert make_token(KEY, refused) == text


def test_a_token_has_room_in_every_header_and_is_as_long_as_documented():
    assert len(make_token(KEY, REFUSED)) == LENGTH == 76 <= MAX_LENGTH
    assert BYTES == 54


def test_everything_is_read_back():
    token = read_token(make_token(KEY, REFUSED))
    assert token.is_signed(KEY.key)
    assert (token.day, token.key_id) == (KEY.day, KEY.id)
    assert (token.at_ms, token.revision, token.retry_after_ms) == (1_795_426_323_412, 4_211, 12_400)
    assert (token.reason, token.mode) == (Reason.QUOTA, Mode.SHARED)
    assert token.is_rule(KEY.key, "", "requests")
    assert not token.is_rule(KEY.key, "requests", "")
    assert token.is_tenant(KEY.key, "acme ünd sons")
    assert not token.is_tenant(KEY.key, "acme")
    assert token.is_server(KEY.key, "shop-2")
    assert not token.is_server(KEY.key, "shop-1")


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("mode", Mode)
def test_every_reason_and_mode_has_a_place(reason, mode):
    token = read_token(make_token(KEY, msgspec.structs.replace(REFUSED, reason=reason, mode=mode)))
    assert (token.reason, token.mode) == (reason, mode)


def test_no_place_is_used_twice():
    assert len(set(REASONS)) == len(REASONS)
    assert len(set(MODES)) == len(MODES)


def test_a_urn_and_spaces_around_a_token_are_accepted():
    text = make_token(KEY, REFUSED)
    assert read_token(f"  {URN}{text}\n") == read_token(text)


def test_two_tokens_of_one_refusal_share_no_digest():
    """The caller must not recognize a pod, or count the pods."""
    tokens = [
        read_token(make_token(KEY, msgspec.structs.replace(REFUSED, number=number))) for number in range(500)
    ]
    for field in ("rule", "tenant", "server", "tag"):
        assert len({getattr(token, field) for token in tokens}) == 500


def test_a_token_contains_no_name():
    text = make_token(KEY, REFUSED)
    token = read_token(text)
    for name in (b"requests", b"acme", b"shop"):
        assert name not in token.body
        assert name.decode() not in text


def test_a_token_of_another_key_is_not_signed():
    assert not read_token(make_token(OTHER, REFUSED)).is_signed(KEY.key)


def test_every_changed_byte_breaks_the_signature():
    """Fuzz: one changed character at each place, in every spelling that base64url has."""
    text = make_token(KEY, REFUSED)
    alphabet = string.ascii_letters + string.digits + "-_"
    for place in range(len(PREFIX), len(text)):
        for letter in alphabet:
            if letter == text[place]:
                continue
            changed = text[:place] + letter + text[place + 1 :]
            assert not read_token(changed).is_signed(KEY.key), changed


@pytest.mark.parametrize("cut", range(LENGTH))
def test_a_cut_token_is_refused(cut):
    with pytest.raises(TokenError):
        read_token(make_token(KEY, REFUSED)[:cut])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fr1.",
        "fr2." + "A" * 72,
        "fr1." + "A" * 73,
        "fr1." + "A" * 71 + "=",
        "fr1." + "A" * 71 + "+",
        "fr1." + "A" * 71 + " ",
        "fr1." + "A" * 71 + "ü",
        "fr1." + "A" * 71 + "\n",
        "FR1." + "A" * 72,
    ],
)
def test_a_text_that_is_no_token_is_refused(text):
    with pytest.raises(TokenError):
        read_token(text)


def test_no_random_text_is_signed_or_raises_anything_else():
    """Fuzz: 20,000 texts, most of the right length and alphabet."""
    draw = random.Random(20_261_123)
    alphabet = string.ascii_letters + string.digits + "-_"
    for _ in range(20_000):
        length = LENGTH - len(PREFIX) if draw.random() < 0.8 else draw.randrange(120)
        letters = alphabet if draw.random() < 0.9 else string.printable + "üß\x00\ud800"
        text = PREFIX + "".join(draw.choices(letters, k=length))
        try:
            token = read_token(text)
        except TokenError:
            continue
        assert not token.is_signed(KEY.key)
        assert not token.is_tenant(KEY.key, "acme")
