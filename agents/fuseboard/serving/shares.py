"""A bound that several users share: one of them cannot use it up."""

#: The user of a process; ``None`` for all that are not told apart.
Uid = int | None


def may_have_more(own: int, total: int, most: int) -> bool:
    """Whether a user that has ``own`` of a ``total`` may have one more.

    It may have as many as are free then: alone half of ``most``, two a third each, and so on. So there is
    room for a user that has none, whatever others do.
    """
    return own < most - total
