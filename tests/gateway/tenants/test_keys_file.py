from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tenants.keys_file import KeysFileError, Labels, check, parse, read
from gateway.tenants.tenant import Limits
from tests.gateway.tenants.support import KEY, digest

FILE = f"""
tenants:
  - name: search
    keys: [{digest(KEY)}, {digest(b"second").upper()}]
    models: [small, acme-*]
    trust_group: acme
    limits: {{requests_per_minute: 600, tokens_per_minute: 200000, concurrent_requests: 32}}
  - name: batch
    keys: [{digest(b"third")}]
"""


def entry(**fields: Any) -> dict[str, Any]:
    return {"tenants": [{"name": "a", "keys": [digest(KEY)], **fields}]}


def test_a_file_says_whose_key_it_is_and_what_that_tenant_may_do() -> None:
    file = parse(FILE.encode(), Labels())
    search, batch = file.tenants
    assert [file.by_digest[bytes.fromhex(digest(key))] for key in (KEY, b"second", b"third")] == [search, search, batch]
    assert search.limits == Limits(600, 200_000, 32)
    assert search.limited
    assert not batch.limited
    assert (search.trust_group, batch.trust_group) == ("acme", None)
    models = ["small", "smaller", "acme-1", "acme-", "other"]
    assert search.visible(models) == ["small", "acme-1", "acme-"]
    assert batch.visible(models) == models


def test_json_and_yaml_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(entry(models=[])))
    file = read(path, Labels())
    assert file == parse(path.read_bytes(), Labels())
    assert not file.tenants[0].may_use("any")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (None, "the file: give a mapping"),
        ({}, "tenants: give a list of 1 to"),
        ({"tenants": []}, "tenants: give a list of 1 to"),
        ({"tenants": ["a"]}, "tenants.0: give a mapping"),
        (entry(name="a b"), "tenants.0.name: 'a b' is refused: give 1 to 64"),
        (entry(name="{a}"), "tenants.0.name: '{a}' is refused"),
        (entry(name=7), "tenants.0.name: 7 is refused"),
        (entry(name="anonymous"), "tenants.0.name: 'anonymous' is taken"),
        (entry(key="x"), "tenants.0: 'key' is no field; known here: keys, limits, models, name, trust_group"),
        (entry(trust_group=""), "tenants.0.trust_group: '' is refused"),
        (entry(models="small"), "tenants.0.models: give a list"),
        (entry(models=["a*b"]), "tenants.0.models.0: 'a*b' is refused"),
        (entry(limits={"requests_per_minute": 0}), "tenants.0.limits.requests_per_minute: 0 is refused"),
        (entry(limits={"requests_per_minute": True}), "tenants.0.limits.requests_per_minute: True is refused"),
        (entry(limits={"tokens_per_minute": 1.5}), "tenants.0.limits.tokens_per_minute: 1.5 is refused"),
        (entry(limits={"rpm": 1}), "tenants.0.limits: 'rpm' is no field"),
        ({"tenants": entry()["tenants"] * 2}, "tenants.1.name: 'a' stands twice"),
        (
            {"tenants": [*entry()["tenants"], *entry(name="b")["tenants"]]},
            "tenants.1.keys.0: the key (not shown) belongs",
        ),
    ],
)
def test_a_bad_file_is_refused_with_field_value_and_remedy(values: Any, expected: str) -> None:
    with pytest.raises(KeysFileError) as caught:
        check(values, Labels())
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "tenants: [{name: a, keys: [sk-secret]}]",
        "tenants: [{name: a, keys: sk-secret}]",
        "tenants: [{name: a, keys: [{sk-secret: 1}]}]",
        "tenants: [{name: a, sk-secret-that-is-in-the-wrong-place: []}]",
        "tenants: [{name: a, keys: [sk-secret}]",
        "tenants: [{name: a, keys: ['sk-secret]}]",
        "tenants: !sk-secret",
        "- sk-secret",
        "\xff sk-secret",
    ],
)
def test_a_plain_key_is_refused_and_never_shown(text: str) -> None:
    for json_file in (False, True):
        with pytest.raises(KeysFileError) as caught:
            parse(text.encode("latin-1"), Labels(), json=json_file)
        assert "secret" not in str(caught.value)
        # Nor in what a traceback would show.
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("text", ["!!int ''", "!!timestamp x", "!!bool x", "!!float ''", "!!int '0b'", "{!!bool x: 1}"])
def test_values_that_are_not_what_their_tag_says_are_refused(text: str) -> None:
    with pytest.raises(KeysFileError, match="it is no YAML"):
        parse(f"tenants: {text}".encode(), Labels())


def test_a_missing_file_is_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(KeysFileError, match=r"No such file.*give a file that this process may read"):
        read(tmp_path / "none.yaml", Labels())


@given(st.binary(max_size=200))
def test_whatever_the_bytes_there_is_an_answer(data: bytes) -> None:
    for json_file in (False, True):
        with pytest.raises(KeysFileError):
            parse(data, Labels(), json=json_file)


def test_labels_are_bounded_and_stay() -> None:
    labels = Labels(most=2)
    assert [labels.of(name) for name in ("a", "b", "c", "a", "c")] == ["a", "b", "other", "a", "other"]
