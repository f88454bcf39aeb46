"""Heads of beats that were read before, so that the same bytes are not read again.

A pod sends the same head with nearly every beat: what it asks for, its token, and a length of four
digits. What was made of it once holds for as long as the tokens do.
"""

from hashlib import sha256

from msgspec import Struct

from controlplane.gateway.wire.tokens import Token, TokenBook

#: Heads remembered, of all pods together: one for each of their tokens and lengths.
MOST_HEADS = 20_000

_END = b"\r\n\r\n"


class Head(Struct, frozen=True, gc=False):
    """A beat's head that was in order."""

    token: Token
    #: Bytes of the body that follows.
    length: int
    #: Of the tokens it was checked against.
    edition: int


class Heads:
    def __init__(self, tokens: TokenBook) -> None:
        self._tokens = tokens
        #: By SHA-256: a head holds a secret.
        self._known: dict[bytes, Head] = {}

    def find(self, head: bytes) -> Head | None:
        known = self._known.get(sha256(head).digest())
        return known if known is not None and known.edition == self._tokens.edition else None

    def keep(self, head: bytes, token: Token, length: int) -> None:
        if len(self._known) >= MOST_HEADS:
            self._known.clear()
        self._known[sha256(head).digest()] = Head(token, length, self._tokens.edition)


def end_of_head(piece: bytes) -> int:
    """Where the body begins in what was received first of a request; 0 when its head is not whole."""
    found = piece.find(_END)
    return 0 if found < 0 else found + len(_END)
