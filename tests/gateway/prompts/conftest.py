from __future__ import annotations

from pathlib import Path

import pytest

from worker.model_cache import ensure_model


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The built-in model's folder; `make setup` installs the package it comes from."""
    return ensure_model()
