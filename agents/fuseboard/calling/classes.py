"""The exceptions of client libraries, by package and name.

httpx and httpx2 have the same names and different classes. ``not_sent``: the vendor never saw the request.
``maybe_sent``: it may have. The others say nothing about the vendor: ``ours`` is this pod's own shortage,
and ``alert`` a mistake that a person must mend.
"""

from collections.abc import Iterable

#: Kinds that say nothing about the vendor, and whether a person should see them.
LOCAL = {"ours": False, "alert": True}


def _rows(packages: Iterable[str], **kinds: str) -> dict[tuple[str, str], str]:
    return {
        (package, name): kind
        for package in packages
        for kind, names in kinds.items()
        for name in names.split()
    }


#: Timeouts of client libraries. Their subclasses are timeouts too.
TIMEOUTS = frozenset(
    {
        ("builtins", "TimeoutError"),
        ("httpx", "TimeoutException"),
        ("httpx2", "TimeoutException"),
        ("requests", "Timeout"),
        ("urllib3", "TimeoutError"),
        ("aiohttp", "ServerTimeoutError"),
        ("openai", "APITimeoutError"),
        ("anthropic", "APITimeoutError"),
    }
)

CLASSES: dict[tuple[str, str], str] = {
    **_rows(
        ("builtins",),
        not_sent="ConnectionRefusedError",
        # asyncio's and socket's timeouts are the builtin one.
        maybe_sent="ConnectionError TimeoutError",
    ),
    **_rows(("ssl",), maybe_sent="SSLEOFError", alert="SSLCertVerificationError"),
    **_rows(
        ("httpx", "httpx2"),
        not_sent="ConnectError ConnectTimeout ProxyError",
        maybe_sent="TimeoutException NetworkError RemoteProtocolError",
        ours="PoolTimeout StreamError SSEError",
        alert="UnsupportedProtocol LocalProtocolError InvalidURL CookieConflict TooManyRedirects"
        " DecodingError",
    ),
    **_rows(
        ("requests",),
        not_sent="ConnectTimeout ProxyError",
        # A connection that was not made has urllib3's exception inside, which says so.
        maybe_sent="ConnectionError Timeout ChunkedEncodingError",
        # An SSLError is a ConnectionError. If a certificate does not match, the error inside says so.
        alert="InvalidURL MissingSchema InvalidSchema InvalidHeader TooManyRedirects JSONDecodeError"
        " UnrewindableBodyError ContentDecodingError",
        # urllib3 has retried already.
        ours="RetryError StreamConsumedError",
    ),
    **_rows(
        ("urllib3",),
        not_sent="NewConnectionError ConnectTimeoutError",
        maybe_sent="ProtocolError ReadTimeoutError",
    ),
    **_rows(
        ("openai",),
        maybe_sent="APIConnectionError",
        ours="LengthFinishReasonError ContentFilterFinishReasonError WebSocketQueueFullError",
        alert="SubjectTokenProviderError",
    ),
    **_rows(
        ("anthropic",),
        maybe_sent="APIConnectionError RetryableError",
        alert="CredentialsError WorkloadIdentityError APIWebhookValidationError",
    ),
}


def is_timeout(error: BaseException) -> bool:
    """Whether an exception says that an answer did not come in time, whatever the library."""
    return any((kind.__module__.partition(".")[0], kind.__name__) in TIMEOUTS for kind in type(error).__mro__)
