"""Things that are measured over time, and which hours are sealed.

The figures themselves are in tables without a model, because they are arrays and partitions:
``series_frame``, ``series_span``, ``series_10s``, ``series_1m``, and ``series_1h``. Migration 0001
describes their columns.
"""

from django.db import models


class Entity(models.Model):
    """One thing that is measured. Its number stands for it in every other table."""

    id = models.AutoField(primary_key=True)
    environment = models.CharField(max_length=64)
    kind = models.SmallIntegerField()
    name = models.CharField(max_length=200, blank=True)
    sub = models.CharField(max_length=64, blank=True)
    #: Before this, nothing is known of it.
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "entities"
        constraints = (
            models.UniqueConstraint(fields=["environment", "kind", "name", "sub"], name="series_entity_once"),
        )

    def __str__(self) -> str:
        return f"{self.environment}/{self.kind}/{self.name}/{self.sub}"


#: The gateway of figures that nothing measured: the past of the demo.
MADE_UP = "made up by the demo"


class Writer(models.Model):
    """One run of a gateway, in one environment. After a restart, a gateway is another writer."""

    id = models.AutoField(primary_key=True)
    gateway = models.CharField(max_length=100)
    environment = models.CharField(max_length=64)
    started_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.gateway} since {self.started_at}"


class Seal(models.Model):
    """An hour that is in arrays. When it is final, its frames are deleted."""

    hour = models.DateTimeField(primary_key=True)
    final = models.BooleanField(default=False)
    sealed_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.hour}{' (final)' if self.final else ''}"
