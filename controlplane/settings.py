"""All settings on one page. docs/settings.md lists the variables."""

import secrets
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured
from django.core.management.utils import get_random_secret_key

from controlplane import broker, env, installation, logs
from controlplane.accounts import settings as accounts
from controlplane.database_url import database_of
from controlplane.redis_acl import PROFILES
from fuseboard.contract.store_url import SCHEMES, with_ca

#: Data of the embedded servers and the generated secret key; ignored by git.
DATA_DIR = Path(env.text("FUSEBOARD_DATA_DIR") or installation.default_data_dir())

DEBUG = env.flag("FUSEBOARD_DEBUG")
#: Serve plain HTTP, as on localhost: cookies are not marked secure, and nothing redirects to https.
#: While no variable says where the pages are reached, only this machine reaches them, without https.
_LOCAL = not any(
    env.text(f"FUSEBOARD_{name}") for name in ("ORIGINS", "ALLOWED_HOSTS", "BEHIND_PROXY", "TLS_CERT_FILE")
)
PLAIN_HTTP = env.flag("FUSEBOARD_PLAIN_HTTP", default=DEBUG or _LOCAL)


def _secret_key() -> str:
    """The configured key; without one, a generated key stored beside the data of the embedded servers."""
    if configured := env.text("FUSEBOARD_SECRET_KEY"):
        return configured
    file = DATA_DIR / "secret_key"
    if not file.exists():
        DATA_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = DATA_DIR / f"secret_key.{secrets.token_hex(8)}"
        draft.touch(mode=0o600)
        draft.write_text(get_random_secret_key() + get_random_secret_key())
        # Two processes may start at once: the first link wins, both read the same key.
        with suppress(FileExistsError):
            file.hardlink_to(draft)
        draft.unlink()
    return file.read_text()


SECRET_KEY = _secret_key()
#: Earlier keys, accepted until what they signed has expired; see docs/deployment.md.
SECRET_KEY_FALLBACKS = env.words("FUSEBOARD_SECRET_KEY_FALLBACKS", [])

# Stores. Without a URL, manage.py starts embedded servers and exports their URLs; controlplane.checks
# reports it when neither happened.

_POSTGRES = ("postgres", "postgresql")
DATABASE_URL = env.url("DATABASE_URL", _POSTGRES)
#: Whether a pooler gives each transaction another session of Postgres.
DATABASE_POOLED = env.flag("FUSEBOARD_DATABASE_POOLED")
#: Past that pooler.
DIRECT_DATABASE_URL = env.url("FUSEBOARD_DIRECT_DATABASE_URL", _POSTGRES)
if DATABASE_POOLED and not DIRECT_DATABASE_URL:
    raise ImproperlyConfigured(
        "FUSEBOARD_DATABASE_POOLED needs FUSEBOARD_DIRECT_DATABASE_URL, an address of Postgres past the"
        " pooler: LISTEN, locks and migrations need a session."
    )
#: Counters, breakers and the copy of the configuration.
CA_FILE = env.text("FUSEBOARD_CA_FILE")
REDIS_URL = with_ca(env.url("FUSEBOARD_REDIS_URL", SCHEMES), CA_FILE)
#: The rights of pods there, see controlplane/redis_acl.py.
ACL_PROFILE = env.choice("FUSEBOARD_ACL_PROFILE", PROFILES)
#: Commands per second that one server of it bears; 0 for unknown.
REDIS_CAPACITY_OPS = env.integer("FUSEBOARD_REDIS_CAPACITY_OPS", 0, at_least=0, at_most=100_000_000)
#: Celery's queue, on its own server: a full queue must not affect a limit.
BROKER_URL = env.url("FUSEBOARD_BROKER_URL", broker.SCHEMES)

