from django.db import models


class Backlog(models.Model):
    """The last reading of one backlog. Redis has the truth; see ``controlplane.backlogs.collect``."""

    environment = models.CharField(max_length=64)
    dependency = models.CharField(max_length=64)
    read_at = models.DateTimeField()
    #: ``controlplane.backlogs.figures.to_document`` writes it.
    document = models.JSONField(default=dict)

    class Meta:
        constraints = (models.UniqueConstraint(fields=["environment", "dependency"], name="backlog_once"),)

    def __str__(self) -> str:
        return f"{self.environment}/{self.dependency}"
