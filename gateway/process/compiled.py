"""Whether the hot modules run compiled, and if so, that they are what the sources say.

They are Python and run as such; `make compile` (`setup.py`) makes C extensions of them, which Python prefers to the
sources beside them: an edit after that would change nothing, silently. So the build notes digests of what it compiled,
and a gateway that finds other sources does not start.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

from gateway.http import exchange
from warmroute.process.lifecycle import StartupError

ROOT: Final = Path(__file__).parents[2]
_REMEDY: Final = "run `make compile` again, or `make pure` to run the sources"
DIGESTS: Final = Path(__file__).parents[1] / "compiled.json"


def is_compiled() -> bool:
    """Whether this process runs the compiled modules. False too where they are for another Python than this one."""
    return not str(exchange.__file__).endswith(".py")


def description() -> str:
    """For people: in `/readyz` and the log."""
    return "compiled" if is_compiled() else "pure Python"


def check(root: Path = ROOT, digests: Path = DIGESTS) -> None:
    """Raises StartupError where a source has changed since it was compiled. A source that is not there is no error."""
    if not is_compiled():
        return
    try:
        noted: dict[str, str] = json.loads(digests.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StartupError(f"{digests} is missing, so compiling has failed half-way; {_REMEDY}") from error
    for path, digest in noted.items():
        source = root / path
        if source.is_file() and hashlib.sha256(source.read_bytes()).hexdigest() != digest:
            raise StartupError(f"{path} has changed since it was compiled; {_REMEDY}")
