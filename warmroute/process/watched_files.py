"""Files of secrets and certificates: read with an error that names setting and remedy, and again when they change."""

from __future__ import annotations

from pathlib import Path

from warmroute.process.lifecycle import StartupError


class SecurityError(StartupError):
    """Certificates or tokens cannot be used; the message names the setting, the value and the remedy."""


def read_file(field: str, path: Path) -> bytes:
    """Raises SecurityError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SecurityError(
            f"{field}: {str(path)!r} cannot be read: {error.strerror}; give a file that this process may read"
        ) from error


def file_stamp(path: Path | None) -> object:
    """Changes with the file, a link's target included."""
    try:
        status = path.stat() if path is not None else None
    except OSError:
        return "missing"
    return status and (status.st_mtime_ns, status.st_ino, status.st_size)