#: No server listens there, and the error shows the name.
_UNSET: dict[str, Any] = {
    "ENGINE": "django.db.backends.postgresql",
    "HOST": "/DATABASE_URL is not set",
    "NAME": "fuseboard",
}
DATABASES: dict[str, dict[str, Any]] = {
    "default": database_of(DATABASE_URL, name="DATABASE_URL", pooled=DATABASE_POOLED)
    if DATABASE_URL
    else _UNSET
}
#: Locks and listeners, which need a session, use this; ``None`` for the same database as everything else.
DIRECT_DATABASE = (
    database_of(DIRECT_DATABASE_URL, name="FUSEBOARD_DIRECT_DATABASE_URL", pooled=False)
    if DIRECT_DATABASE_URL
    else None
)
if DIRECT_DATABASE and DATABASE_URL and DIRECT_DATABASE["NAME"] != DATABASES["default"]["NAME"]:
    raise ImproperlyConfigured(
        f"FUSEBOARD_DIRECT_DATABASE_URL names database {DIRECT_DATABASE['NAME']!r}, and DATABASE_URL names"
        f" {DATABASES['default']['NAME']!r}. Use one name in both: in a pooler, give the database the name"
        " that it has in Postgres."
    )
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "csp",
    "django_htmx",
    "pgtrigger",
    "template_partials.apps.SimpleAppConfig",
    "controlplane.apps.ControlPlaneConfig",
    "controlplane.accounts.apps.AccountsConfig",
    "controlplane.api",
    "controlplane.audit.apps.AuditConfig",
    "controlplane.spending",
    "controlplane.policies",
    "controlplane.publishing",
    "controlplane.breakers",
    "controlplane.backlogs",
    "controlplane.fleet",
    "controlplane.shares",
    "controlplane.drills",
    "controlplane.schedules",
    "controlplane.approvals",
    "controlplane.usage",
    "controlplane.refusals",
    "controlplane.series",
    "controlplane.ledger",
    "controlplane.suggestions",
    "controlplane.reconciliation",
    "controlplane.alerts",
    "controlplane.weekly",
    "controlplane.audit_export",
    "dashboard",
    # The commands `demo` and `seed_demo`, of a checkout.
    *(["tools.demo"] if installation.IS_CHECKOUT else []),
    # After ours, whose export_openapi_schema knows where the API is.
    "ninja",
    # Last, so that our templates come before theirs.
    *accounts.APPS,
]
#: Gateway, worker and beat answer no page: without what only pages need, they start in less time.
_program = Path(sys.argv[0]).name
if (sys.argv[1:2] and sys.argv[1] in ("gateway", "worker", "beat")) or (
    _program in ("celery", "__main__.py") and "worker" in sys.argv
):
    _only_pages = (
        "channels",
        "csp",
        "dashboard",
        "django_htmx",
        "ninja",
        "template_partials",
        *accounts.LOGIN,
    )
    INSTALLED_APPS = [app for app in INSTALLED_APPS if not app.startswith(_only_pages)]

#: Where a breaker is forced open when neither Postgres nor Redis answers.
GATEWAY_URLS = env.gateways("FUSEBOARD_GATEWAY_URL")

#: Private networks that webhooks may connect to.
WEBHOOK_NETWORKS = env.networks("FUSEBOARD_WEBHOOK_NETWORKS")

#: Is pinged every minute while alerts are evaluated; empty for no ping.
WATCHDOG_URL = env.url("FUSEBOARD_WATCHDOG_URL", ("http", "https"))

#: On Mondays, when weekly summaries are sent.
WEEKLY_AT = env.time_of_day("FUSEBOARD_WEEKLY_AT", "08:00 UTC")

#: Where every audit entry is sent to; both empty for nowhere. A file may be ``-``, the standard output.
AUDIT_EXPORT_URL = env.url("FUSEBOARD_AUDIT_EXPORT_URL", ("http", "https"))
AUDIT_EXPORT_SECRETS = env.webhook_secrets("FUSEBOARD_AUDIT_EXPORT_SECRET")
if AUDIT_EXPORT_URL and not AUDIT_EXPORT_SECRETS:
    raise ImproperlyConfigured(
        "FUSEBOARD_AUDIT_EXPORT_URL needs FUSEBOARD_AUDIT_EXPORT_SECRET, with which entries are signed."
    )
AUDIT_EXPORT_FILE = env.text("FUSEBOARD_AUDIT_EXPORT_FILE")

#: Opens /metrics to scrapers without an API token.
METRICS_TOKEN = env.text("FUSEBOARD_METRICS_TOKEN")
WORKER_METRICS_ADDRESS = env.listen_address("FUSEBOARD_WORKER_METRICS_PORT")

