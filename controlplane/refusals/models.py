from django.db import models


class RefusalService(models.Model):
    """A service whose pods got a key for the tokens of their refusals.

    A token does not name its service. The control plane derives the keys of these and compares.
    """

    environment = models.CharField(max_length=64)
    service = models.CharField(max_length=64)
    #: The last day, in UTC, on which a gateway sent a key.
    last_on = models.DateField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["environment", "service"], name="refusal_service_once"),
        )

    def __str__(self) -> str:
        return f"{self.environment}/{self.service}"
