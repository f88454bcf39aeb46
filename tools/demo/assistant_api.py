"""The documents of the assistant's own API. The checkpoints read them without the clients of models."""

import msgspec


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """One call, for a tenant."""

    model: str
    tenant: str = ""
    text: str = "How long does a parcel take?"
    max_tokens: int = 40
    stream: bool = False
    #: Leave the stream after so many parts; ``None`` to read it to its end.
    leave_after: int | None = None


class Work(msgspec.Struct, forbid_unknown_fields=True):
    """How many jobs the assistant begins per second, and of which model; an empty one for all."""

    per_s: float
    model: str = ""


class Got(msgspec.Struct):
    """What came of a call."""

    text: str = ""
    parts: int = 0
    refused_because: str = ""
    rule: str = ""
    #: The class of the client's own error.
    error: str = ""
