"""A real OpenID provider, Django OAuth Toolkit, as a separate process on loopback.

    python -m tests.controlplane.accounts.openid FOLDER CALLBACK

It prints its address when it is ready, and ends when its standard input ends.
"""

import os
import sys
from pathlib import Path
from socketserver import ThreadingMixIn
from threading import Thread
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import django
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from django.conf import settings
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application

CLIENT, SECRET = "fuseboard", "its secret"
#: Another client of the same provider. Its codes and tokens are not for Fuseboard.
OTHER_CLIENT, OTHER_CALLBACK = "another", "http://another.example/callback"


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Handler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Writes no log."""


def configure(folder: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # The package needs HTTPS, except on request.
    os.environ["OAUTHLIB_INSECURE_TRANSPORT"] = "1"
    settings.configure(
        SECRET_KEY="signs nothing outside of this process",
        ALLOWED_HOSTS=["127.0.0.1"],
        USE_TZ=True,
        ROOT_URLCONF="tests.controlplane.accounts.openid.urls",
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "provider.db"}},
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "oauth2_provider"],
        MIDDLEWARE=["tests.controlplane.accounts.openid.urls.browser_of_a_person"],
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        OAUTH2_PROVIDER={
            "OIDC_ENABLED": True,
            "OIDC_RSA_PRIVATE_KEY": key.decode(),
            "OAUTH2_VALIDATOR_CLASS": "tests.controlplane.accounts.openid.validator.Validator",
            "SCOPES": {"openid": "", "profile": "", "email": ""},
            "ALLOWED_REDIRECT_URI_SCHEMES": ["http", "https"],
        },
    )


def register(client: str, callback: str) -> None:
    from oauth2_provider.models import Application

    Application.objects.create(
        client_id=client,
        client_secret=SECRET,
        client_type=Application.CLIENT_CONFIDENTIAL,
        authorization_grant_type=Application.GRANT_AUTHORIZATION_CODE,
        redirect_uris=callback,
        skip_authorization=True,
        algorithm=Application.RS256_ALGORITHM,
    )


def main(folder: str, callback: str) -> None:
    configure(Path(folder))
    django.setup()
    call_command("migrate", verbosity=0)
    register(CLIENT, callback)
    register(OTHER_CLIENT, OTHER_CALLBACK)
    with make_server("127.0.0.1", 0, get_wsgi_application(), Server, Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
        sys.stdout.flush()
        sys.stdin.read()
        server.shutdown()


main(*sys.argv[1:])
