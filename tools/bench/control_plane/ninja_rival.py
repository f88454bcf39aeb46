"""The obvious solution: a django-ninja endpoint that takes a heartbeat and stores its row.

Stock, with Django's connection pool, and without middleware.
"""
# ruff: noqa: E402 - Django is configured before anything of it is imported
# ruff: noqa: RUF012 - pydantic copies its defaults

import os
import socket
import sys
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from urllib.parse import unquote, urlsplit

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[3])]

from django.conf import settings

url = urlsplit(os.environ["DATABASE_URL"])
settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="benchmark",
    MIDDLEWARE=[],
    INSTALLED_APPS=[],
    USE_TZ=True,
    LOGGING={
        "version": 1,
        "handlers": {"stderr": {"class": "logging.StreamHandler"}},
        "loggers": {"django.request": {"handlers": ["stderr"], "level": "ERROR"}},
    },
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.path[1:],
            "USER": unquote(url.username or ""),
            "PASSWORD": unquote(url.password or ""),
            "HOST": url.hostname,
            "PORT": url.port or "",
            # A connection kept per thread is one per request under ASGI, until Postgres has no more.
            "OPTIONS": {"pool": {"min_size": 4, "max_size": 16, "timeout": 30}},
        }
    },
)

import django

django.setup()

import uvicorn
from django.core.asgi import get_asgi_application
from django.db import connection, models
from django.urls import path
from django.utils import timezone
from ninja import NinjaAPI, Schema
from ninja.security import HttpBearer

from control_plane.processes import SECRET
from controlplane.gateway.wire.serving import BACKLOG, uvicorn_config

DIGEST = sha256(SECRET.encode()).hexdigest()


class Pod(models.Model):
    name = models.CharField(max_length=64, unique=True)
    seen_at = models.DateTimeField()
    revision = models.BigIntegerField()
    breakers = models.JSONField()
    counters = models.JSONField()

    class Meta:
        app_label = "bench"
        db_table = "bench_pod"

    def __str__(self):
        return self.name


class Applied(Schema):
    epoch: int = 0
    revision: int = 0
    hash: str = ""


class Breaker(Schema):
    dependency: str
    state: str = "closed"
    for_ms: int = 0
    window_calls: int = 0


class Dependency(Schema):
    dependency: str
    ok: int = 0
    failure: int = 0
    slow: int = 0
    neutral: int = 0


class Tenant(Schema):
    tenant: str
    allowed: int = 0
    refused: int = 0


class Store(Schema):
    asked: int = 0
    latency: list[int] = []


class Counters(Schema):
    requests: int = 0
    store: Store = Store()
    dependencies: list[Dependency] = []
    tenants: list[Tenant] = []


class Beat(Schema):
    environment: str
    service: str
    server: str
    boot: str
    sequence: int
    agent_version: str
    up_ms: int = 0
    applied: Applied
    breakers: list[Breaker] = []
    counters: Counters


class Token(HttpBearer):
    async def authenticate(self, request, token):
        return compare_digest(sha256(token.split("_", 2)[2].encode()).hexdigest(), DIGEST)


api = NinjaAPI(auth=Token(), docs_url=None, openapi_url=None)


@api.post("/sync")
async def sync(request, beat: Beat):
    row = {
        "seen_at": timezone.now(),
        "revision": beat.applied.revision,
        "breakers": [breaker.dict() for breaker in beat.breakers],
        "counters": beat.counters.dict(),
    }
    await Pod.objects.aupdate_or_create(name=beat.server, defaults=row)
    return {"next_ms": 5_000, "revision": beat.applied.revision}


urlpatterns = [path("api/", api.urls)]

if __name__ == "__main__":
    with connection.schema_editor() as editor:
        editor.create_model(Pod)
    connection.close()
    connection.close_pool()
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:
        sys.stdout.write(f"Serving http://127.0.0.1:{listener.getsockname()[1]}/\n")
        sys.stdout.flush()
        config = uvicorn_config(get_asgi_application(), http="httptools")
        config.lifespan = "off"
        uvicorn.Server(config).run(sockets=[listener])
