"""The pieces that are out, so that several gateways, and one after its restart, give none out twice.

Written by gateways alone, a few rows per second at most, behind the lock of the environment's
``Pool``. Nothing here is decided by a clock of Postgres: a piece is free again when a gateway
has watched its row stay the same for ``hold_ms`` of its own monotonic time.
"""

from django.db import models

from fuseboard.contract.shares import MAX_LEVEL


class Pool(models.Model):
    """One environment's whole; its row lock makes changes follow each other."""

    environment = models.CharField(primary_key=True, max_length=64)
    #: Of the environment when pieces were last given out: after a restore, all of them count as out.
    epoch = models.BigIntegerField(default=0)
    #: The last number given to a piece.
    terms = models.BigIntegerField(default=0)

    class Meta:
        db_table = "shares_pool"

    def __str__(self) -> str:
        return self.environment


class Piece(models.Model):
    """One cell: a server's, or resting after one."""

    environment = models.CharField(max_length=64)
    #: Empty while it rests.
    server = models.CharField(max_length=64, blank=True, default="")
    boot = models.CharField(max_length=64, blank=True, default="")
    level = models.IntegerField()
    place = models.IntegerField()
    #: The level its server was told to shrink to; until it says that it has, the whole piece is out.
    offered = models.IntegerField()
    terms = models.BigIntegerField()
    #: Rises with every renewal.
    renewals = models.BigIntegerField(default=0)
    hold_ms = models.BigIntegerField()

    class Meta:
        db_table = "shares_piece"
        constraints = (
            models.UniqueConstraint(fields=["environment", "level", "place"], name="shares_piece_once"),
            models.UniqueConstraint(
                fields=["environment", "server", "boot"],
                condition=~models.Q(boot=""),
                name="shares_piece_one_per_server",
            ),
            models.CheckConstraint(
                condition=models.Q(level__range=(0, MAX_LEVEL)) & models.Q(offered__gte=models.F("level")),
                name="shares_piece_level_range",
            ),
        )

    def __str__(self) -> str:
        return f"{self.environment} {self.place}/{2**self.level} {self.server or 'resting'}"
