"""One step's tokens as tensors: a flat batch, decodes first, and where each sequence lies in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import torch
from torch import Tensor

from worker.engine.blocks import NULL_BLOCK_ID
from worker.engine.scheduler import Chunk


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences with one new token each, in rows `start` to `end` of the batch. `block_tables` is [rows, blocks],
    padded with the null block; `mask` [rows, 1, 1, blocks * block_tokens] is true where there is context."""

    start: int
    end: int
    block_tables: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """A sequence with several new tokens, in rows `start` to `end`. Where nothing precedes them, `block_table` and
    `mask` are None and attention is plainly causal; else they are [1, blocks] and [rows, context], causal from the
    bottom right."""

    start: int
    end: int
    context_tokens: int
    block_table: Tensor | None
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Batch:
    """A step's input. `token_ids`, `positions`, `slots` are [tokens]; `sampled` names the requests to sample, in the
    order of `sample_rows`."""

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    decodes: tuple[DecodeGroup, ...]
    prefills: tuple[PrefillSpan, ...]
    sample_rows: Tensor
    sampled: tuple[Chunk, ...]


def build_batch(chunks: Sequence[Chunk], *, block_tokens: int, device: torch.device) -> Batch:
    """Lay out a step's chunks, of which there is at least one."""
    decodes = sorted((chunk for chunk in chunks if chunk.count == 1), key=lambda chunk: chunk.end)
    prefills = [chunk for chunk in chunks if chunk.count > 1]
    ordered = [*decodes, *prefills]
    ends = _running_sum(chunk.count for chunk in ordered)
    sampled = [(end - 1, chunk) for end, chunk in zip(ends, ordered, strict=True) if chunk.samples]
    positions = torch.cat([torch.arange(chunk.start, chunk.end) for chunk in ordered])
    return Batch(
        token_ids=torch.tensor(
            [token for chunk in ordered for token in chunk.request.token_ids[chunk.start : chunk.end]], device=device
        ),
        positions=positions.to(device),
        slots=torch.cat([_slots(chunk, block_tokens) for chunk in ordered]).to(device),
        decodes=tuple(_decode_groups(decodes, block_tokens, device)),
        prefills=tuple(
            _prefill_span(chunk, end, block_tokens, device)
            for chunk, end in zip(prefills, ends[len(decodes) :], strict=True)
        ),
        sample_rows=torch.tensor([row for row, _ in sampled], dtype=torch.long, device=device),
        sampled=tuple(chunk for _, chunk in sampled),
    )


def _running_sum(counts: Iterable[int]) -> list[int]:
    return list(accumulate(counts))


def _block_ids(chunk: Chunk, block_tokens: int) -> list[int]:
    return [block.block_id for block in chunk.request.blocks[: -(-chunk.end // block_tokens)]]


def _slots(chunk: Chunk, block_tokens: int) -> Tensor:
    positions = torch.arange(chunk.start, chunk.end)
    table = torch.tensor(_block_ids(chunk, block_tokens))
    return table[positions // block_tokens] * block_tokens + positions % block_tokens


def _decode_groups(decodes: Sequence[Chunk], block_tokens: int, device: torch.device) -> list[DecodeGroup]:
    """Group sequences whose contexts have the same power of two of blocks: padding at most doubles the work."""
    groups: list[DecodeGroup] = []
    start = 0
    for _, members in groupby(decodes, key=lambda chunk: (-(-chunk.end // block_tokens)).bit_length()):
        group = list(members)
        tables = [_block_ids(chunk, block_tokens) for chunk in group]
        width = max(len(table) for table in tables)
        padded = torch.tensor([table + [NULL_BLOCK_ID] * (width - len(table)) for table in tables], device=device)
        lengths = torch.tensor([chunk.end for chunk in group], device=device)
        mask = torch.arange(width * block_tokens, device=device) < lengths[:, None]
        groups.append(DecodeGroup(start, start + len(group), padded, mask[:, None, None, :]))
        start += len(group)
    return groups


def _prefill_span(chunk: Chunk, end: int, block_tokens: int, device: torch.device) -> PrefillSpan:
    start = end - chunk.count
    if chunk.start == 0:
        return PrefillSpan(start, end, chunk.end, None, None)
    table = torch.tensor([_block_ids(chunk, block_tokens)], device=device)
    positions = torch.arange(chunk.start, chunk.end, device=device)
    mask = torch.arange(chunk.end, device=device) <= positions[:, None]
    return PrefillSpan(start, end, chunk.end, table, mask)
