"""The keys file: which API keys belong to which tenant, and what that tenant may do. Pure, but for `read`.

    tenants:
      - name: search                 # letters, digits, . _ -; stands in logs and metrics
        keys: [5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8]   # SHA-256 of each key, in hex
        models: [smollm2-135m-instruct, acme-*]       # all models when left out; * may end a name
        trust_group: acme            # tenants of one group share a cache salt
        limits: {requests_per_minute: 600, tokens_per_minute: 200000, concurrent_requests: 32}

Keys themselves are never in the file: a digest lets nobody in. Errors name the field, its value and the remedy; values
of `keys` are not repeated, since one of them may be a key by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
import yaml

from gateway.tenants.tenant import ANONYMOUS_NAME, OTHER_LABEL, Limits, Tenant

FILE_BYTES: Final = 16 * 1024 * 1024
TENANTS: Final = 20_000
KEYS_A_TENANT: Final = 100
MODELS_A_TENANT: Final = 1000
LABELS: Final = 1000
"""Tenants with a metric label of their own."""
GREATEST_LIMIT: Final = 10**12
"""Balances stay exact in the doubles of Redis's scripts."""

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
_HASH_REMEDY: Final = "give the SHA-256 of the key in 64 hex digits, as `printf %s KEY | sha256sum` prints it"


class KeysFileError(Exception):
    """The file is refused; the message names the field, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class KeysFile:
    """What a file says. `by_digest`: raw SHA-256 of a key -> its tenant."""

    by_digest: Mapping[bytes, Tenant]
    tenants: tuple[Tenant, ...]


class Labels:
    """Metric labels of tenants: their names, until there are too many; a name keeps its label for good."""

    def __init__(self, most: int = LABELS) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        if name not in self._known and len(self._known) < self._most:
            self._known.add(name)
        return name if name in self._known else OTHER_LABEL


def read(path: Path, labels: Labels) -> KeysFile:
    """Raises KeysFileError. JSON where the name ends in .json, else YAML."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES + 1)
    except OSError as error:
        raise KeysFileError(f"it cannot be read: {error.strerror}; give a file that this process may read") from error
    if len(data) > FILE_BYTES:
        raise KeysFileError(f"it is larger than {FILE_BYTES} bytes; give fewer tenants or keys")
    return parse(data, labels, json=path.suffix == ".json")


def parse(data: bytes, labels: Labels, *, json: bool = False) -> KeysFile:
    """Raises KeysFileError."""
    return check(_load(data, json=json), labels)


def _load(data: bytes, *, json: bool) -> Any:
    # The parsers' own messages quote the text around the fault, where keys may stand.
    if json:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise KeysFileError(f"it is no JSON: line {error.lineno}, column {error.colno}") from None
    try:
        return yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise KeysFileError(f"it is no YAML: {place}") from None
    except (yaml.YAMLError, ValueError, RecursionError, LookupError, AttributeError, TypeError):
        # The latter three: PyYAML's own, of explicit tags such as `!!int ''`.
        raise KeysFileError("it is no YAML in UTF-8") from None


def check(values: Any, labels: Labels) -> KeysFile:
    """Raises KeysFileError."""
    entries = _mapping("the file", values, {"tenants"}).get("tenants")
    if not isinstance(entries, list) or not 1 <= len(entries) <= TENANTS:
        # An empty file is more often a half-written one than a wish to lock everybody out.
        raise KeysFileError(f"tenants: give a list of 1 to {TENANTS} tenants")
    by_digest: dict[bytes, Tenant] = {}
    names: set[str] = set()
    tenants = []
    for position, entry in enumerate(entries):
        field = f"tenants.{position}"
        tenant, digests = _tenant(field, entry, labels)
        if tenant.name in names:
            raise KeysFileError(f"{field}.name: {tenant.name!r} stands twice; give each tenant a name of its own")
        names.add(tenant.name)
        tenants.append(tenant)
        for number, digest in enumerate(digests):
            other = by_digest.setdefault(digest, tenant)
            if other is not tenant:
                raise KeysFileError(
                    f"{field}.keys.{number}: the key (not shown) belongs to {other.name!r} too; take one of them away"
                )
    return KeysFile(by_digest, tuple(tenants))


def _tenant(field: str, entry: Any, labels: Labels) -> tuple[Tenant, list[bytes]]:
    values = _mapping(field, entry, {"name", "keys", "models", "trust_group", "limits"})
    name = _name(f"{field}.name", values.get("name"))
    if name in {ANONYMOUS_NAME, OTHER_LABEL}:
        raise KeysFileError(f"{field}.name: {name!r} is taken; choose another name")
    group = values.get("trust_group")
    exact, prefixes = _models(f"{field}.models", values.get("models"))
    tenant = Tenant(
        name,
        labels.of(name),
        _limits(f"{field}.limits", values.get("limits")),
        None if group is None else _name(f"{field}.trust_group", group),
        exact,
        prefixes,
    )
    return tenant, _digests(f"{field}.keys", values.get("keys"))


def _mapping(field: str, value: Any, known: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise KeysFileError(f"{field}: give a mapping with {', '.join(sorted(known))}")
    for key in value:
        if key not in known:
            # Not repeated where it could be a key that stands in the wrong place.
            shown = repr(key) if isinstance(key, str) and len(key) <= 20 else "a name (not shown)"
            raise KeysFileError(f"{field}: {shown} is no field; known here: {', '.join(sorted(known))}")
    return value


def _name(field: str, value: Any) -> str:
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise KeysFileError(
            f"{field}: {_shown(value)} is refused: give 1 to 64 letters, digits, '.', '_' or '-', "
            "a letter or digit first"
        )
    return value


def _models(field: str, value: Any) -> tuple[frozenset[str] | None, tuple[str, ...]]:
    if value is None:
        return None, ()
    if not isinstance(value, list) or not len(value) <= MODELS_A_TENANT:
        raise KeysFileError(f"{field}: give a list of at most {MODELS_A_TENANT} model names, or leave it out for all")
    for position, name in enumerate(value):
        if not isinstance(name, str) or not 1 <= len(name) <= 256 or "*" in name[:-1]:
            raise KeysFileError(
                f"{field}.{position}: {_shown(name)} is refused: give a model's name; a * may stand at its end alone"
            )
    exact = frozenset(name for name in value if not name.endswith("*"))
    return exact, tuple(name[:-1] for name in value if name.endswith("*"))


def _limits(field: str, value: Any) -> Limits:
    if value is None:
        return Limits()
    values = _mapping(field, value, set(Limits.__dataclass_fields__))
    for name, limit in values.items():
        if limit is not None and (type(limit) is not int or not 1 <= limit <= GREATEST_LIMIT):
            raise KeysFileError(
                f"{field}.{name}: {_shown(limit)} is refused: give a whole number of at least 1, or leave it out"
            )
    return Limits(**values)


def _digests(field: str, value: Any) -> list[bytes]:
    if not isinstance(value, list) or not len(value) <= KEYS_A_TENANT:
        raise KeysFileError(f"{field}: give a list of at most {KEYS_A_TENANT} digests; {_HASH_REMEDY}")
    for position, digest in enumerate(value):
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise KeysFileError(f"{field}.{position}: the value (not shown) is refused: {_HASH_REMEDY}")
    return [bytes.fromhex(digest) for digest in value]


def _shown(value: Any) -> str:
    return repr(value) if len(repr(value)) <= 64 else f"{repr(value)[:64]}..."