MIDDLEWARE = [
    "controlplane.request_ids.RequestIds",
    "controlplane.metrics.CountRequests",
    "django.middleware.security.SecurityMiddleware",
    "controlplane.middleware.StaticFiles",
    "csp.middleware.CSPMiddleware",
    "controlplane.api.http.problems.ProblemResponses",
    "controlplane.middleware.StoreErrors",
    "controlplane.api.http.headers.ApiHeaders",
    "controlplane.middleware.ReadableText",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "controlplane.middleware.CommonExceptProbes",
    "django.middleware.csrf.CsrfViewMiddleware",
    "controlplane.accounts.middleware.ClaimsAuthentication",
    "allauth.account.middleware.AccountMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "dashboard.page_middleware.Pages",
]

ROOT_URLCONF = "controlplane.urls"
ASGI_APPLICATION = "controlplane.asgi.application"

_loaders: list[Any] = [
    "django.template.loaders.filesystem.Loader",
    "django.template.loaders.app_directories.Loader",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "OPTIONS": {
            "loaders": [
                (
                    "template_partials.loader.Loader",
                    _loaders if DEBUG else [("django.template.loaders.cached.Loader", _loaders)],
                )
            ],
            "builtins": ["template_partials.templatetags.partials", "dashboard.templatetags.form_fields"],
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]

# Accounts and sessions

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
globals().update(accounts.allauth(plain_http=PLAIN_HTTP))
#: Roles that require a second factor.
MFA_ROLES = accounts.mfa_roles()
OIDC_ROLES = accounts.oidc_roles()
#: The text of the button for the identity provider; empty for no button.
OIDC_NAME = accounts.oidc_name()
#: Counts failed logins; the cache has no other use.
CACHES = {"default": {"BACKEND": "controlplane.accounts.cache.PostgresCache"}}
# Without the environment of the page that needs a login: identity providers know one address only.
LOGIN_URL = "/login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login"
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 12},
    },
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
# Signed cookies need no store, so that operators stay logged in while Postgres is down.
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
SESSION_COOKIE_NAME = "fuseboard" if PLAIN_HTTP else "__Host-fuseboard"
SESSION_COOKIE_AGE = 12 * 3600
SESSION_COOKIE_SECURE = not PLAIN_HTTP
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_NAME = "fuseboard-csrf" if PLAIN_HTTP else "__Host-fuseboard-csrf"
CSRF_COOKIE_SECURE = not PLAIN_HTTP
CSRF_COOKIE_HTTPONLY = True
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_FAILURE_VIEW = "dashboard.views.page.form_not_accepted"
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"

# Where it is served

ALLOWED_HOSTS = env.words("FUSEBOARD_ALLOWED_HOSTS", ["127.0.0.1", "localhost", "[::1]"])
#: Pages that may open the socket and post forms, with scheme and port.
ORIGINS = env.origins("FUSEBOARD_ORIGINS")
CSRF_TRUSTED_ORIGINS = ORIGINS

SECURE_SSL_REDIRECT = not PLAIN_HTTP
#: Kubelets, load balancers and scrapers ask these without TLS, and name an address as the host.
PROBES = ("/healthz", "/readyz", "/metrics")
SECURE_REDIRECT_EXEMPT = [f"^{path.removeprefix('/')}$" for path in PROBES]
SECURE_HSTS_SECONDS = 0 if PLAIN_HTTP else 365 * 86_400
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
BEHIND_PROXY = env.flag("FUSEBOARD_BEHIND_PROXY")
#: The proxies whose X-Forwarded-For is trusted: addresses and networks.
PROXIES = env.words("FUSEBOARD_PROXIES", ["127.0.0.1", "::1"])
if BEHIND_PROXY:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
# HSTS for this host only: its owner decides about sibling hosts and preload lists.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]

CONTENT_SECURITY_POLICY: dict[str, Any] = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF],
        "font-src": [SELF],
        # Older Safari does not count the socket as 'self'.
        "connect-src": [SELF, *(origin.replace("http", "ws", 1) for origin in ORIGINS)],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
    }
}

# Static files: hashed names once `collectstatic` has run; straight from the packages before that.

STATIC_URL = "/static/"
_collected = (installation.FOLDER if installation.IS_CHECKOUT else DATA_DIR) / "staticfiles"
_hashed = sys.argv[1:2] == ["collectstatic"] or (not DEBUG and (_collected / "staticfiles.json").exists())
STATIC_ROOT = _collected if _hashed else None
WHITENOISE_USE_FINDERS = not _hashed
WHITENOISE_ALLOW_ALL_ORIGINS = False
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"
        if _hashed
        else "django.contrib.staticfiles.storage.StaticFilesStorage"
    },
}

