"""The configuration with which Envoy asks the rate limit service: two filters, a log and a cluster.

The text is YAML with comments for the person who pastes it. The tests run it with a real Envoy.
"""

from ipaddress import ip_address
from textwrap import indent

import msgspec
from msgspec import Struct

#: The part of a name that is common to everything here. A route names a filter by its name.
_NAME = "fuseboard"
#: The filter stores the metadata of an answer under this name, not under its own.
_METADATA = "envoy.filters.http.ratelimit"
_API = "type.googleapis.com/envoy.extensions"
#: The service closes an idle connection after 75 s. Envoy closes it before that, so that no request meets a
#: connection that is being closed.
_IDLE_S = 60
#: Connections of one Envoy to the unix socket, which takes 1,024 of all.
_MAX_CONNECTIONS = 256

Address = tuple[str, int]


class Tls(Struct, frozen=True, kw_only=True):
    """Files, as Envoy finds them, and the name in the certificate of the service."""

    cert: str
    key: str
    server_ca: str
    server_name: str


class Filters(Struct, frozen=True, kw_only=True):
    """The questions of the filters, and the service: by gRPC with ``grpc``, else by HTTP/1.1 on ``unix``."""

    unix: str = "/run/fuseboard/envoy.sock"
    #: An address, or the path of a unix socket.
    grpc: Address | str | None = None
    tls: Tls | None = None
    #: The domain of the limits.
    domain: str = "edge"
    #: The domain of the dependencies; ``None`` for limits only.
    breaker_domain: str | None = "calls"
    #: How long Envoy waits for a decision.
    timeout_ms: int = 20
    #: Whether Envoy refuses a request about which there is no decision.
    deny: bool = False
    #: The header of requests that names the tenant.
    tenant_header: str = "x-tenant"
    #: The header of responses with the number of tokens that were used; ``None`` for no token limits.
    tokens_header: str | None = None


class Addresses(Struct, frozen=True, kw_only=True):
    """The rest of a whole configuration. Port 0 is a free one."""

    listen: Address = ("127.0.0.1", 10000)
    upstream: Address = ("127.0.0.1", 8000)
    admin: Address = ("127.0.0.1", 9901)


def snippets(filters: Filters) -> str:
    """The parts, each with the place where it belongs."""
    parts = [
        "# In the HTTP connection manager, before the router and after authentication:",
        "http_filters:",
        _http_filters(filters),
    ]
    if filters.breaker_domain is not None:
        parts += ["# In the same HTTP connection manager:", "access_log:", _access_log(filters)]
    parts += [
        "# In each route that has limits. Fuseboard finds rules for these descriptors:",
        _route(filters),
        "# In static_resources:",
        "clusters:",
        _clusters(filters),
    ]
    if filters.grpc is None:
        parts += ["listeners:", _BRIDGE, "# At the top of the configuration:", _EXTENSION]
    return "\n".join(parts) + "\n"


def bootstrap(filters: Filters, addresses: Addresses) -> str:
    """A configuration with which Envoy runs in front of one application."""
    manager = [
        f'"@type": {_API}.filters.network.http_connection_manager.v3.HttpConnectionManager',
        "stat_prefix: ingress",
    ]
    if filters.breaker_domain is not None:
        manager += ["access_log:", _access_log(filters)]
    manager += [
        "http_filters:",
        _http_filters(filters),
        "- name: envoy.filters.http.router",
        f'  typed_config: {{"@type": {_API}.filters.http.router.v3.Router}}',
        "route_config:",
        "  virtual_hosts:",
        "  - name: all",
        '    domains: ["*"]',
        "    routes:",
        "    - match: {prefix: /}",
        "      route: {cluster: app}",
        indent(_route(filters), 6 * " "),
    ]
    return "\n".join(
        [
            f"admin: {{address: {_address(addresses.admin)}}}",
            *([_EXTENSION] if filters.grpc is None else []),
            "static_resources:",
            "  listeners:",
            "  - name: ingress",
            f"    address: {_address(addresses.listen)}",
            "    filter_chains:",
            "    - filters:",
            "      - name: envoy.filters.network.http_connection_manager",
            "        typed_config:",
            indent("\n".join(manager), 10 * " "),
            *([indent(_BRIDGE, "  ")] if filters.grpc is None else []),
            "  clusters:",
            indent(_cluster("app", [_address(addresses.upstream)], _type(addresses.upstream)), "  "),
            indent(_clusters(filters), "  "),
            "",
        ]
    )


