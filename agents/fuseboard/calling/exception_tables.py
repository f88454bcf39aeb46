"""The exceptions of client libraries, by package and name.

httpx and httpx2 have the same names and different classes. ``not_sent``: the vendor never saw the request.
``maybe_sent``: it may have. The others say nothing about the vendor: ``ours`` is this pod's own shortage,
``own_use`` what this code did with an answer, and ``alert`` a mistake that a person must mend.

An answer that cannot be decoded is in no row: what is unknown counts as a failure of the vendor.
"""

from collections.abc import Iterable

#: Kinds that say nothing about the vendor.
LOCAL = frozenset({"ours", "own_use", "alert"})


def _rows(packages: Iterable[str], **kinds: str) -> dict[tuple[str, str], str]:
    return {
        (package, name): kind
        for package in packages
        for kind, names in kinds.items()
        for name in names.split()
    }


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
        ours="PoolTimeout",
        own_use="StreamError SSEError",
        alert="UnsupportedProtocol LocalProtocolError InvalidURL CookieConflict TooManyRedirects",
    ),
    **_rows(
        ("requests",),
        not_sent="ConnectTimeout",
        # A connection that was not made has urllib3's exception inside, which says so. Behind a proxy,
        # urllib3 1.26 also wraps connections that broke after the request was sent in a ProxyError.
        maybe_sent="ConnectionError Timeout ChunkedEncodingError",
        # An SSLError is a ConnectionError. If a certificate does not match, the error inside says so.
        alert="InvalidURL MissingSchema InvalidSchema InvalidHeader TooManyRedirects UnrewindableBodyError",
        # urllib3 has retried already.
        ours="RetryError",
        own_use="StreamConsumedError",
    ),
    **_rows(
        ("urllib3",),
        not_sent="NewConnectionError ConnectTimeoutError",
        maybe_sent="ProtocolError ReadTimeoutError",
    ),
    **_rows(
        ("aiohttp",),
        not_sent="ClientConnectorError ConnectionTimeoutError",
        maybe_sent="ClientConnectionError ClientPayloadError HttpProcessingError",
        alert="ClientConnectorCertificateError ServerFingerprintMismatch InvalidURL NonHttpUrlClientError"
        " TooManyRedirects",
        own_use="WSMessageTypeError",
    ),
    # A statement that the database refuses says nothing about the database. Neither does a transaction that
    # lost against another.
    **_rows(
        ("psycopg",),
        maybe_sent="OperationalError",
        own_use="IntegrityError ProgrammingError DataError NotSupportedError SerializationFailure"
        " DeadlockDetected LockNotAvailable InFailedSqlTransaction"
        # The data of one row, or one statement, is too large.
        " ProgramLimitExceeded StatementTooComplex TooManyColumns TooManyArguments",
    ),
    # A pool that gets no connection from the database raises the first one, too.
    **_rows(("psycopg_pool",), not_sent="PoolTimeout", ours="TooManyRequests PoolClosed"),
    # The error of the driver is its cause, and is looked at too.
    **_rows(
        ("sqlalchemy",),
        maybe_sent="OperationalError",
        ours="TimeoutError",
        own_use="IntegrityError ProgrammingError DataError NotSupportedError"
        " InvalidRequestError ArgumentError CompileError CircularDependencyError IdentifierError"
        " StaleDataError FlushError DetachedInstanceError ObjectDereferencedError",
    ),
    # Errors with a status are judged by it.
    **_rows(
        ("grpc",),
        maybe_sent="FutureTimeoutError",
        own_use="FutureCancelledError",
        alert="UsageError",
    ),
    **_rows(
        ("openai",),
        maybe_sent="APIConnectionError",
        ours="WebSocketQueueFullError",
        own_use="LengthFinishReasonError ContentFilterFinishReasonError",
        alert="SubjectTokenProviderError",
    ),
    **_rows(
        ("anthropic",),
        maybe_sent="APIConnectionError RetryableError",
        alert="CredentialsError WorkloadIdentityError APIWebhookValidationError",
    ),
}