# The rest

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False
DATA_UPLOAD_MAX_MEMORY_SIZE = 1_048_576
# The editor of a tier has 18 for each limit. The size above bounds them all the same.
DATA_UPLOAD_MAX_NUMBER_FIELDS = 10_000
#: API requests of one caller, counted by each web process.
API_RATE_PER_S = env.integer("FUSEBOARD_API_RATE_PER_S", 100, at_least=1, at_most=1_000_000)
API_BURST = env.integer("FUSEBOARD_API_BURST", 1_000, at_least=1, at_most=10_000_000)

logs.configure()
LOGGING = logs.dict_config(env.text("FUSEBOARD_LOG_LEVEL", "INFO").upper())

#: How long usage is kept, by the length of its spans: 10 s in hours, minutes and hours in days.
USAGE_KEPT_10S_H = env.integer("FUSEBOARD_USAGE_10S_H", 6, at_least=1, at_most=168)
USAGE_KEPT_MINUTES_D = env.integer("FUSEBOARD_USAGE_MINUTES_D", 8, at_least=1, at_most=90)
USAGE_KEPT_HOURS_D = env.integer("FUSEBOARD_USAGE_HOURS_D", 400, at_least=1, at_most=4000)
#: Days that the token of a refusal is explained.
REFUSAL_TOKEN_DAYS = env.integer("FUSEBOARD_REFUSAL_TOKEN_DAYS", 30, at_least=1, at_most=365)
#: The page of refusal tokens, as people reach it; empty to name it in no answer to a refused request.
EXPLAIN_URL = env.page("FUSEBOARD_EXPLAIN_URL")
#: The documentation, as people reach it. The page "Help" links to it.
DOCUMENTATION_URL = env.url("FUSEBOARD_DOCUMENTATION_URL", ("http", "https"))
#: How long samples of refusals are kept, in hours; 0 for no log.
REFUSAL_LOG_H = env.integer("FUSEBOARD_REFUSAL_LOG_H", 24, at_least=0, at_most=48)
#: How long the history of pods and dependencies is kept, by the length of its spans.
SERIES_KEPT_10S_H = env.integer("FUSEBOARD_SERIES_10S_H", 24, at_least=6, at_most=168)
SERIES_KEPT_MINUTES_D = env.integer("FUSEBOARD_SERIES_MINUTES_D", 8, at_least=1, at_most=90)
SERIES_KEPT_HOURS_D = env.integer("FUSEBOARD_SERIES_HOURS_D", 400, at_least=1, at_most=4000)
#: The hours of all tenants: about 40 MB a day and gateway for 100,000 active tenants.
SERIES_KEPT_TENANTS_D = env.integer("FUSEBOARD_SERIES_TENANTS_D", 35, at_least=1, at_most=400)
#: The hours of the ledger of models, and its days: about 13 months.
LEDGER_KEPT_HOURS_D = env.integer("FUSEBOARD_LEDGER_HOURS_D", 70, at_least=31, at_most=400)
LEDGER_KEPT_DAYS_D = env.integer("FUSEBOARD_LEDGER_DAYS_D", 400, at_least=31, at_most=4000)
#: Where a ticket of an override is, by its key.
TICKET_URL = env.link("FUSEBOARD_TICKET_URL")
#: How long before a quota ends, or a scheduled change is made, people are notified.
ANNOUNCE_S = env.integer("FUSEBOARD_ANNOUNCE_S", 3600, at_least=60, at_most=30 * 86_400)

# Celery; its schedule is in controlplane.celery

CELERY_BROKER_URL = broker.broker_url(BROKER_URL) or "redis://FUSEBOARD_BROKER_URL-is-not-set"
CELERY_BROKER_USE_SSL = broker.tls_options(BROKER_URL, CA_FILE)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# A broker that answers with an error, as during a failover or with a full memory, does not end the worker.
CELERY_BROKER_CHANNEL_ERROR_RETRY = True
CELERY_BROKER_TRANSPORT_OPTIONS = broker.transport_options(BROKER_URL)
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SOFT_TIME_LIMIT = 20
CELERY_TASK_TIME_LIMIT = 30
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TIMEZONE = "UTC"
# The schedule needs no memory between runs, so it has no file.
CELERY_BEAT_SCHEDULER = "controlplane.beat:Scheduler"
#: Beat touches this file while it runs, for a health check; empty for none.
BEAT_FILE = env.text("FUSEBOARD_BEAT_FILE")
