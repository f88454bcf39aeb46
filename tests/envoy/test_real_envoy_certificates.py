"""A real Envoy and a service that ask each other for certificates."""

from pathlib import Path

import pytest

from fuseboard.envoy.grpc_server import GrpcListener
from tests.envoy.authority import Authority
from tests.envoy.conftest import Answering
from tests.envoy.real_envoy import application, config_of, needs_envoy, serving
from tests.envoy.rules import ACME, ERROR, OK, PATIENTLY, daily, policy


@needs_envoy
@pytest.mark.parametrize(
    ("name", "counted"), [("envoy-1.example.com", (1, 0)), ("other.example.com", (0, 1))]
)
async def test_an_envoy_gets_decisions_if_its_certificate_has_a_known_name(
    name: str, counted: tuple[int, int], answering: Answering, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    own = authority.client(name)
    own.private_key_pem.write_to_path(tmp_path / "envoy-key.pem")
    own.cert_chain_pems[0].write_to_path(tmp_path / "envoy-cert.pem")
    listener = GrpcListener(address=("127.0.0.1", 0), tls=authority.tls)
    async with answering(policy(daily(5)), envoy_grpc=listener) as service, application() as app:
        config = config_of(
            *("--full", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
            *("--upstream", f"127.0.0.1:{app.port}", *PATIENTLY, "--breaker-domain", "off"),
            *("--grpc", f"127.0.0.1:{service.running.grpc.port}", "--server-name", "localhost"),
            *("--server-ca", str(authority.tls.client_ca), "--tls-cert", str(tmp_path / "envoy-cert.pem")),
            *("--tls-key", str(tmp_path / "envoy-key.pem")),
        )
        async with serving(config, tmp_path / "envoy") as envoy:
            assert (await envoy.http.get("/", headers=ACME)).status_code == 200
            assert await envoy.counters(OK, ERROR) == counted
        assert app.served == 1
