"""What a pool's settings refuse."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from warmroute.config.pool import PoolConfig


def test_an_address_is_one_worker() -> None:
    assert len(PoolConfig(model="m", workers=["a:1", {"address": "a:2"}]).workers) == 2
    with pytest.raises(ValidationError, match="workers: a:1 is there twice; name each address once"):
        PoolConfig(model="m", workers=["a:1", {"address": "a:1", "worker_id": "w"}])
