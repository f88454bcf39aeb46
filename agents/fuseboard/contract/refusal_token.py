"""The token of a refusal: which rule of which revision refused which tenant, on which pod, and when.

A pod makes one when it answers a refusal over HTTP; the control plane explains it. Nothing is stored. The
token contains no name and no limit, only digests that change with every token. So a refused caller learns
nothing from it, and cannot see that two tokens are from one tenant or one pod. The control plane
resolves a digest by trying the names that it knows, and looks limits up by the revision.

The format is ``fr1.`` and 54 bytes in base64url without padding. Numbers are big-endian::

    field    bytes  meaning
    day      2  of the key, in days since 1970
    key id   4  identifies the key: environment, service, day and secret
    time     6  when the request was refused, in ms since 1970, by the clock of the control plane
    number   3  random, so that two tokens of one millisecond differ too
    revision 5
    retry    4  ms until asking again could succeed, at most 2^32 - 1; 0 for unknown
    reason   1  place in ``REASONS``
    mode     1  place in ``MODES``
    rule     5  digest of (dependency, rule)
    tenant   7  digest
    pod      4  digest
    tag     12  HMAC-SHA256 of everything before it, cut

The first 15 bytes, day to number, are the salt. A digest is HMAC-SHA256 of its kind, the salt and the name,
cut. Every byte is covered by the tag.
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from struct import Struct as Layout
from typing import Annotated

from msgspec import Meta, Struct

from fuseboard.contract.words import Mode, Reason

PREFIX = "fr1."
#: Headers and logs have room for this.
MAX_LENGTH = 90
KEY_ID_BYTES, KEY_BYTES = 4, 32

#: The start of ``type`` in the problem details of a refusal.
URN = "urn:fuseboard:refusal:"
HEADER = "fuseboard-refusal"

#: A valid explain_url, or empty. The agent adds the token as the fragment, and sends the address in a header
#: between < and >, so it contains neither.
EXPLAIN_URL_PATTERN = r"^(https?://[A-Za-z0-9._~:/?\[\]@!$&'()*+,;=%-]{1,480})?\Z"
ExplainPage = Annotated[str, Meta(pattern=EXPLAIN_URL_PATTERN)]

#: A place in these never changes its meaning; new words are added at the end.
REASONS = (
    Reason.QUOTA,
    Reason.VENDOR_LIMIT,
    Reason.CONCURRENCY,
    Reason.COOLING_DOWN,
    Reason.BREAKER_OPEN,
    Reason.PROBE_BUSY,
    Reason.FORCED_OPEN,
    Reason.SUSPENDED,
    Reason.BULKHEAD_FULL,
    Reason.QUEUE_TIMEOUT,
    Reason.SHED,
    Reason.LOCAL_RATE,
    Reason.BUDGET_SPENT,
    Reason.STORE_UNAVAILABLE,
    Reason.BACKLOG_FULL,
)
MODES = (Mode.SHARED, Mode.LOCAL, Mode.RAMPING, Mode.DRILL)
#: A word that this release does not know.
_UNKNOWN = 255

#: Day, key id, time in two parts, number in two parts.
_SALT = Layout(">H4sHIBH")
_FIELDS = Layout(">BIIBB")
_RULE, _TENANT, _POD, _TAG = 5, 7, 4, 12
_BODY_BYTES = _SALT.size + _FIELDS.size + _RULE + _TENANT + _POD
BYTES = _BODY_BYTES + _TAG
LENGTH = len(PREFIX) + -(-BYTES * 4 // 3)

_REASON_PLACES = {reason: place for place, reason in enumerate(REASONS)}
_MODE_PLACES = {mode: place for place, mode in enumerate(MODES)}
_MAX_TIME, _MAX_REVISION, _MAX_RETRY = 2**48 - 1, 2**40 - 1, 2**32 - 1


class TokenError(ValueError):
    """The text is not a whole token of this format."""


class RefusalKey(Struct, frozen=True, kw_only=True):
    """The key that signs the tokens of the pods of one service on one day. Never written to disk."""

    day: Annotated[int, Meta(ge=0, le=65_535)]
    id: Annotated[bytes, Meta(min_length=KEY_ID_BYTES, max_length=KEY_ID_BYTES)]
    key: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]


class TokenContent(Struct, frozen=True, kw_only=True):
    """The content that ``make_token`` puts into a token. It replaces names by digests, and signs the rest."""

    at_ms: int
    #: Random, so that two tokens of one millisecond differ too.
    number: int
    revision: int
    reason: Reason | None
    mode: Mode
    rule: str
    dependency: str = ""
    tenant: str = ""
    server: str = ""
    retry_after_ms: int = 0


class RefusalToken(Struct, frozen=True, kw_only=True):
    """A token as ``read_token`` reads it, without its key. Trust none of it before ``is_signed``."""

    day: int
    key_id: bytes
    at_ms: int
    revision: int
    retry_after_ms: int
    #: ``None`` for a word of a newer release.
    reason: Reason | None
    mode: Mode | None
    salt: bytes
    rule: bytes
    tenant: bytes
    server: bytes
    body: bytes
    tag: bytes

    def is_signed(self, key: bytes) -> bool:
        return hmac.compare_digest(self.tag, _digest(key, b"tag", self.body, _TAG))

    def is_rule(self, key: bytes, dependency: str, rule: str) -> bool:
        return self.rule == _name_digest(key, b"rule", self.salt, _rule_name(dependency, rule), _RULE)

    def is_tenant(self, key: bytes, tenant: str) -> bool:
        return self.tenant == _name_digest(key, b"tenant", self.salt, tenant, _TENANT)

    def is_server(self, key: bytes, server: str) -> bool:
        return self.server == _name_digest(key, b"server", self.salt, server, _POD)


def make_token(key: RefusalKey, refused: TokenContent) -> str:
    at_ms = min(max(0, refused.at_ms), _MAX_TIME)
    number = refused.number % 2**24
    revision = min(max(0, refused.revision), _MAX_REVISION)
    salt = _SALT.pack(key.day, key.id, at_ms >> 32, at_ms & 0xFFFFFFFF, number >> 16, number & 0xFFFF)
    body = b"".join(
        (
            salt,
            _FIELDS.pack(
                revision >> 32,
                revision & 0xFFFFFFFF,
                min(max(0, refused.retry_after_ms), _MAX_RETRY),
                _UNKNOWN if refused.reason is None else _REASON_PLACES.get(refused.reason, _UNKNOWN),
                _MODE_PLACES.get(refused.mode, _UNKNOWN),
            ),
            _name_digest(key.key, b"rule", salt, _rule_name(refused.dependency, refused.rule), _RULE),
            _name_digest(key.key, b"tenant", salt, refused.tenant, _TENANT),
            _name_digest(key.key, b"server", salt, refused.server, _POD),
        )
    )
    return PREFIX + urlsafe_b64encode(body + _digest(key.key, b"tag", body, _TAG)).rstrip(b"=").decode()


def read_token(text: str) -> RefusalToken:
    """Take a token apart; a urn, as problem details have it, is accepted too. Raises ``TokenError``."""
    text = text.strip().removeprefix(URN)
    if len(text) != LENGTH or not text.startswith(PREFIX) or not text.isascii():
        raise TokenError(f"expected {LENGTH} characters that begin with {PREFIX!r}")
    encoded = text.removeprefix(PREFIX).encode()
    try:
        whole = urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4))
    except NotBase64:
        raise TokenError("not base64url") from None
    # The decoder ignores foreign characters and unused bits. The comparison gives a token one spelling only.
    if len(whole) != BYTES or urlsafe_b64encode(whole).rstrip(b"=") != encoded:
        raise TokenError("not base64url")
    salt = whole[: _SALT.size]
    day, key_id, time_high, time_low, _, _ = _SALT.unpack(salt)
    high, low, retry_after_ms, reason, mode = _FIELDS.unpack_from(whole, _SALT.size)
    rule_at = _SALT.size + _FIELDS.size
    tenant_at = rule_at + _RULE
    server_at, tag_at = tenant_at + _TENANT, _BODY_BYTES
    return RefusalToken(
        day=day,
        key_id=key_id,
        at_ms=time_high << 32 | time_low,
        revision=high << 32 | low,
        retry_after_ms=retry_after_ms,
        reason=REASONS[reason] if reason < len(REASONS) else None,
        mode=MODES[mode] if mode < len(MODES) else None,
        salt=salt,
        rule=whole[rule_at:tenant_at],
        tenant=whole[tenant_at:server_at],
        server=whole[server_at:tag_at],
        body=whole[:tag_at],
        tag=whole[tag_at:],
    )


def _rule_name(dependency: str, rule: str) -> str:
    # No name contains a line end.
    return f"{dependency}\n{rule}"


def _name_digest(key: bytes, kind: bytes, salt: bytes, name: str, length: int) -> bytes:
    return _digest(key, kind, salt + name.encode(errors="replace"), length)


def _digest(key: bytes, kind: bytes, message: bytes, length: int) -> bytes:
    return hmac.digest(key, kind + b"\0" + message, "sha256")[:length]
