"""When certificates of the listener for Envoy end, and what happens when they are replaced."""

import re
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fuseboard.envoy.certificates import Certificates
from fuseboard.envoy.grpc_server import GrpcListener, serving
from fuseboard.envoy.service import SHOULD_RATE_LIMIT
from fuseboard.errors import Misconfigured
from tests.envoy.authority import Authority, Volume
from tests.envoy.conftest import Answering, policy_of
from tests.envoy.messages import descriptor, request
from tests.envoy.test_envoy_grpc import FILE, LOOPBACK, MOST, ask, code_of, echoing, secure
from tests.waiting import PATIENCE_S

ENVOY = "envoy-1.example.com"
DAY = timedelta(days=1)
NOW = datetime.now(UTC).replace(microsecond=0)


def written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def validity_of(certificates: Certificates) -> dict[str, tuple[float, float]]:
    return {one.option: (one.begins, one.ends) for one in certificates.validity}


def authority_of(issuer: str, begins: datetime, ends: datetime) -> bytes:
    """A certificate in PEM that has signed itself."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)] * 3)
    return _signed(name, begins, ends, x509.BasicConstraints(ca=True, path_length=None))[1]


def signed_by_itself(host: str) -> tuple[bytes, bytes]:
    """The key and the certificate of a host without an authority, in PEM."""
    return _signed(x509.Name([]), NOW - DAY, NOW + DAY, x509.SubjectAlternativeName([x509.DNSName(host)]))


def _signed(
    name: x509.Name,
    begins: datetime,
    ends: datetime,
    extension: x509.ExtensionType,
    key: ec.EllipticCurvePrivateKey | None = None,
) -> tuple[bytes, bytes]:
    key = key or ec.generate_private_key(ec.SECP256R1())
    cert = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(extension, critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private, cert.public_bytes(Encoding.PEM)


@pytest.mark.parametrize("issuer", ["a", "b" * 64])
@pytest.mark.parametrize(
    ("begins", "ends"),
    [
        (datetime(1950, 1, 1, tzinfo=UTC), datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(2050, 1, 1, tzinfo=UTC)),
        (NOW - DAY, datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_dates_are_those_that_another_library_reads(
    issuer: str, begins: datetime, ends: datetime, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    authority.tls.client_ca.write_bytes(b"The authority:\n" + authority_of(issuer, begins, ends))
    found = validity_of(Certificates(authority.tls))
    own = x509.load_pem_x509_certificate(authority.tls.cert.read_bytes())
    assert found == {
        "--tls-cert": (own.not_valid_before_utc.timestamp(), own.not_valid_after_utc.timestamp()),
        "--client-ca": (begins.timestamp(), ends.timestamp()),
    }


@pytest.mark.parametrize(
    ("begins", "ends", "own", "authorities"),
    [
        (NOW - 90 * DAY, NOW - DAY, "certificate has expired", f"expired at {written(NOW - DAY)}: renew it"),
        (
            NOW + DAY,
            NOW + 90 * DAY,
            "certificate is not yet valid",
            f"is not valid before {written(NOW + DAY)}: wait, or set the clock",
        ),
    ],
)
async def test_a_certificate_that_is_not_valid_is_named_before_the_service_binds(
    begins: datetime, ends: datetime, own: str, authorities: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    authority.issue(not_before=begins, not_after=ends)
    listener = GrpcListener(address=LOOPBACK, tls=authority.tls)
    named = f"--tls-cert {authority.tls.cert} cannot be used: {own}: pass one that clients take now"
    with pytest.raises(Misconfigured, match=f"^{re.escape(named)}$"):
        async with serving({}, listener, head_bytes=MOST, body_bytes=MOST):
            pass
    authority.issue()
    authority.tls.client_ca.write_bytes(authority_of("ca", begins, ends))
    named = f"--client-ca {authority.tls.client_ca} {authorities}"
    with pytest.raises(Misconfigured, match=f"^{re.escape(named)}$"):
        Certificates(authority.tls)


async def test_a_client_that_signed_its_own_certificate_is_taken(tmp_path: Path) -> None:
    """Such a certificate is no authority, and ``ssl`` gives no dates of it."""
    authority = Authority(tmp_path)
    key, cert = signed_by_itself(ENVOY)
    authority.tls.client_ca.write_bytes(cert)
    assert list(validity_of(Certificates(authority.tls))) == ["--tls-cert"]
    async with echoing(GrpcListener(address=LOOPBACK, tls=authority.tls)) as running:
        credentials = grpc.ssl_channel_credentials(authority.ca.cert_pem.bytes(), key, cert)
        async with grpc.aio.secure_channel(f"localhost:{running.port}", credentials) as channel:
            assert await ask(channel, b"hello") == b"<hello>"


def test_a_certificate_for_clients_only_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    usage = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH])
    key, cert = _signed(x509.Name([]), NOW - DAY, NOW + DAY, usage)
    authority.tls.key.write_bytes(key)
    authority.tls.cert.write_bytes(cert)
    with pytest.raises(Misconfigured, match=r"--tls-cert \S+ cannot be used: .*purpose"):
        Certificates(authority.tls)


def test_a_renewal_with_a_key_that_no_client_takes_is_refused_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    certificates = Certificates(authority.tls)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    rare = ec.generate_private_key(ec.SECP224R1())
    key, cert = _signed(x509.Name([]), NOW - DAY, NOW + DAY, names, rare)
    authority.tls.key.write_bytes(key)
    authority.tls.cert.write_bytes(cert)
    for _ in range(2):
        certificates.renew()
    assert certificates.refused == 1
    assert caplog.text.count(f"--tls-cert {authority.tls.cert} cannot be used: ") == 1


def test_a_system_without_tls_1_3_reads_the_dates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrap_bio = ssl.SSLContext.wrap_bio

    def older(context: ssl.SSLContext, *given: Any, **more: Any) -> ssl.SSLObject:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        return wrap_bio(context, *given, **more)

    authority = Authority(tmp_path)
    authority.issue(not_before=NOW - DAY, not_after=NOW + DAY)
    monkeypatch.setattr(ssl.SSLContext, "wrap_bio", older)
    found = validity_of(Certificates(authority.tls))
    assert found["--tls-cert"] == ((NOW - DAY).timestamp(), (NOW + DAY).timestamp())


def test_an_authority_that_has_ended_may_stay_beside_its_successor(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ends = NOW + 400 * DAY
    those = [
        authority_of("old", NOW - 90 * DAY, NOW - DAY),
        authority_of("new", NOW - DAY, ends),
        authority_of("next", NOW + DAY, ends),
    ]
    for several in (those, those[::-1]):
        authority.tls.client_ca.write_bytes(b"".join(several))
        found = validity_of(Certificates(authority.tls))
        assert found["--client-ca"] == ((NOW - 90 * DAY).timestamp(), ends.timestamp())


@pytest.mark.parametrize(("life", "warned_before"), [(90 * DAY, 21 * DAY), (DAY, DAY / 4)])
def test_a_certificate_is_logged_once_near_its_end_and_once_after_it(
    life: timedelta, warned_before: timedelta, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    begins, ends = NOW, NOW + life
    authority.issue(not_before=begins, not_after=ends)
    clock = (ends - warned_before - timedelta(seconds=1)).timestamp()
    certificates = Certificates(authority.tls, now=lambda: clock)
    assert caplog.messages == []
    clock = (ends - warned_before + timedelta(seconds=1)).timestamp()
    named = f"envoy.certificate: --tls-cert {authority.tls.cert}"
    for _ in range(3):
        certificates.renew()
        assert caplog.messages == [f"{named} expires at {written(ends)}: renew it"]
    caplog.clear()
    clock = (ends + timedelta(seconds=1)).timestamp()
    for _ in range(3):
        certificates.renew()
        assert caplog.messages == [f"{named} expired at {written(ends)}: renew it"]
    assert certificates.refused == 0


def test_dates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """OpenSSL reads dates only when it verifies a certificate."""
    authority = Authority(tmp_path)
    text = authority_of("ca", NOW - DAY, NOW + DAY).decode()
    der = bytearray(ssl.PEM_cert_to_DER_cert(text))
    at = der.index((NOW + DAY).strftime("%y%m%d%H%M%SZ").encode())
    der[at : at + 2] = b"xx"
    authority.tls.client_ca.write_text(ssl.DER_cert_to_PEM_cert(bytes(der)))
    with pytest.raises(Misconfigured, match=r"--client-ca \S+ca\.pem has no"):
        Certificates(authority.tls)


def test_files_that_are_replaced_meanwhile_are_no_refused_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (Authority(tmp_path / name) for name in ("first", "second", "third"))
    volume = Volume(tmp_path / "volume", first.tls)
    certificates = Certificates(volume.tls)
    load_cert_chain = ssl.SSLContext.load_cert_chain

    def replaced(*given: Any, **more: Any) -> None:
        volume.show(third.tls)
        load_cert_chain(*given, **more)

    volume.show(second.tls)
    with monkeypatch.context() as patched:
        patched.setattr(ssl.SSLContext, "load_cert_chain", replaced)
        certificates.renew()
    assert (certificates.pem.cert, certificates.refused) == (first.tls.cert.read_bytes(), 0)
    certificates.renew()
    assert (certificates.pem.cert, certificates.refused) == (third.tls.cert.read_bytes(), 0)


async def test_a_volume_renews_certificates_without_a_restart(
    answering: Answering, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, wrong, second = (Authority(tmp_path / name) for name in ("first", "wrong", "second"))
    ends = NOW + 90 * DAY
    first.issue(not_before=NOW - DAY, not_after=ends)
    wrong.issue(not_before=NOW - 90 * DAY, not_after=NOW - DAY)
    second.issue(not_before=NOW - DAY, not_after=ends + DAY)
    volume = Volume(tmp_path / "volume", first.tls)
    listener = GrpcListener(address=LOOPBACK, tls=volume.tls)
    body = request(descriptor(("free", "x")))
    async with answering(policy_of(FILE), envoy_grpc=listener, probes=LOOPBACK) as envoy:
        port = envoy.running.grpc.port

        async def figures() -> tuple[float, int, int]:
            """When the certificate ends, renewals that were refused, and strangers."""
            url = f"http://127.0.0.1:{envoy.running.probes_port}/metrics"
            async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as probes:
                text = (await probes.get(url)).text
            found = dict(re.findall(r"^fuseboard_envoy_(.+) ([\d.]+)$", text, re.MULTILINE))
            labels = 'server="edge-1",option="tls-cert"'
            expiry = found[f"certificate_expiry_timestamp_seconds{{{labels}}}"]
            refused, strangers = (
                int(found[f'{name}_total{{server="edge-1"}}']) for name in ("renewals_refused", "strangers")
            )
            return float(expiry), refused, strangers

        async with secure(first, port, ENVOY) as kept:
            assert await ask(kept, body)
            assert await figures() == (ends.timestamp(), 0, 0)
            volume.show(wrong.tls)
            for _ in range(2):
                async with secure(first, port, ENVOY) as channel:
                    assert await ask(channel, body)
            assert await figures() == (ends.timestamp(), 1, 0)
            assert caplog.text.count("envoy.certificates: the earlier ones are used") == 1
            volume.show(second.tls)
            # A scrape finds the files before a handshake does.
            assert await figures() == ((ends + DAY).timestamp(), 1, 0)
            async with secure(second, port, ENVOY) as channel:
                assert await ask(channel, body)
            async with secure(second, port, "other.example.com") as channel:
                assert await code_of(channel, body) is grpc.StatusCode.PERMISSION_DENIED
            assert await figures() == ((ends + DAY).timestamp(), 1, 1)
            async with secure(first, port, ENVOY, trusts=second) as channel:
                with pytest.raises(grpc.aio.AioRpcError):
                    await channel.unary_unary(SHOULD_RATE_LIMIT)(body, timeout=PATIENCE_S)
            # A connection that is open goes on.
            assert await ask(kept, body)
