"""The edits of a request's JSON body, spliced in place: every other byte goes to the worker as it came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.engines.base import Dialect
from gateway.requests.json_members import LARGE_BYTES, edit_object, last, members, splice, value_of_only
from gateway.requests.json_scan import Member


@dataclass(slots=True)  # not frozen: see gateway.http.message.Request
class RequestEdits:
    """What to change. `model`: the engine's name for it, where an alias was used. `salt`: the tenant's, which takes
    the place of the client's own. `ask_usage`: see `lacks_usage`. `priority`: of a hint that is not in the body's
    `priority`, higher is more important. `remove`: fields of it that do not go to the engine."""

    model: str | None = None
    salt: str | None = None
    ask_usage: bool = False
    priority: int | None = None
    remove: frozenset[str] = frozenset()

    def apply(
        self, body: bytes, fields: Mapping[str, Any], dialect: Dialect, found: list[Member] | None = None
    ) -> bytes:
        """The body as the worker gets it; the very same object where nothing is to change.

        `fields` is the body, parsed; `found` its members, where they are known. Of duplicate keys all are changed,
        since engines need not agree on which counts.
        """
        replace: dict[str, bytes] = {}
        add: dict[str, bytes] = {}
        if self.model is not None and "model" in fields:
            replace["model"] = orjson.dumps(self.model)
        if self.salt is not None:
            (replace if "cache_salt" in fields else add)["cache_salt"] = orjson.dumps(self.salt)
        priority = fields.get("priority")
        if priority is None:
            if self.priority and dialect.takes_priority:
                value = b"%d" % (-self.priority if dialect.lower_priority_first else self.priority)
                (replace if "priority" in fields else add)["priority"] = value
        elif dialect.lower_priority_first and type(priority) is int and priority:
            replace["priority"] = b"%d" % -priority
        if self.ask_usage:
            if found is None and len(body) > LARGE_BYTES and "stream_options" in fields:
                found = members(body)
            (replace if "stream_options" in fields else add)["stream_options"] = _asking(body, fields, found)
        remove = self.remove | dialect.rejects.intersection(fields)
        if not (replace or add or remove):
            return body
        if found is not None:
            return edit_object(body, replace, remove, add=add, found=found)
        if "model" in replace and b"\\u00" not in body and (only := value_of_only(body, "model")) is not None:
            body = splice(body, [(*only, replace.pop("model"))])
            if not (replace or add or remove):
                return body
        return edit_object(body, replace, remove, add=add)


def lacks_usage(fields: Mapping[str, Any]) -> bool:
    """Whether this is a stream that would end without telling its usage, and can be asked to. Options that are
    malformed are the engine's to refuse."""
    if fields.get("stream") is not True:
        return False
    options = fields.get("stream_options")
    if options is None:
        return True
    if not isinstance(options, dict):
        return False
    asked = options.get("include_usage")
    return asked is None or asked is False


def _asking(body: bytes, fields: Mapping[str, Any], found: list[Member] | None) -> bytes:
    """The client's stream_options with include_usage."""
    options = fields.get("stream_options")
    if not isinstance(options, dict):
        return b'{"include_usage":true}'
    text = _text_of(body, "stream_options", found)
    if text is None:
        return b'{"include_usage":true}'
    if "include_usage" in options:
        return edit_object(text, {"include_usage": b"true"})
    return edit_object(text, {}, add={"include_usage": b"true"})


def _text_of(body: bytes, name: str, found: list[Member] | None) -> bytes | None:
    """The value of this name that counts; None where there is none."""
    member = last(members(body) if found is None else found, name)
    return None if member is None else body[member.value_start : member.value_end]
