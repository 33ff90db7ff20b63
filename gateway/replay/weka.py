"""Traces of agents' sessions in Weka's format, re-encoded: JSON lines of one session each.

    {"id", "models": [...], "block_size": 64, "tool": tokens, "sys": tokens, "reqs": [...]}

A request is `[t, prompt tokens, reply tokens, API time, think time, keep, ranges, stop]`: its block ids are the first
`keep` of the request before it, then the runs `start, count, start, count ...` of `ranges`. A mapping within `reqs` is
a sub-agent with `reqs`, `tool` and `sys` of its own, and counts as a session. Ids are a session's own; sessions of one
model whose tool part is as long are taken to share it, and those whose system part is as long too share that.

Sessions run closed: a request comes its think time after the reply before it. Blocks are merged `MERGED` to one, which
costs at most that much of a match and makes the replay as much faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final

from gateway.replay.trace import Trace, TraceRequest

MERGED: Final = 8
LONGEST_THINK_SECONDS: Final = 60.0


def is_weka(row: Mapping[str, Any]) -> bool:
    return "reqs" in row and "block_size" in row


def read_weka(
    name: str,
    rows: Iterable[Mapping[str, Any]],
    *,
    context_limit: int,
    session_requests: int = 40,
    sessions: int = 690,
    seed: int = 1,
) -> Trace:
    """At most `sessions` sessions in an order drawn with `seed`, each ended before its first request of more than
    `context_limit` tokens and after `session_requests` requests; those of a single request are left out. Raises
    ValueError for a session that is not of the format."""
    shuffled = list(rows)
    Random(seed).shuffle(shuffled)
    size = shuffled[0]["block_size"] if shuffled else 64
    if type(size) is not int or size < 1:
        raise ValueError(f"block_size is {size!r:.80}; it must be a whole number of at least 1")
    keys = _Keys(size)
    firsts: list[TraceRequest] = []
    left_out = 0
    for row in shuffled:
        if len(firsts) >= sessions:
            break
        try:
            for part in _agents(row, row["id"], row["models"][0]):
                chain, cut = _session(part, keys, context_limit, session_requests)
                left_out += cut
                if len(chain) > 1:
                    firsts.append(chain[0])
        except KeyError as error:
            raise ValueError(f"the session {row.get('id')!r:.80}: the field {error} is missing") from error
        except (ValueError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"the session {row.get('id')!r:.80}: {error}") from error
    return Trace(name, size * MERGED, firsts, closed=True, left_out=left_out)


class _Agent:
    """A session's requests, without its sub-agents'."""

    def __init__(self, session: str, model: str, tool: int, system: int, requests: Sequence[Sequence[Any]]) -> None:
        self.session = session
        self.tool_scope = ("tool", model, tool)
        self.system_scope = ("system", model, tool, system)
        self.tool_tokens = tool
        self.prefix_tokens = tool + system
        self.requests = requests


def _agents(row: Mapping[str, Any], session: str, model: str) -> Iterator[_Agent]:
    """Sub-agents first, in the order of the file, then the session that called them."""
    own = []
    for item in row["reqs"]:
        if isinstance(item, Mapping):
            yield from _agents(item, session, model)
        else:
            own.append(item)
    yield _Agent(session, model, row.get("tool") or 0, row.get("sys") or 0, own)


class _Keys:
    """Numbers for merged blocks: the same for equal blocks behind equal ones."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._numbers: dict[tuple[object, ...], int] = {}

    def of(self, agent: _Agent, blocks: Sequence[int]) -> list[int]:
        keys = []
        previous = 0
        for start in range(0, len(blocks) - len(blocks) % MERGED, MERGED):
            end = (start + MERGED) * self.block_tokens
            identity: tuple[object, ...]
            if end <= agent.tool_tokens:
                identity = (previous, agent.tool_scope, start)
            elif end <= agent.prefix_tokens:
                identity = (previous, agent.system_scope, start)
            else:
                identity = (previous, agent.session, *blocks[start : start + MERGED])
            previous = self._numbers.setdefault(identity, len(self._numbers) + 1)
            keys.append(previous)
        return keys


def _session(agent: _Agent, keys: _Keys, context_limit: int, most: int) -> tuple[list[TraceRequest], int]:
    """The session's requests, each leading to the next, and how many were cut off."""
    chain: list[TraceRequest] = []
    blocks: list[int] = []
    for _, prompt, reply, _, think, keep, ranges, _ in agent.requests:
        if type(prompt) is not int or type(reply) is not int:
            raise ValueError(f"{prompt!r:.40} and {reply!r:.40} must be whole numbers, the prompt's and reply's tokens")
        if prompt + reply > context_limit or len(chain) >= most:
            break
        blocks = blocks[:keep]
        for start, count in zip(ranges[::2], ranges[1::2], strict=True):
            if count > context_limit:
                raise ValueError(f"a range of {count} blocks is longer than any prompt of {context_limit} tokens")
            blocks.extend(range(start, start + count))
        request = TraceRequest(
            0.0,
            max(1, prompt),
            max(1, reply),
            keys.of(agent, blocks),
            agent.session,
            min(think or 0.0, LONGEST_THINK_SECONDS),
        )
        if chain:
            chain[-1].following = request
        chain.append(request)
    return chain, len(agent.requests) - len(chain)
