"""Background work: ``celery -A controlplane worker`` and ``celery -A controlplane beat``.

Every task is short, may run twice at once, and is dropped when it waited too long: the next
one does the same. Nothing is enqueued inside a request.
"""

import os
from typing import Any

from celery import Celery
from celery.signals import setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

app = Celery("controlplane")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["controlplane.publishing", "controlplane.breakers"])


@setup_logging.connect
def _keep_our_logs(**_: Any) -> None:
    """Celery leaves logging alone when somebody listens here; Django has configured it."""
