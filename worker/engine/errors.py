"""What can go wrong in the engine, as few kinds; the server turns them into HTTP."""

from __future__ import annotations


class EngineError(Exception):
    """Base of the engine's errors. The message says what is wrong and what to do."""


class ModelError(EngineError):
    """The model folder cannot be served: another architecture, a missing or misshapen tensor, an unreadable file."""


class PromptTooLongError(EngineError):
    """Prompt plus reply exceed what the engine can hold."""


class QueueFullError(EngineError):
    """As many requests wait as the configuration allows."""


class EngineStoppedError(EngineError):
    """The engine has crashed or was stopped; it takes no more requests."""