def _http_filters(filters: Filters) -> str:
    limits = _filter(
        filters,
        "limits",
        filters.domain,
        "# For a client of gRPC: UNAVAILABLE would look like a failure of the application.",
        "rate_limited_as_resource_exhausted: true",
    )
    if filters.breaker_domain is None:
        return limits
    return "\n".join(
        [
            "# Dependencies are first: a call that a breaker refuses spends no limit of the tenant.",
            "# The stage keeps the rate_limits of the routes out of this filter.",
            _filter(
                filters,
                "breakers",
                filters.breaker_domain,
                "stage: 1",
                "stat_prefix: breakers",
                "rate_limited_status: {code: 503}",
                "disable_x_envoy_ratelimited_header: true",
            ),
            limits,
        ]
    )


def _filter(filters: Filters, name: str, domain: str, *options: str) -> str:
    return "\n".join(
        [
            f"- name: {_NAME}.{name}",
            "  typed_config:",
            f'    "@type": {_API}.filters.http.ratelimit.v3.RateLimit',
            f"    domain: {_quoted(domain)}",
            *(f"    {option}" for option in options),
            f"    # Without a decision in this time, the request is {_without_decision(filters)}.",
            f"    timeout: {_seconds(filters.timeout_ms)}",
            f"    failure_mode_deny: {'true' if filters.deny else 'false'}",
            "    rate_limit_service:",
            "      transport_api_version: V3",
            f"      grpc_service: {{envoy_grpc: {{cluster_name: {_NAME}}}}}",
        ]
    )


def _without_decision(filters: Filters) -> str:
    return "refused" if filters.deny else "allowed"


def _access_log(filters: Filters) -> str:
    """The outcomes of admitted calls. ``disable_builtin_labels`` stays off: they name the node."""
    if filters.grpc is None:
        service = [
            "http_service:",
            f"  http_uri: {{uri: http://{_NAME}/v1/logs, cluster: {_NAME}_socket, timeout: 1s}}",
        ]
    else:
        service = [f"grpc_service: {{envoy_grpc: {{cluster_name: {_NAME}}}}}"]
    domains = (filters.breaker_domain, filters.domain)
    values = {
        "permit": ",".join(f"%DYNAMIC_METADATA({_METADATA}:permit.{domain})%" for domain in domains),
        "code": "%RESPONSE_CODE%",
        "flags": "%RESPONSE_FLAGS%",
        # From the last byte of the request to the first of the answer: a slow client must not look like a
        # slow upstream.
        "duration_ms": "%COMMON_DURATION(US_TX_END:US_RX_BEG:ms)%",
        "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
        # The upstream chooses its length.
        "retry_after": "%RESP(retry-after):64%",
        # Envoy knows a status also of answers that have none: any client may say that its request is gRPC.
        "grpc_status": "%RESP(grpc-status):3% %TRAILER(grpc-status):3%",
        # A message that is too large for the application must not stop the calls of others.
        "grpc_message": "%RESP(grpc-message):64% %TRAILER(grpc-message):64%",
        "pushback_ms": "%RESP(grpc-retry-pushback-ms):16% %TRAILER(grpc-retry-pushback-ms):16%",
    }
    return "\n".join(
        [
            "# The outcome of each admitted call. The breaker opens from these.",
            "- name: envoy.access_loggers.open_telemetry",
            "  filter:",
            "    metadata_filter:",
            "      matcher:",
            f"        filter: {_METADATA}",
            "        path: [{key: permit}]",
            "        value: {present_match: true}",
            "      match_if_key_not_found: false",
            "  typed_config:",
            f'    "@type": {_API}.access_loggers.open_telemetry.v3.OpenTelemetryAccessLogConfig',
            *(f"    {line}" for line in service),
            f"    log_name: {_NAME}",
            "    # The default of 1 s would open a breaker this much later.",
            "    buffer_flush_interval: 0.1s",
            "    attributes:",
            "      values:",
            *(
                f"      - {{key: {key}, value: {{string_value: {_quoted(text)}}}}}"
                for key, text in values.items()
            ),
        ]
    )


