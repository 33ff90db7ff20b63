"""Where media stand among a prompt's tokens, and what tells them apart."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.prompts.media import MediaSize, PlacedItem, block_extras, item_digest, place_items
from indexer.keys import prompt_keys, token_bytes
from warmroute.chat_template import MediaPart

PICTURE = b"\x89PNG picture"
DATA = base64.b64encode(PICTURE).decode()
SIZES = {
    "image": MediaSize(token_bytes([90]), token_bytes([91] * 3)),
    "audio": MediaSize(token_bytes([92]), token_bytes([92] * 2)),
}


def image(url: str) -> MediaPart:
    return MediaPart("image", {"type": "image_url", "image_url": {"url": url}})


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@pytest.mark.parametrize(
    ("part", "digest"),
    [
        ({"image_url": {"url": f"data:image/png;base64,{DATA}"}}, sha(PICTURE)),
        ({"image_url": {"url": f"data:image/jpeg;base64,{DATA}", "detail": "low"}}, sha(PICTURE)),
        ({"image_url": f"data:image/png;base64,{DATA}"}, sha(PICTURE)),
        ({"image_url": {"url": "data:text/plain,a%20b"}}, sha(b"a b")),
        ({"image_url": {"url": "https://x/1.png"}}, sha(b"https://x/1.png")),
        ({"image_url": {"url": "data:broken"}}, sha(b"data:broken")),
        ({"image_url": {"url": "data:x;base64,A"}}, sha(b"A")),
        ({"input_audio": {"data": DATA, "format": "wav"}}, sha(PICTURE)),
        ({"image_url": {"url": "https://x/1.png"}, "uuid": "mine"}, b"mine"),
    ],
)
def test_digests(part: dict, digest: bytes) -> None:
    assert item_digest({"type": "x", **part}) == digest


def test_parts_of_other_shapes_have_digests_of_their_own() -> None:
    assert item_digest({"type": "image_embeds", "image_embeds": "a"}) != item_digest({"type": "x", "image_embeds": "b"})


def test_tokens_take_the_placeholders_places() -> None:
    audio = MediaPart("audio", {"input_audio": {"data": DATA}})
    placed = place_items(token_bytes([1, 90, 2, 92, 90]), [image("a"), audio, image("b")], SIZES)
    assert placed is not None
    token_ids, items = placed
    assert token_ids == token_bytes([1, 91, 91, 91, 2, 92, 92, 91, 91, 91])
    assert items == [PlacedItem(sha(b"a"), 1, 3), PlacedItem(sha(PICTURE), 5, 2), PlacedItem(sha(b"b"), 7, 3)]


@pytest.mark.parametrize(
    ("ids", "items"),
    [
        ([1, 2], [image("a")]),
        ([90, 90], [image("a")]),
        ([90], [image("a"), image("b")]),
        ([90], [MediaPart("video", {})]),
    ],
)
def test_placeholders_that_do_not_fit_the_items_are_not_placed(ids: list, items: list) -> None:
    assert place_items(token_bytes(ids), items, SIZES) is None


@given(
    items=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40)), max_size=4), block_tokens=st.sampled_from([4, 16])
)
def test_an_item_is_in_every_block_that_it_overlaps(items: list, block_tokens: int) -> None:
    placed, first = [], 0
    for gap, tokens in items:
        first += gap
        placed.append(PlacedItem(bytes([len(placed)]), first, tokens))
        first += tokens
    extras = block_extras(placed, block_tokens)
    for position in range(first + block_tokens):
        block = position // block_tokens
        here = [item for item in placed if item.first <= position < item.first + item.tokens]
        for item in here:
            assert (item.digest, item.first - block * block_tokens) in extras[block]
    assert sum(map(len, extras.values())) <= sum(item.tokens for item in placed)


def test_another_picture_changes_the_keys_from_its_block_on() -> None:
    ids = list(range(64)) + [91] * 64 + list(range(64))

    def keys(picture: bytes) -> list[int]:
        return prompt_keys(ids, "f", extras=block_extras([PlacedItem(picture, 64, 64)], 64))

    one, other = keys(b"1"), keys(b"2")
    assert one[0] == other[0]
    assert one[1] != other[1]
    assert one[2] != other[2]
    assert keys(b"1") == one
