from __future__ import annotations

import lzma
import os
from pathlib import Path

import pytest

from worker.model_cache import ensure_model


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The built-in model's folder; `make setup` installs the package it comes from."""
    return ensure_model()


@pytest.fixture(scope="session")
def smollm2_json(smollm2: Path) -> bytes:
    return (smollm2 / "tokenizer.json").read_bytes()


@pytest.fixture(scope="session")
def qwen_json() -> bytes:
    """The tokenizer of the captures from real engines."""
    folder = os.environ.get("WARMROUTE_TEST_FIXTURES")
    if not folder:
        pytest.skip("WARMROUTE_TEST_FIXTURES names no folder of captures from real engines")
    return lzma.decompress((Path(folder) / "tokenizer" / "tokenizer.json.xz").read_bytes())
