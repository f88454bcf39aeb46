from datetime import timedelta

from django.db import models
from django.db.models.functions import Now

KEPT_FOR = timedelta(hours=24)


class KeptReply(models.Model):
    """The response to a write with an ``Idempotency-Key``, so that a repetition changes nothing.

    Written in the transaction of the edit: both are stored or neither.
    """

    #: ``token:<selector>`` or ``user:<id>``: keys of one caller do not affect another.
    caller = models.CharField(max_length=200)
    key = models.CharField(max_length=200)
    #: HMAC-SHA256 of method, address, ``If-Match`` and body, hexadecimal, under ``FUSEBOARD_SECRET_KEY``: a
    #: body can name a caller to erase, whom no list of guesses may find. Releases up to 0.1 stored SHA-256.
    fingerprint = models.CharField(max_length=64)
    #: The response as it was sent, without secrets; null only inside the transaction that makes it.
    reply = models.JSONField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name_plural = "kept replies"
        constraints = (models.UniqueConstraint(fields=["caller", "key"], name="kept_reply_once"),)
        indexes = (models.Index(fields=["created_at"], name="kept_reply_by_age"),)

    def __str__(self) -> str:
        return f"{self.caller} {self.key}"


def forget_old_replies() -> int:
    """Delete expired replies; return how many."""
    return KeptReply.objects.filter(created_at__lt=Now() - KEPT_FOR).delete()[0]
