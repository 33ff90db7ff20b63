"""Which files of a model's folder travel from workers to gateways, and how large they may be.

They are what makes token ids of a request: tokenizer, chat templates, and the configuration that names special tokens.
Weights never do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

TOKENIZER_FILE: Final = "tokenizer.json"
TEMPLATE_FOLDER: Final = "additional_chat_templates"
MODEL_FILES: Final = (
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "config.json",
)
# The largest tokenizers in use have 20 to 35 MB.
FILE_BYTES: Final = 67_108_864
FILES: Final = 32
DIGEST: Final = re.compile("[0-9a-f]{64}")
# A plain name: what a worker calls its files becomes a path on gateways.
_TEMPLATE: Final = re.compile(rf"{TEMPLATE_FOLDER}/[A-Za-z0-9_][A-Za-z0-9._-]{{0,99}}\.jinja")


def is_model_file(name: str) -> bool:
    """Whether a file of this name, relative to the model's folder, is one that travels."""
    return name in MODEL_FILES or _TEMPLATE.fullmatch(name) is not None


def offered(files: Iterable[object]) -> dict[str, tuple[str, int]]:
    """Digest and size by name, of the files in a worker's facts that index and gateways take; at most `FILES`.

    What is malformed, too large or of another name is left out.
    """
    taken: dict[str, tuple[str, int]] = {}
    for file in files:
        if len(taken) == FILES:
            break
        match file:
            case {"name": str(name), "digest": str(digest), "size": int(size)} if name not in taken:
                if is_model_file(name) and DIGEST.fullmatch(digest) and 1 <= size <= FILE_BYTES:
                    taken[name] = digest, size
    return taken
