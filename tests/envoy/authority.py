"""An authority that signs the certificates of a sidecar and of Envoys."""

from datetime import datetime
from pathlib import Path
from typing import Any

import trustme

from fuseboard.envoy.certificates import MutualTls


class Authority:
    """An authority, and the files of a service."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.tls = MutualTls(
            cert=folder / "cert.pem",
            key=folder / "key.pem",
            client_ca=folder / "ca.pem",
            client_sans=("envoy-*.example.com", "spiffe://mesh/ns/*/sa/gateway"),
        )
        self.renew()

    def renew(self) -> None:
        """All certificates of before are void."""
        self.ca = trustme.CA()
        self.ca.cert_pem.write_to_path(self.tls.client_ca)
        self.issue()

    def issue(self, **dates: datetime) -> None:
        """A certificate of the service: valid now, or from ``not_before`` to ``not_after``."""
        own = self.ca.issue_cert("localhost", **dates)
        own.private_key_pem.write_to_path(self.tls.key)
        own.cert_chain_pems[0].write_to_path(self.tls.cert)

    def client(self, *names: str) -> Any:
        """A certificate of an Envoy."""
        return self.ca.issue_cert(*names)