def _route(filters: Filters) -> str:
    lines = ["typed_per_filter_config:"]
    if filters.breaker_domain is not None:
        lines += [
            f"  {_NAME}.breakers:",
            *_PER_ROUTE,
            "    - actions: [{destination_cluster: {}}]",
        ]
    header = _quoted(filters.tenant_header)
    lines += [
        f"  {_NAME}.limits:",
        *_PER_ROUTE,
        f"    - actions: [{{request_headers: {{header_name: {header}, descriptor_key: tenant}}}}]",
    ]
    if filters.tokens_header is not None:
        spent = _quoted(f"%RESP({filters.tokens_header})%")
        left = f"{{request_headers: {{header_name: {header}, descriptor_key: tokens_left}}}}"
        used = f"{{request_headers: {{header_name: {header}, descriptor_key: tokens_used}}}}"
        lines += [
            "    # Asks whether tokens are left, and spends none.",
            f"    - actions: [{left}]",
            "      hits_addend: {number: 0}",
            "    # Spends them when the response has ended. Its rule has `charge: after`.",
            f"    - actions: [{used}]",
            "      apply_on_stream_done: true",
            f"      hits_addend: {{format: {spent}}}",
        ]
    return "\n".join(lines)


_PER_ROUTE = (
    f'    "@type": {_API}.filters.http.ratelimit.v3.RateLimitPerRoute',
    "    rate_limits:",
)


def _clusters(filters: Filters) -> str:
    if filters.grpc is not None:
        return _grpc_cluster(filters.grpc, filters.tls)
    internal = f"{{envoy_internal_address: {{server_listener_name: {_NAME}_bridge}}}}"
    return "\n".join(
        [
            "# gRPC, as the filters send it, to the listener below, in this process.",
            _cluster(_NAME, [internal], "STATIC", _HTTP2, _INTERNAL),
            "# HTTP/1.1 to the rate limit service.",
            _cluster(f"{_NAME}_socket", [_pipe(filters.unix)], "STATIC", _HTTP1, _BOUNDS),
        ]
    )


def _grpc_cluster(grpc: Address | str, tls: Tls | None) -> str:
    secured = [] if tls is None else [_mutual_tls(tls)]
    if isinstance(grpc, str):
        return _cluster(_NAME, [_pipe(grpc)], "STATIC", _HTTP2, *secured)
    kind = _type(grpc)
    if kind == "STRICT_DNS":
        # Each connection has one address. A thread of Envoy has one connection for its filters and its log,
        # so outcomes reach the process that gave the permit.
        kind = "LOGICAL_DNS"
    return _cluster(_NAME, [_address(grpc)], kind, _HTTP2, *secured)


def _cluster(name: str, addresses: list[str], kind: str, *more: str) -> str:
    return "\n".join(
        [
            f"- name: {name}",
            f"  type: {kind}",
            *(indent(part, "  ") for part in more),
            "  load_assignment:",
            f"    cluster_name: {name}",
            "    endpoints:",
            "    - lb_endpoints:",
            *(f"      - endpoint: {{address: {address}}}" for address in addresses),
        ]
    )


