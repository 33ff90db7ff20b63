"""The built-in engine: it takes salts on all its paths and reads no priority."""

from __future__ import annotations

from typing import Final

from gateway.engines.base import Dialect

DIALECT: Final = Dialect()
