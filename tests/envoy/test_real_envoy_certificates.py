"""A real Envoy and a service that ask each other for certificates."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from fuseboard.envoy.certificates import MutualTls
from fuseboard.envoy.grpc_server import GrpcListener
from tests.envoy.authority import Authority, Volume
from tests.envoy.conftest import Answering
from tests.envoy.real_envoy import application, config_of, needs_envoy, serving
from tests.envoy.rules import ACME, ERROR, OK, PATIENTLY, daily, policy
from tests.envoy.samples import sample
from tests.waiting import eventually

LOOPBACK = ("127.0.0.1", 0)


def config_with(files: MutualTls, service: int, upstream: int) -> str:
    """The configuration of an Envoy with these files."""
    return config_of(
        *("--full", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
        *("--upstream", f"127.0.0.1:{upstream}", *PATIENTLY, "--breaker-domain", "off"),
        *("--grpc", f"127.0.0.1:{service}", "--server-name", "localhost"),
        *("--server-ca", str(files.client_ca), "--tls-cert", str(files.cert), "--tls-key", str(files.key)),
    )


@needs_envoy
@pytest.mark.parametrize(
    ("name", "counted"), [("envoy-1.example.com", (1, 0)), ("other.example.com", (0, 1))]
)
async def test_an_envoy_gets_decisions_if_its_certificate_has_a_known_name(
    name: str, counted: tuple[int, int], answering: Answering, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "service")
    files = authority.files_of_client(tmp_path / "files", name)
    listener = GrpcListener(address=LOOPBACK, tls=authority.tls)
    async with answering(policy(daily(5)), envoy_grpc=listener) as service, application() as app:
        config = config_with(files, service.running.grpc.port, app.port)
        async with serving(config, tmp_path / "envoy") as envoy:
            assert (await envoy.http.get("/", headers=ACME)).status_code == 200
            assert await envoy.counters(OK, ERROR) == counted
        assert app.served == 1


def watching(config: str, volume: Volume, folder: Path) -> str:
    """The configuration as the page changes it: its certificates come from SDS."""
    places = {
        "/tls/tls.crt": volume.tls.cert,
        "/tls/tls.key": volume.tls.key,
        "/tls/ca.crt": volume.tls.client_ca,
        "path: /tls}": f"path: {volume.folder}}}",
        "/etc/envoy": folder,
        "limits.shop.svc": "localhost",
    }

    def placed(begins: str) -> str:
        text = sample(begins)
        for named, place in places.items():
            text = text.replace(named, str(place))
        return text

    for name in ("certificate", "authority"):
        (folder / f"{name}.yaml").write_text(placed(f"# /etc/envoy/{name}.yaml"))
    read: dict[str, Any] = yaml.safe_load(config)
    (tls,) = (
        cluster["transport_socket"]["typed_config"]
        for cluster in read["static_resources"]["clusters"]
        if cluster["name"] == "fuseboard"
    )
    tls["common_tls_context"] = yaml.safe_load(placed("# In common_tls_context:"))
    return yaml.safe_dump(read)


@needs_envoy
async def test_an_envoy_and_its_service_renew_their_certificates_without_a_restart(
    answering: Answering, tmp_path: Path
) -> None:
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second")
    of_service = Volume(tmp_path / "of-service", first.tls)
    of_envoy = Volume(
        tmp_path / "of-envoy", first.files_of_client(tmp_path / "envoy-first", "other.example.com")
    )
    listener = GrpcListener(address=LOOPBACK, tls=of_service.tls, connection_age_s=1.0)
    async with answering(policy(daily(1_000)), envoy_grpc=listener) as service, application() as app:
        config = config_with(of_envoy.tls, service.running.grpc.port, app.port)
        config = watching(config, of_envoy, tmp_path)
        async with serving(config, tmp_path / "envoy", node="edge-1") as envoy:

            async def counted() -> tuple[int, ...]:
                assert (await envoy.http.get("/", headers=ACME)).status_code == 200
                return await envoy.counters(OK, ERROR)

            # The service does not know the name in the first certificate.
            await eventually(counted, accept=lambda count: count[1] > 0 and service.running.grpc.strangers)
            assert (await envoy.counters(OK)) == (0,)
            of_service.show(second.tls)
            of_envoy.show(second.files_of_client(tmp_path / "envoy-second", "envoy-1.example.com"))
            await eventually(counted, accept=lambda count: count[0] > 0)
