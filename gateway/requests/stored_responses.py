"""Which worker keeps which response of /v1/responses: it alone can continue, show or cancel it. No I/O."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

LIMIT: Final = 100_000
"""Responses remembered, about 30 MB; the least recently used go first, and are then routed by load."""
HEAD_BYTES: Final = 4_096
_ID: Final = re.compile(rb'"id"[ \t\r\n]*:[ \t\r\n]*"(resp_[A-Za-z0-9_-]{1,123})"')


@dataclass(frozen=True, slots=True)
class Owner:
    """Where a response is. `tenant`: whose it is, "" without keys; `model`: the public name it was asked under."""

    pool: str
    worker: str
    tenant: str
    model: str


class StoredResponses:
    """Learned from replies that pass through this gateway, and from Redis; see `shared_responses`."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._owners: OrderedDict[str, Owner] = OrderedDict()
        self._limit = limit

    def __len__(self) -> int:
        return len(self._owners)

    def learn(self, response_id: str, owner: Owner) -> None:
        """Note where a response is. Another tenant's stays theirs: some engines let clients choose the id."""
        known = self._owners.get(response_id)
        if known is not None and known.tenant != owner.tenant:
            return
        self._owners[response_id] = owner
        self._owners.move_to_end(response_id)
        if len(self._owners) > self._limit:
            self._owners.popitem(last=False)

    def owner(self, response_id: str) -> Owner | None:
        owner = self._owners.get(response_id)
        if owner is not None:
            self._owners.move_to_end(response_id)
        return owner

    def forget(self, response_id: str) -> None:
        self._owners.pop(response_id, None)


class ResponseId:
    """Reads a response's id from the beginning of a reply, JSON or events: engines put it first."""

    def __init__(self) -> None:
        self._head = b""
        self.value: str | None = None

    def feed(self, data: bytes) -> None:
        if self.value is None and len(self._head) < HEAD_BYTES:
            self._head += data[:HEAD_BYTES]
            if match := _ID.search(self._head):
                self.value = match[1].decode()
