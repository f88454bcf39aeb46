from django.db import models
from django.db.models.functions import Now


class WeeklySummary(models.Model):
    """Findings of ``summarize`` about one week of an environment, as pages show them."""

    environment = models.CharField(max_length=64)
    #: A Monday; the week ends with the Sunday after it, in UTC.
    begins = models.DateField()
    made_at = models.DateTimeField(db_default=Now())
    #: When its deliveries were made, also if no receiver wanted it.
    sent_at = models.DateTimeField(null=True, blank=True)
    #: Sections, as ``controlplane.weekly.sections`` describes them.
    sections = models.JSONField()

    class Meta:
        verbose_name_plural = "weekly summaries"
        constraints = (models.UniqueConstraint(fields=["environment", "begins"], name="weekly_summary_once"),)

    def __str__(self) -> str:
        return f"{self.environment} {self.begins}"
