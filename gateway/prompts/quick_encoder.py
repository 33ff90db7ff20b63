"""quicktok, an optional tokenizer library for the patterns of a few model families (PyPI: `quicktok-v1`).

Its importer writes a vocabulary into a folder, checks it against `tokenizers`, and refuses patterns that it does not
support. It runs as a separate process, since it prints and since it is native code that reads a file.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from gateway.prompts.byte_level import ByteLevelBpe

logger = logging.getLogger(__name__)

NAME: Final = "prompts"
IMPORT_SECONDS: Final = 60.0


def build(bpe: ByteLevelBpe, declared: Mapping[str, Any]) -> Callable[[str], list[int]] | None:
    """quicktok's `encode_ordinary` for a tokenizer; None where it is not installed or does not support the tokenizer.

    `declared` is the parsed tokenizer.json that `bpe` was rebuilt from.
    """
    if find_spec("quicktok") is None or not bpe.complete or _has_other_tokens(bpe, declared):
        return None
    try:
        import quicktok  # optional
    except ImportError as error:
        logger.info("quicktok is not used: %s", error)
        return None
    with tempfile.TemporaryDirectory(prefix="warmroute-quicktok-") as folder:
        source = Path(folder) / "tokenizer.json"
        source.write_text(json.dumps(declared), encoding="utf-8")
        command = [sys.executable, "-m", "quicktok.importer", str(source), NAME, "--data-dir", folder]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=IMPORT_SECONDS, text=True)
            encode: Callable[[str], list[int]] = quicktok.Tokenizer(NAME, folder).encode_ordinary
        except subprocess.CalledProcessError as error:
            logger.info("quicktok is not used: %s", (error.stderr or "").strip().split("\n", 1)[0])
            return None
        except (OSError, RuntimeError, AttributeError, subprocess.TimeoutExpired) as error:
            logger.info("quicktok is not used: %s", error)
            return None
    return encode


def _has_other_tokens(bpe: ByteLevelBpe, declared: Mapping[str, Any]) -> bool:
    """Whether the vocabulary has tokens that are neither merged nor special: quicktok would produce them."""
    special = {token.get("content") for token in declared.get("added_tokens") or []}
    return sum(token not in special for token in declared["model"]["vocab"]) != len(bpe.ranks)
