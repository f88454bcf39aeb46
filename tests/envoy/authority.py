"""An authority that signs the certificates of a sidecar and of Envoys, and where their files are."""

import os
from datetime import datetime
from pathlib import Path
from typing import Any

import trustme

from fuseboard.envoy.certificates import MutualTls


def _files(folder: Path) -> MutualTls:
    return MutualTls(
        cert=folder / "cert.pem",
        key=folder / "key.pem",
        client_ca=folder / "ca.pem",
        client_sans=("envoy-*.example.com", "spiffe://mesh/ns/*/sa/gateway"),
    )


class Authority:
    """An authority, and the files of a service."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.tls = _files(folder)
        self.renew()

    def renew(self) -> None:
        """All certificates of before are void."""
        self.ca = trustme.CA()
        self.ca.cert_pem.write_to_path(self.tls.client_ca)
        self.issue()

    def issue(self, **dates: datetime) -> None:
        """A certificate of the service: valid now, or from ``not_before`` to ``not_after``."""
        _write(self.ca.issue_cert("localhost", **dates), self.tls)

    def client(self, *names: str) -> Any:
        """A certificate of an Envoy."""
        return self.ca.issue_cert(*names)

    def files_of_client(self, folder: Path, *names: str) -> MutualTls:
        """The files of an Envoy."""
        folder.mkdir(exist_ok=True)
        files = _files(folder)
        _write(self.client(*names), files)
        self.ca.cert_pem.write_to_path(files.client_ca)
        return files


def _write(issued: Any, files: MutualTls) -> None:
    issued.private_key_pem.write_to_path(files.key)
    issued.cert_chain_pems[0].write_to_path(files.cert)


class Volume:
    """A volume of Kubernetes: one link replaces all files at once."""

    def __init__(self, folder: Path, content: MutualTls) -> None:
        folder.mkdir()
        self.folder, self.tls = folder, _files(folder)
        for file in (self.tls.cert, self.tls.key, self.tls.client_ca):
            file.symlink_to(Path("..data") / file.name)
        self.show(content)

    def show(self, content: MutualTls) -> None:
        link = self.folder / "..data_tmp"
        link.symlink_to(content.cert.parent)
        os.replace(link, self.folder / "..data")
