"""Certificates for tests, made with openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

from understudy.runtime.wire import Tls


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


class Authority:
    """A certificate authority in a folder, and what it signs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        openssl(folder, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "1", "-subj", "/CN=ca")
        openssl(folder, "req", *key, "-keyout", "host.key", "-out", "host.csr", "-subj", "/CN=host")
        (folder / "san").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        sign = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1", "-extfile", "san")
        openssl(folder, "x509", "-req", "-in", "host.csr", "-out", "host.pem", *sign)

    def tls(self) -> Tls:
        return Tls(*(str(self.folder / name) for name in ("host.pem", "host.key", "ca.pem")))
