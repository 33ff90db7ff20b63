"""Certificates of the tests' own authorities, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def openssl(*arguments: object) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.fail("openssl is missing. Install it with: sudo apt-get install -y openssl")
    subprocess.run([program, *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """A CA in a folder, and what it signs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.ca = folder / "ca.pem"
        self._key("ca")
        openssl("req", "-x509", "-new", "-key", folder / "ca.key", "-subj", "/CN=test ca", "-days", 2, "-out", self.ca)

    def _key(self, name: str) -> Path:
        path = self.folder / f"{name}.key"
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)
        return path

    def sign(self, name: str, host: str = "indexer.test") -> tuple[Path, Path]:
        """Certificate and key for a host."""
        key, request, cert = self._key(name), self.folder / f"{name}.csr", self.folder / f"{name}.pem"
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName=DNS:{host}\n")
        openssl("req", "-new", "-key", key, "-subj", f"/CN={host}", "-out", request)
        openssl(
            *("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.folder / "ca.key", "-days", 2),
            *("-CAcreateserial", "-extfile", extensions, "-out", cert),
        )
        return cert, key
