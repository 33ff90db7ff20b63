"""A memo that is bounded by bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from threading import Lock
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

LARGEST_SHARE: Final = 4
"""An entry above 1/4 of the limit is not kept: it would drop most of the others."""


class BoundedMemo(Generic[K, V]):
    """Drops the least recently used entries first. Safe to use from several threads at once."""

    def __init__(self, limit_bytes: int, size_of: Callable[[K, V], int]) -> None:
        """`size_of` says how many bytes an entry takes, its objects included."""
        self.limit_bytes = limit_bytes
        self._size_of = size_of
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    @property
    def size(self) -> int:
        """Bytes that the entries take, by `size_of`."""
        return self._size

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        with self._lock:
            value = self._entries.get(key)
            if value is not None:
                self._entries.move_to_end(key)
            return value

    def get_all(self, keys: Iterable[K]) -> list[V | None]:
        """`get` of each key, under one lock."""
        found: list[V | None] = []
        with self._lock:
            entries, touch = self._entries, self._entries.move_to_end
            for key in keys:
                value = entries.get(key)
                if value is not None:
                    touch(key)
                found.append(value)
        return found

    def put(self, key: K, value: V) -> None:
        """Keep an entry. It replaces the one with the same key."""
        size = self._size_of(key, value)
        if size > self.limit_bytes // LARGEST_SHARE:
            return
        with self._lock:
            self._drop(key)
            self._entries[key] = value
            self._size += size
            while self._size > self.limit_bytes:
                self._drop(next(iter(self._entries)))

    def discard(self, key: K) -> None:
        with self._lock:
            self._drop(key)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._size = 0

    def _drop(self, key: K) -> None:
        value = self._entries.pop(key, None)
        if value is not None:
            self._size -= self._size_of(key, value)
