"""The section `grpc`, which all parts share."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from warmroute.config.secret import Secret
from warmroute.config.setting_types import Section


class GrpcConfig(Section):
    """Who may talk to the indexer: TLS files and the shared token, the same section for the indexer and its clients.

    Files are read again when they change, so that certificates can be rotated.
    """

    tls_ca_file: Path | None = Field(
        None, description="PEM file of the CA that signs the other side; on the indexer it makes clients show theirs"
    )
    tls_cert_file: Path | None = Field(None, description="PEM file of this side's certificate chain")
    tls_key_file: Path | None = Field(None, description="PEM file of its private key, not encrypted")
    tls_server_name: str = Field(
        "", description="name in the indexer's certificate; the host that a client was configured with when left out"
    )
    token: Secret = Field(
        None, repr=False, description="shared token; better given as a file, since others see flags and variables"
    )
    token_file: Path | None = Field(
        None, description="file with the token; clients send its first line, the indexer takes any line"
    )
