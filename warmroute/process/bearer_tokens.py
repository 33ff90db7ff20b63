"""Shared tokens, shown as `authorization: Bearer ...`: the index's gRPC service, and a gateway's admin port.

A token file is read again when it changes and may hold several tokens, the old and the new one among them: put the new
one where it is asked for first, then where it is shown, then take the old one away.
"""

from __future__ import annotations

import hmac
import logging
from pathlib import Path
from typing import Final

from warmroute.process.watched_files import SecurityError, file_stamp, read_file

logger = logging.getLogger(__name__)

TOKEN_BYTES: Final = (8, 4096)
TOKENS_A_FILE: Final = 16


class Tokens:
    """The tokens in force; the file is read again when it changes."""

    def __init__(self, field: str, token: str | None, file: Path | None) -> None:
        """`field`: the setting of the token itself, such as grpc.token; that of the file ends in _file.

        Raises SecurityError.
        """
        if token is not None and file is not None:
            raise SecurityError(f"{field}_file: {str(file)!r} is refused: {field} is set too; keep one of them")
        self.configured = token is not None or file is not None
        self._field = field
        self._file = file
        self._warned = False
        self._stamp: object = None
        self._known: tuple[bytes, ...] = ()
        if token is not None:
            self._known = (_check_token(field, token),)
        self.read()

    def read(self) -> tuple[bytes, ...]:
        """Raises SecurityError once for a file that cannot be used; the tokens known before stay in force."""
        if self._file is not None and (stamp := file_stamp(self._file)) != self._stamp:
            self._stamp = stamp  # also of a file that is refused: it is complained of once
            field = f"{self._field}_file"
            text = read_file(field, self._file).decode("utf-8", errors="replace")
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            if not 1 <= len(lines) <= TOKENS_A_FILE:
                raise SecurityError(
                    f"{field}: {str(self._file)!r} is refused: it has {len(lines)} tokens; "
                    f"put one on a line, at most {TOKENS_A_FILE}"
                )
            self._known = tuple(_check_token(field, line) for line in lines)
        return self._known

    def match(self, authorization: str | bytes | None) -> bool:
        """Whether this value of `authorization` carries one of them."""
        try:
            known = self.read()
        except SecurityError as error:
            logger.warning("the tokens in use stay: %s", error)
            known = self._known
        given = authorization.encode(errors="replace") if isinstance(authorization, str) else authorization or b""
        scheme, _, token = given.partition(b" ")
        # No early end: the time must not tell which token was nearly right.
        matches = [hmac.compare_digest(token.strip(), one) for one in known]
        return scheme.lower() == b"bearer" and any(matches)

    def warn_once(self, target: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "the token goes to %s without TLS: whoever sees the traffic has it; set grpc.tls_ca_file", target
            )


def _check_token(field: str, token: str) -> bytes:
    least, most = TOKEN_BYTES
    if not least <= len(token) <= most or not token.isascii() or not token.isprintable() or " " in token:
        raise SecurityError(
            f"{field}: the token (not shown) is refused: use {least} to {most} printable ASCII characters without "
            "spaces, such as the output of: openssl rand -hex 32"
        )
    return token.encode()
