from contextlib import suppress

from celery import shared_task
from django.conf import settings

from controlplane.audit_export.export import export_to
from controlplane.audit_export.waiting import FILE, WEBHOOK
from controlplane.one_at_a_time import StillRunning, alone
from controlplane.siem.targets import to_file, to_webhook


# A request may begin near the end of its 8 s, and takes at most 15 s.
@shared_task(name="audit_export.export", soft_time_limit=27, time_limit=29)
def export() -> None:
    # A target that hangs keeps one thread of a worker busy, not all of them.
    with suppress(StillRunning), alone("audit_export.export"):
        if settings.AUDIT_EXPORT_FILE:
            export_to(FILE, to_file, batch=500)
        if settings.AUDIT_EXPORT_URL:
            export_to(WEBHOOK, to_webhook, batch=1)
