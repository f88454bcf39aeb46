"""The settings of the agent: its servers, and its own identity. Read once, at start."""

import os
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from fuseboard.contract.store_url import StoreUrl, with_ca
from fuseboard.contract.words import DEFAULT_ENVIRONMENT, is_slug
from fuseboard.errors import Misconfigured

PREFIX = "FUSEBOARD_"

#: The most tenants, addresses and keys whose rules a process keeps prepared, unless its settings say another
#: number.
MAX_SUBJECTS = 20_000


def scaled(most: int, most_subjects: int) -> int:
    """The bound of what is kept for subjects, which is ``most`` for ``MAX_SUBJECTS`` of them."""
    return max(1, most * most_subjects // MAX_SUBJECTS)


#: The value of ``FUSEBOARD_REDIS_URL`` for laptops and CI: no servers, and every call passes.
OFF = "off"

#: Every variable the agent reads, without the prefix.
_OURS = {
    "BOOTSTRAP_FILE",
    "CA_FILE",
    "ENVIRONMENT",
    "MOST_SUBJECTS",
    "OTEL",
    "REDIS_URL",
    "SERVER",
    "SERVICE",
    "SIDECAR_TOKEN",
    "SIDECAR_TOKEN_FILE",
    "STATE_DIR",
    "TOKEN",
    "TOKEN_FILE",
    "URL",
    "ZONE",
}
#: Variables of the control plane, which may share the environment of an agent.
_THEIRS = {
    "ALLOWED_HOSTS",
    "API_BURST",
    "API_RATE_PER_S",
    "API_TOKEN",
    "API_TOKEN_FILE",
    "API_URL",
    "BEAT_MS",
    "BROKER_URL",
    "DATABASE_URL",
    "DEBUG",
    "ORIGINS",
    "SECRET_KEY",
    "SECRET_KEY_FALLBACKS",
    "TLS_CERT_FILE",
    "TLS_KEY_FILE",
    "SECRET_KEY_FILE",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Everything a pod must know before it has a configuration.

    The timings of the store and the breakers are not here. They are configuration, so that one edit
    changes them for the whole fleet.
    """

    #: ``off`` for laptops and CI: the agent asks no server, and every call passes.
    redis_url: str
    #: The URL of the gateway; empty to use Redis alone.
    url: str = ""
    token: str = field(default="", repr=False)
    #: The file of the token. It is checked for a new token before every heartbeat.
    token_file: Path | None = None
    #: Certificates of the trusted authorities, for Redis and the gateway; empty for those of the system.
    ca_file: str = ""
    environment: str = DEFAULT_ENVIRONMENT
    service: str = "default"
    server: str = ""
    zone: str = ""
    #: Where the last good configuration is kept; ``None`` to keep none.
    state_dir: Path | None = None
    bootstrap_file: Path | None = None
    #: Show decisions in OpenTelemetry, which must be installed.
    otel: bool = False
    #: The agent decides for all pods of a node, and can protect none of them: it has no bulkhead, no local
    #: rate and no shedding.
    serves_node: bool = False
    #: The most tenants, addresses and keys whose rules are kept prepared in memory: 100 to 1,000,000.
    most_subjects: int = MAX_SUBJECTS
    #: How long ``start`` waits for the gateway before it asks the next source.
    boot_http_s: float = 0.3
    boot_redis_s: float = 0.5
    boot_file_s: float = 0.3
    #: The process whose name ``server`` is.
    process_id: int = field(default_factory=os.getpid, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.server:
            object.__setattr__(self, "server", _server_name())
        if not self.off:
            _check_store_url(PREFIX + "REDIS_URL", self.redis_url)
        if self.ca_file:
            _check_ca(self.ca_file)
            object.__setattr__(self, "redis_url", with_ca(self.redis_url, self.ca_file))
        if self.url and not self.off:
            _check_url(PREFIX + "URL", self.url, {"http", "https"})
            if not self.token:
                raise Misconfigured(f"{PREFIX}TOKEN is not set: {PREFIX}URL needs an agent token")
        if self.token and not re.fullmatch(r"[\x21-\x7e]+", self.token):
            raise Misconfigured(
                f"{PREFIX}TOKEN contains characters that no token has (quotes? a line break?)"
            )
        for name in ("environment", "service", "server"):
            if not is_slug(getattr(self, name)):
                raise Misconfigured(
                    f"{PREFIX}{name.upper()} must be 1 to 64 letters, digits, '.', '_' or '-', "
                    "and begin and end with a letter or digit"
                )
        if not 100 <= self.most_subjects <= 1_000_000:
            raise Misconfigured(f"{PREFIX}MOST_SUBJECTS must be a whole number from 100 to 1000000")
        if len(self.zone) > 64:
            raise Misconfigured(f"{PREFIX}ZONE must have at most 64 characters")
        if self.otel and find_spec("opentelemetry") is None:
            raise Misconfigured(f"{PREFIX}OTEL=on needs OpenTelemetry: pip install 'fuseboard[otel]'")

    def in_this_process(self) -> Self:
        """These settings, with a name of this process if they were made before a fork."""
        if self.process_id == os.getpid():
            return self
        name = self.server.removesuffix(f"-{self.process_id}")
        return replace(self, server=_with_process_id(name), process_id=os.getpid())

    @property
    def off(self) -> bool:
        """Whether the agent asks no server and lets every call pass."""
        return self.redis_url == OFF

    def __repr__(self) -> str:
        return (
            f"AgentSettings(url={_without_password(self.url)!r}, token={'***' if self.token else ''!r}, "
            f"redis_url={_without_password(self.redis_url)!r}, environment={self.environment!r}, "
            f"service={self.service!r}, server={self.server!r}, zone={self.zone!r}, "
            f"state_dir={self.state_dir!r}, bootstrap_file={self.bootstrap_file!r})"
        )

    def __str__(self) -> str:
        """A summary for people, without secrets."""
        server = f"server {self.server}" + (f" in {self.zone}" if self.zone else "")
        if self.off:
            return f"service {self.service}, {server}, environment {self.environment}; off, limits nothing"
        gateway = f"gateway {_without_password(self.url)}" if self.url else "no gateway"
        redis = f"Redis {_without_password(self.redis_url)}"
        return f"service {self.service}, {server}, environment {self.environment}; {gateway}, {redis}"

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read ``FUSEBOARD_*``. Raises ``Misconfigured``, naming the variable, never its value."""
        values = _Variables(os.environ if environ is None else environ)
        values.refuse_near_misses()
        return cls(
            redis_url=values.text("REDIS_URL"),
            url=values.text("URL"),
            token=values.secret("TOKEN"),
            token_file=values.path("TOKEN_FILE"),
            ca_file=values.text("CA_FILE"),
            environment=values.text("ENVIRONMENT") or DEFAULT_ENVIRONMENT,
            service=values.text("SERVICE") or "default",
            server=values.text("SERVER"),
            zone=values.text("ZONE"),
            state_dir=_state_dir(values.text("STATE_DIR")),
            bootstrap_file=values.path("BOOTSTRAP_FILE"),
            otel=values.switch("OTEL"),
            most_subjects=values.number("MOST_SUBJECTS", MAX_SUBJECTS),
        )


class _Variables:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def text(self, name: str) -> str:
        return self._environ.get(PREFIX + name, "").strip()

    def path(self, name: str) -> Path | None:
        text = self.text(name)
        return Path(text) if text else None

    def number(self, name: str, usual: int) -> int:
        text = self.text(name)
        if text and not (text.isascii() and text.isdigit() and len(text) < 10):
            raise Misconfigured(f"{PREFIX}{name} must be a whole number")
        return int(text) if text else usual

    def switch(self, name: str) -> bool:
        text = self.text(name)
        if text not in ("", "on", "off"):
            raise Misconfigured(f"{PREFIX}{name} must be 'on' or 'off'")
        return text == "on"

    def secret(self, name: str) -> str:
        """``X``, or the content of the file that ``X_FILE`` names; not both."""
        value, path = self.text(name), self.text(f"{name}_FILE")
        if value and path:
            raise Misconfigured(f"{PREFIX}{name} and {PREFIX}{name}_FILE are both set: keep one")
        if not path:
            return value
        try:
            content = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Misconfigured(f"{PREFIX}{name}_FILE cannot be read: {type(error).__name__}") from None
        if not content:
            raise Misconfigured(f"{PREFIX}{name}_FILE is an empty file")
        return content

    def refuse_near_misses(self) -> None:
        """Refuse a misspelled variable. Otherwise its default would silently apply."""
        named = [name.removeprefix(PREFIX) for name in self._environ if name.startswith(PREFIX)]
        unknown = [name for name in named if name not in _OURS and name not in _THEIRS]
        if not unknown:
            return
        from difflib import get_close_matches

        for name in unknown:
            if close := get_close_matches(name, _OURS, n=1, cutoff=0.8):
                raise Misconfigured(f"{PREFIX}{name} is unknown: did you mean {PREFIX}{close[0]}?")


def _check_store_url(variable: str, url: str) -> None:
    if "+" in url.partition("://")[0]:
        try:
            StoreUrl.parse(url)
        except ValueError as error:
            raise Misconfigured(f"{variable} {error}") from None
    else:
        _check_url(variable, url, {"redis", "rediss", "unix"})


def _check_ca(file: str) -> None:
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:  # errors of ssl are OSErrors too
        why = type(error).__name__
        raise Misconfigured(f"{PREFIX}CA_FILE is not a file of certificates: {why}") from None


def _check_url(variable: str, url: str, schemes: set[str]) -> None:
    expected = " or ".join(f"{scheme}://" for scheme in sorted(schemes))
    if not url:
        # Redis alone has a value for laptops.
        off = f", or be '{OFF}' to limit nothing on a laptop or in CI" if "redis" in schemes else ""
        raise Misconfigured(f"{variable} is not set: it must begin with {expected}{off}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Misconfigured(f"{variable} is not a URL (is '#', '@' or '/' in a password escaped?)") from None
    if parts.scheme not in schemes:
        raise Misconfigured(f"{variable} must begin with {expected}")
    if parts.scheme != "unix" and (not parts.hostname or port == 0):
        raise Misconfigured(f"{variable} has no host or port")


def _without_password(url: str) -> str:
    # The passwords of Sentinels are in the query.
    parts = urlsplit(url)._replace(query="")
    if not parts.password:
        return urlunsplit(parts)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username}:***@{host}"))


def _server_name() -> str:
    """The host name (in Kubernetes that of the pod), with invalid characters replaced.

    Worker processes of one host need different names, so the process id follows. The first process of a
    container needs none: its host name is the pod's.
    """
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64].strip("._-") or "server"
    return host if os.getpid() == 1 else _with_process_id(host)


def _with_process_id(name: str) -> str:
    return f"{name[:52].rstrip('._-')}-{os.getpid()}"


def _state_dir(text: str) -> Path | None:
    if text == "off":
        return None
    if text:
        return Path(text)
    base = os.environ.get("XDG_STATE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".local" / "state") / "fuseboard"
    except RuntimeError:  # no home directory, as in some containers
        return None
