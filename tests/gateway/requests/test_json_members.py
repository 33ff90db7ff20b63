"""Edits of JSON objects against what a parser makes of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.requests.json_members import NotAnObjectError, add_members, edit_object, last, members, value_of_only

NAMES = st.sampled_from(["model", "stream", "priority", "a", 'q"uote', "back\\slash", "é", "x{y", "[z", ""])
TEXTS = st.text(alphabet='ab"\\{}[],:é\n\u2028😀 ', max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | TEXTS, inner, max_size=3),
    max_leaves=12,
)
SPACE = st.sampled_from(["", " ", "\n", "\t ", "\r\n"])


@st.composite
def objects(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, object]]]:
    """An object in some spelling, and its members in order, duplicates among them."""
    pairs = draw(st.lists(st.tuples(NAMES, VALUES), max_size=6))
    written = []
    for name, value in pairs:
        key = json.dumps(name, ensure_ascii=draw(st.booleans()))
        if draw(st.booleans()) and name:
            key = '"' + "".join(f"\\u{ord(letter):04x}" for letter in name) + '"'
        text = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
        written.append(f"{draw(SPACE)}{key}{draw(SPACE)}:{draw(SPACE)}{text}{draw(SPACE)}")
    return f"{draw(SPACE)}{{{','.join(written) or draw(SPACE)}}}{draw(SPACE)}".encode(), pairs


def pairs_of(body: bytes) -> list[tuple[str, object]]:
    pairs = json.loads(body, object_pairs_hook=lambda pairs: pairs)
    return [(name, value) for name, value in pairs]


@given(objects())
def test_members_are_what_a_parser_finds(spelled: tuple[bytes, list[tuple[str, object]]]) -> None:
    body, pairs = spelled
    found = members(body)
    assert [(m.name, json.loads(body[m.value_start : m.value_end])) for m in found] == pairs
    for member in found:
        assert last(found, member.name) == [m for m in found if m.name == member.name][-1]


@given(objects(), st.data())
def test_a_cut_object_gives_the_members_before_the_cut(
    spelled: tuple[bytes, list[tuple[str, object]]], data: st.DataObject
) -> None:
    body, _ = spelled
    whole = members(body)
    cut = data.draw(st.integers(body.index(b"{") + 1, len(body)))
    part = members(body[:cut], partial=True)
    assert part == whole[: len(part)]
    # A scalar's end is known only once something follows it.
    assert len(part) >= sum(member.value_end < cut for member in whole)


@given(objects(), st.dictionaries(NAMES, VALUES, max_size=3), st.sets(NAMES, max_size=3), VALUES)
def test_edits_change_what_they_name_and_nothing_else(
    spelled: tuple[bytes, list[tuple[str, object]]], replace: dict[str, object], remove: set[str], added: object
) -> None:
    body, pairs = spelled
    values = {name: json.dumps(value).encode() for name, value in replace.items()}
    edited = edit_object(body, values, remove, add={"new": json.dumps(added).encode()})
    expected = [("new", added)]
    expected += [(name, replace.get(name, value)) for name, value in pairs if name not in remove]
    assert json.loads(edited, object_pairs_hook=list) == json.loads(
        "{" + ",".join(f"{json.dumps(n)}:{json.dumps(v)}" for n, v in expected) + "}", object_pairs_hook=list
    )


@given(objects())
def test_an_edit_to_the_same_text_changes_no_byte(spelled: tuple[bytes, list[tuple[str, object]]]) -> None:
    body, pairs = spelled
    found = members(body)
    if len({name for name, _ in pairs}) == len(pairs):
        same = {member.name: body[member.value_start : member.value_end] for member in found}
        assert edit_object(body, same) == body
    assert edit_object(body, {"absent": b"1"}, {"gone"}) == body


@pytest.mark.parametrize("body", [b"", b"[]", b'"text"', b"7", b"{", b'{"a":', b'{"a":1', b'{"a":[1}', b"}{"])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(NotAnObjectError):
        edit_object(body, {"a": b"1"})


def test_an_escaped_name_is_found_and_text_is_not() -> None:
    body = rb'{"m\u006fdel":"a","x":{"model":"b"},"y":"\"model\":\"c\"","z":[{"model":"d"}]}'
    expected = rb'{"m\u006fdel":"NEW","x":{"model":"b"},"y":"\"model\":\"c\"","z":[{"model":"d"}]}'
    assert edit_object(body, {"model": b'"NEW"'}) == expected


@given(objects())
def test_the_only_place_of_a_name_is_its_key(spelled: tuple[bytes, list[tuple[str, object]]]) -> None:
    body = add_members(spelled[0], {"model": b'"m"'})
    if b"\\u00" in body:
        return
    member = last(members(body), "model")
    assert member is not None
    alone = body.count(b'"model"') == 1 and body[member.value_start] == ord('"')
    assert value_of_only(body, "model") == ((member.value_start, member.value_end) if alone else None)