def _mutual_tls(tls: Tls) -> str:
    name = _quoted(tls.server_name)
    return "\n".join(
        [
            "transport_socket:",
            "  name: envoy.transport_sockets.tls",
            "  typed_config:",
            f'    "@type": {_API}.transport_sockets.tls.v3.UpstreamTlsContext',
            f"    sni: {name}",
            "    common_tls_context:",
            "      tls_certificates:",
            f"      - certificate_chain: {{filename: {_quoted(tls.cert)}}}",
            f"        private_key: {{filename: {_quoted(tls.key)}}}",
            "      validation_context:",
            f"        trusted_ca: {{filename: {_quoted(tls.server_ca)}}}",
            "        match_typed_subject_alt_names:",
            f"        - {{san_type: DNS, matcher: {{exact: {name}}}}}",
        ]
    )


_HTTP2 = f"""\
typed_extension_protocol_options:
  envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
    "@type": {_API}.upstreams.http.v3.HttpProtocolOptions
    explicit_http_config: {{http2_protocol_options: {{}}}}"""

_HTTP1 = f"""\
typed_extension_protocol_options:
  envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
    "@type": {_API}.upstreams.http.v3.HttpProtocolOptions
    common_http_protocol_options: {{idle_timeout: {_IDLE_S}s}}
    explicit_http_config: {{http_protocol_options: {{}}}}"""

_BOUNDS = f"circuit_breakers: {{thresholds: [{{max_connections: {_MAX_CONNECTIONS}}}]}}"

_INTERNAL = f"""\
transport_socket:
  name: envoy.transport_sockets.internal_upstream
  typed_config:
    "@type": {_API}.transport_sockets.internal_upstream.v3.InternalUpstreamTransport
    transport_socket:
      name: envoy.transport_sockets.raw_buffer
      typed_config: {{"@type": {_API}.transport_sockets.raw_buffer.v3.RawBuffer}}"""

_EXTENSION = f"""\
bootstrap_extensions:
- name: envoy.bootstrap.internal_listener
  typed_config: {{"@type": {_API}.bootstrap.internal_listener.v3.InternalListener}}"""

_BRIDGE = f"""\
# Makes HTTP/1.1 of gRPC. It has no address: only the cluster above reaches it.
- name: {_NAME}_bridge
  internal_listener: {{}}
  filter_chains:
  - filters:
    - name: envoy.filters.network.http_connection_manager
      typed_config:
        "@type": {_API}.filters.network.http_connection_manager.v3.HttpConnectionManager
        stat_prefix: {_NAME}_bridge
        codec_type: HTTP2
        generate_request_id: false
        # The request may have the trace of a client, who would escape its limits with a long one.
        max_request_headers_kb: 96
        http_filters:
        - name: envoy.filters.http.grpc_http1_reverse_bridge
          typed_config:
            "@type": {_API}.filters.http.grpc_http1_reverse_bridge.v3.FilterConfig
            content_type: application/x-protobuf
            withhold_grpc_frames: true
        - name: envoy.filters.http.router
          typed_config:
            "@type": {_API}.filters.http.router.v3.Router
            suppress_envoy_headers: true
        route_config:
          virtual_hosts:
          - name: {_NAME}
            domains: ["*"]
            routes:
            - match: {{prefix: /}}
              # The filters stop waiting before that.
              route: {{cluster: {_NAME}_socket, timeout: 1s}}"""


def _address(address: Address) -> str:
    host, port = address
    return f"{{socket_address: {{address: {_quoted(host)}, port_value: {port}}}}}"


def _pipe(path: str) -> str:
    return f"{{pipe: {{path: {_quoted(path)}}}}}"


def _type(address: Address) -> str:
    """A name is looked up again and again: replicas come and go."""
    try:
        ip_address(address[0])
    except ValueError:
        return "STRICT_DNS"
    return "STATIC"


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.3f}s"


def _quoted(text: str) -> str:
    """A JSON string is a string of YAML."""
    return msgspec.json.encode(text).decode()
