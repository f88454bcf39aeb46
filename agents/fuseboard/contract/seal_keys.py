"""The keys with which the pods of a service seal what they keep in Redis for repeated requests."""

from typing import Annotated

from msgspec import Meta, Struct

KEY_ID_BYTES, KEY_BYTES = 4, 32
#: The keys of four periods, for up to three secret keys of the control plane.
MAX_KEYS = 12


class SealKey(Struct, frozen=True, kw_only=True):
    id: Annotated[bytes, Meta(min_length=KEY_ID_BYTES, max_length=KEY_ID_BYTES)]
    key: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]

    def __repr__(self) -> str:
        return f"SealKey(id={self.id.hex()!r}, key='***')"


#: The first key seals, all of them open.
SealKeys = Annotated[tuple[SealKey, ...], Meta(max_length=MAX_KEYS)]
