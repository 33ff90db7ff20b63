from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tenants.salts import Salts
from gateway.tenants.tenant import ANONYMOUS, Tenant
from warmroute.config.tenants import TenantsConfig
from warmroute.process.lifecycle import StartupError

SECRET = "0123456789abcdef" * 2
KEYS = Path("keys.yaml")
text = st.text(st.characters(exclude_categories=()), max_size=20)


def tenant(name: str, group: str | None = None) -> Tenant:
    return Tenant(name, name, trust_group=group)


def test_every_gateway_computes_the_same_salt_from_the_secret(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    one = Salts.load(TenantsConfig(keys_file=KEYS, salt_secret=SECRET))
    two = Salts.load(TenantsConfig(keys_file=KEYS, salt_secret_file=path))
    salt = one.salt(tenant("a"), None)
    assert salt == two.salt(tenant("a"), None) == one.salt(tenant("a"), "")
    assert salt is not None
    assert len(salt) == 43
    assert hmac.new(SECRET.encode(), b"t\0a", hashlib.sha256).digest()[:3].hex() not in {"", salt}
    assert Salts(b"another" * 6).salt(tenant("a"), None) != salt


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, "a", "b"]), text), min_size=2, max_size=30))
def test_salts_are_equal_only_for_one_scope_and_one_client_salt(requests: list[tuple[str, str | None, str]]) -> None:
    salts = Salts(SECRET.encode())
    owners: dict[str, tuple[str, str]] = {}
    for name, group, client in requests:
        salt = salts.salt(tenant(name, group), client)
        assert salt is not None
        assert salt != client
        owner = (f"group {group}" if group else f"tenant {name}", client)
        assert owners.setdefault(salt, owner) == owner
        assert salts.salt(tenant(name, group), client) == salt


def test_a_client_cannot_reach_another_tenants_salt_by_sending_it() -> None:
    salts = Salts(SECRET.encode())
    other = salts.salt(tenant("b"), None)
    assert salts.salt(tenant("a"), other) not in {other, salts.salt(tenant("a"), None)}


def test_without_keys_or_with_salts_off_the_clients_salt_passes() -> None:
    for config in (TenantsConfig(), TenantsConfig(keys_file=KEYS, salts=False, salt_secret=SECRET)):
        salts = Salts.load(config)
        assert [salts.salt(ANONYMOUS, given) for given in (None, "", "x")] == [None, None, "x"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "tenants.salt_secret_file: it is missing.*openssl rand -hex 32"),
        ({"salt_secret": "short"}, r"tenants.salt_secret: the secret \(not shown\) must have 32 to 4096 bytes"),
        ({"salt_secret": SECRET, "salt_secret_file": KEYS}, "keep one of them"),
        ({"salt_secret_file": Path("/nowhere/secret")}, "'/nowhere/secret' cannot be read: No such file"),
    ],
)
def test_without_a_usable_secret_the_gateway_does_not_start(fields: dict[str, str | Path], message: str) -> None:
    with pytest.raises(StartupError, match=message) as caught:
        Salts.load(TenantsConfig(keys_file=KEYS, **fields))
    assert SECRET not in str(caught.value)
    assert "short" not in str(caught.value)
