"""Seals what this pod keeps in Redis for repeated requests: only pods of its service can make or open it.

All pods of an environment share one user of Redis, so each of them can read and write these records.

A sealed text is a letter and the id of the key. After the letter ``e`` follow a nonce of 12 bytes and the
text under AES-256-GCM. After ``s``, without the package ``cryptography``: HMAC-SHA256 and the readable text.
"""

import hmac
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from secrets import token_bytes
from typing import Protocol

import msgspec

from fuseboard.configuration.disk import replace_file
from fuseboard.configuration.startup import read_in_time
from fuseboard.contract.seal_keys import KEY_ID_BYTES, SealKey, SealKeys

logger = logging.getLogger("fuseboard")

_ENCRYPTED, _SIGNED = b"e", b"s"
_NONCE, _TAG = 12, 32
_HEAD = 1 + KEY_ID_BYTES
#: No file of keys is larger.
_MAX_FILE_BYTES = 4_096

_decode_keys = msgspec.json.Decoder(SealKeys).decode


class Cipher(Protocol):
    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...


class Seals:
    """Any thread can use it. ``path`` is the file for the next start; ``None`` for a pod without a state
    directory. ``expected``: whether a gateway gives keys; otherwise, nothing is sealed.
    """

    def __init__(self, path: Path | None, *, expected: bool) -> None:
        self._path = path
        self._keys: SealKeys = ()
        #: The keys in the file.
        self._stored: SealKeys = ()
        self._failed = False
        #: An earlier control plane gives no keys. Then answers are kept as they are.
        self._plain = not expected

    def take(self, keys: SealKeys) -> None:
        """The keys of a heartbeat. Not for the loop: the first ones load the package."""
        if not keys:
            # A control plane that went back to an earlier release must not undo what is sealed.
            self._plain = not self._keys
        elif keys != self._keys:
            _load_package(keys)
            self._plain = False  # before the keys: another thread must not find both
            self._keys = keys

    def read(self) -> None:
        """Use the keys of the last run, if there are any. Not for the loop."""
        if self._path is None:
            return
        try:
            with self._path.open("rb") as file:
                found = _decode_keys(file.read(_MAX_FILE_BYTES))
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.warning("seals.not_read path=%s: %s; the gateway gives new keys", self._path, error)
            return
        _load_package(found)
        # A slow disk may answer after the first heartbeat.
        if found and not self._keys:
            self._plain, self._stored = False, found
            self._keys = found

    def store(self) -> None:
        """Write the keys for the next start if they have changed. Not for the loop: the disk may be slow.

        Call it after each heartbeat: a write that failed is tried again.
        """
        keys = self._keys
        if self._path is None or keys == self._stored:
            return
        try:
            # Only the owner can read what this makes.
            replace_file(self._path, msgspec.json.encode(keys))
        except OSError as error:
            if not self._failed:
                logger.warning("seals.not_kept path=%s: %s; the agent continues", self._path, error.strerror)
            self._failed = True
        else:
            self._stored, self._failed = keys, False

    # Records

    @property
    def ready(self) -> bool:
        """Whether a text can be kept: not before the first heartbeat of a pod without a file of keys."""
        return self._plain or bool(self._keys)

    @property
    def has_keys(self) -> bool:
        """Whether texts are sealed."""
        return bool(self._keys)

    def seal(self, about: bytes, text: bytes) -> tuple[bytes, bool]:
        """The text as it is kept, and whether it is sealed; empty if it cannot be kept yet.

        ``about`` is the request: the text is good for no other.
        """
        if not text or self._plain:
            return text, False
        if not self._keys:
            return b"", False
        first = self._keys[0]
        cipher = _cipher_of(first.key)
        if cipher is None:
            _log_readable()
            return b"".join((_SIGNED, first.id, _tag(first, about, text), text)), True
        # Random nonces of 12 bytes are good for 2**32 answers with one key. A service has one for a week.
        nonce = token_bytes(_NONCE)
        return b"".join((_ENCRYPTED, first.id, nonce, cipher.encrypt(nonce, text, about))), True

    def open(self, about: bytes, kept: bytes) -> bytes:
        """The text; empty if no pod of this service has sealed it about this request."""
        if not kept or self._plain:
            return kept
        kind, key_id, rest = kept[:1], kept[1:_HEAD], kept[_HEAD:]
        for key in self._keys:
            if key.id == key_id and (text := _opened(key, kind, about, rest)) is not None:
                return text
        logger.warning(
            "seals.refused: no pod with a key of this service has kept this answer; it counts as none"
        )
        return b""


async def read_seal_keys(seals: Seals, *, timeout_s: float) -> None:
    """Read the file of the last run, unless the file system hangs."""
    try:
        await read_in_time(seals.read, timeout_s=timeout_s)
    except TimeoutError:
        logger.warning("seals.not_read: no answer of the file system; the gateway gives new keys")


def _opened(key: SealKey, kind: bytes, about: bytes, rest: bytes) -> bytes | None:
    if kind == _SIGNED:
        text = rest[_TAG:]
        return text if hmac.compare_digest(rest[:_TAG], _tag(key, about, text)) else None
    cipher = _cipher_of(key.key)
    if kind != _ENCRYPTED or cipher is None or len(rest) < _NONCE:
        return None
    try:
        return cipher.decrypt(rest[:_NONCE], rest[_NONCE:], about)
    except _wrong_seal():
        return None


def _tag(key: SealKey, about: bytes, text: bytes) -> bytes:
    return hmac.digest(_derived(key.key, b"sign"), b"%d:%b%b" % (len(about), about, text), "sha256")


def _derived(key: bytes, purpose: bytes) -> bytes:
    return hmac.digest(key, b"fuseboard.seal." + purpose, "sha256")


@cache
def _ciphers() -> tuple[Callable[[bytes], Cipher], type[Exception]] | None:
    """AES-GCM and its error, if the package is installed."""
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        return None
    return AESGCM, InvalidTag


def _load_package(keys: SealKeys) -> None:
    """Import the package and use it once: that takes some 100 ms, so the first text must not do it."""
    for key in keys:
        _cipher_of(key.key)


@cache
def _log_readable() -> None:
    logger.warning(
        "seals.readable: kept answers are signed, but not encrypted: install fuseboard[encryption]"
    )


def _wrong_seal() -> type[Exception]:
    found = _ciphers()
    return found[1] if found is not None else ValueError


@cache
def _cipher_of(key: bytes) -> Cipher | None:
    found = _ciphers()
    return found[0](_derived(key, b"encrypt")) if found is not None else None
