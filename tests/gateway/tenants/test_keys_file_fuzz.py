"""Damaged keys files: a tenant's file or a refusal, never another error, and what stands in `keys` is not repeated.

WARMROUTE_FUZZ_INPUTS says how many; a failure shows the file.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from gateway.tenants.keys_file import NAME, KeysFileError, Labels, parse
from tests.gateway.tenants.support import digest

INPUTS = int(os.environ.get("WARMROUTE_FUZZ_INPUTS", "10000"))
YAML = f"""tenants:
  - name: search
    keys: [{digest(b"1")}, {digest(b"2")}]
    models: [small, acme-*]
    trust_group: acme
    limits: {{requests_per_minute: 600, tokens_per_minute: 200000}}
  - {{name: batch, keys: [{digest(b"3")}]}}
"""
JSON = f'{{"tenants": [{{"name": "a", "keys": ["{digest(b"1")}"], "models": ["m*"], "limits": {{}}}}]}}'
PIECES = [
    *("&a ", "*a", "!!int ''", "!!binary x", "!!python/object:os.system x", "<<: *a", "? ", ": ", "- ", "\n", "\t"),
    *("'", '"', "[", "]", "{", "}", "|", ">", "%YAML 9", "---", "...", "#", "0x", "1_0", "1:2:3", "2001-99-99"),
    *(".inf", "-.nan", "~", "null", "true", "\0", "\ufeff", "é", "\u2028", "9" * 5000, "[" * 300, "{a: " * 300),
    *("tenants", "keys", "name: ", "limits: ", "models: ", "a: &x [*x]", "1e999", "'\\ud800'", "&b [*a, *a]", "*"),
]


def damaged(random: Random, text: str) -> bytes:
    """The file with pieces put in, taken out, doubled and moved, and bytes flipped."""
    data = bytearray(text.encode())
    for _ in range(random.randint(1, 3)):
        at, length = random.randrange(len(data) + 1), random.randrange(40)
        match random.randrange(5):
            case 0:
                data[at:at] = random.choice(PIECES).encode()
            case 1:
                del data[at : at + length]
            case 2:
                data[at:at] = data[at : at + length]
            case 3:
                to = random.randrange(len(data) + 1)
                data[to:to] = data[at : at + length]
            case _:
                if at < len(data):
                    data[at] = random.randrange(256)
    return bytes(data)


@pytest.mark.timeout(60 + INPUTS // 200)
def test_damaged_files_are_taken_or_refused() -> None:
    random = Random(5)
    taken = refused = 0
    for number in range(INPUTS):
        json = number % 4 == 0
        data = damaged(random, JSON if json else YAML)
        try:
            file = parse(data, Labels(), json=json)
        except KeysFileError as error:
            refused += 1
            said = str(error)
            assert len(said) < 500, data
            if ".keys" in said.partition(":")[0]:
                assert digest(b"2")[:16] not in said, data
        except Exception as error:
            raise AssertionError(data) from error
        else:
            taken += 1
            assert file.tenants, data
            assert all(NAME.fullmatch(tenant.name) for tenant in file.tenants), data
            assert {len(key) for key in file.by_digest} <= {32}, data
    assert taken > INPUTS // 100
    assert refused > INPUTS // 50
