"""`fuseboard envoy-config` prints what a real Envoy takes."""

from pathlib import Path

import pytest
import trustme
import yaml

from fuseboard.cli import main
from tests.envoy.real_envoy import application, config_of, needs_envoy, serving, validate

FREE = ("--full", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--unix", "/run/a socket: #1", "--tokens-header", "x-tokens", "--failure-mode-deny"),
        ("--breaker-domain", "off", "--domain", "default/gateway-1/http", "--tenant-header", "x-customer"),
        ("--grpc", "unix:/run/fuseboard/grpc.sock", "--timeout-ms", "1"),
        ("--grpc", "[::1]:7482", "--upstream", "orders.shop.svc:8000", "--listen", "[::]:0"),
        ("--unix", "/" + 53 * "é"),
        ("--grpc", "unix:/" + 106 * "a"),
        ("--grpc", "fuseboard.limits.svc:7482", "--breaker-domain", "vendors"),
    ],
    ids=" ".join,
)
@needs_envoy
def test_envoy_takes_the_whole_configuration(options: tuple[str, ...], tmp_path: Path) -> None:
    validate(config_of("--full", *options), tmp_path)


@needs_envoy
def test_envoy_takes_the_configuration_with_certificates(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate = authority.issue_cert("envoy.example.com")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    files = ("--tls-cert", "cert.pem"), ("--tls-key", "key.pem"), ("--server-ca", "ca.pem")
    options = [part for option, file in files for part in (option, str(tmp_path / file))]
    name = ("--server-name", "limits.example.com")
    validate(config_of("--full", "--grpc", "limits.example.com:7482", *name, *options), tmp_path)


@pytest.mark.parametrize(
    "options",
    [(), ("--tokens-header", "x-tokens"), ("--grpc", "127.0.0.1:7482"), ("--breaker-domain", "off")],
)
def test_the_parts_are_those_of_the_whole_configuration(options: tuple[str, ...]) -> None:
    parts = yaml.safe_load(config_of(*options))
    whole = yaml.safe_load(config_of("--full", *options))
    ingress, *bridge = whole["static_resources"]["listeners"]
    manager = ingress["filter_chains"][0]["filters"][0]["typed_config"]
    (route,) = manager["route_config"]["virtual_hosts"][0]["routes"]
    assert manager["http_filters"][:-1] == parts["http_filters"]
    assert manager.get("access_log") == parts.get("access_log")
    assert route["typed_per_filter_config"] == parts["typed_per_filter_config"]
    assert whole["static_resources"]["clusters"][1:] == parts["clusters"]
    assert bridge == parts.get("listeners", [])
    assert whole.get("bootstrap_extensions") == parts.get("bootstrap_extensions")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--timeout-ms", "0"), "--timeout-ms must be 1 to 1,000"),
        (("--timeout-ms", "1001"), "--timeout-ms must be 1 to 1,000"),
        (("--domain", "two words"), "--domain is not the name of a domain. Use 1 to 200 letters"),
        (("--unix", "a\nb"), "--unix must have 1 to 107 bytes, of printable characters"),
        (("--unix", "/" + 107 * "a"), "--unix must have 1 to 107 bytes, of printable characters"),
        (("--unix", "/" + 54 * "é"), "--unix must have 1 to 107 bytes, of printable characters"),
        (("--grpc", "unix:/" + 107 * "a"), "--grpc must have 1 to 107 bytes, of printable characters"),
        (("--server-name", 256 * "a"), "--server-name must have 1 to 255 bytes, of printable characters"),
        (("--tenant-header", "x tenant"), "--tenant-header must be the name of a header"),
        (("--tokens-header", "a)%"), "--tokens-header must be the name of a header"),
        (("--domain", "calls"), "--domain and --breaker-domain must differ"),
        (("--grpc", "localhost"), "--grpc must be HOST:PORT"),
        (("--grpc", "unix:"), "--grpc must have 1 to 107 bytes, of printable characters"),
        (("--full", "--listen", "localhost:80"), "--listen must have an IP address, not 'localhost'"),
        (("--full", "--admin", "localhost:80"), "--admin must have an IP address, not 'localhost'"),
        (("--full", "--upstream", "127.0.0.1:99999"), "--upstream must be HOST:PORT"),
        (("--tls-cert", "cert.pem"), "TLS needs --grpc"),
        (("--grpc", "127.0.0.1:1", "--tls-cert", "cert.pem"), "TLS needs --grpc"),
    ],
)
def test_a_wrong_option_is_named(
    options: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["envoy-config", *options]) == 2
    assert problem in capsys.readouterr().err


@needs_envoy
@pytest.mark.parametrize(
    ("transport", "deny", "status"),
    [("unix", False, 200), ("unix", True, 500), ("grpc", False, 200), ("grpc", True, 500)],
)
async def test_without_the_service_envoy_allows_or_refuses_as_configured(
    transport: str, deny: bool, status: int, tmp_path: Path
) -> None:
    nothing = str(tmp_path / "nothing")
    where = ("--unix", nothing) if transport == "unix" else ("--grpc", f"unix:{nothing}")
    mode = ("--failure-mode-deny",) if deny else ()
    async with application() as app:
        config = config_of(*FREE, *where, *mode, "--upstream", f"127.0.0.1:{app.port}")
        async with serving(config, tmp_path / "envoy") as envoy:
            answer = await envoy.http.get("/", headers={"x-tenant": "acme"})
            errors = await envoy.counters(
                "cluster.app.ratelimit.error", "cluster.app.ratelimit.breakers.error"
            )
    assert (answer.status_code, app.served) == (status, int(not deny))
    assert errors == ((0, 1) if deny else (1, 1))
