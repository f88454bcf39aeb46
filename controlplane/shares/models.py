"""The reserved shares that are assigned. Several gateways, and restarted ones, assign none twice.

Only gateways write here, a few rows per second at most, behind the lock of the environment's
``Pool``. No decision depends on the clock of Postgres: a share is free again when a gateway
has watched its row stay unchanged for ``hold_ms`` of its own monotonic time.
"""

from django.db import models

from fuseboard.contract.shares import MAX_LEVEL


class Pool(models.Model):
    """The whole of one environment. Its row lock serializes changes."""

    environment = models.CharField(primary_key=True, max_length=64)
    #: The environment's epoch when shares were last assigned. After a restore, all shares count as assigned.
    epoch = models.BigIntegerField(default=0)
    #: The last number given to a share.
    terms = models.BigIntegerField(default=0)

    class Meta:
        db_table = "shares_pool"

    def __str__(self) -> str:
        return self.environment


class Piece(models.Model):
    """One reserved share: assigned to a pod, or resting after one."""

    environment = models.CharField(max_length=64)
    #: Empty while it rests.
    server = models.CharField(max_length=64, blank=True, default="")
    boot = models.CharField(max_length=64, blank=True, default="")
    level = models.IntegerField()
    place = models.IntegerField()
    #: The level to which its pod was asked to shrink. Until the pod agrees, the whole share is assigned.
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
