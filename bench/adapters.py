"""Engine adapters: from the bytes of vLLM's event messages to the keys that a publisher holds.

Everything that an agent does with a message on its CPU: msgpack, translation, chained hashes, the table of blocks, the
publisher's key set. The baseline is msgpack alone over the same bytes.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence

import msgpack

from bench.index.report import Report
from worker.adapters.feed import Feed
from worker.adapters.msgpack_events import TIERS, decode_batch
from worker.adapters.translate import Translator
from worker.events import CacheEvent
from worker.publish.index_blocks import Changes, IndexBlocks
from worker.publish.state import PublishState

BLOCK, INDEX = 16, 64
GOAL_BLOCKS = 200_000
Message = bytes


def stored(source: random.Random, blocks: int, parent: int | None = None) -> dict[str, object]:
    """One event as vLLM 0.32 writes it."""
    return {
        "type": "BlockStored",
        "block_hashes": [source.getrandbits(64) for _ in range(blocks)],
        "parent_block_hash": parent,
        "token_ids": [source.randrange(150_000) for _ in range(blocks * BLOCK)],
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * blocks,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def removed(block_hash: object) -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": [block_hash], "medium": "GPU", "group_idx": 0}


def prompts(source: random.Random, blocks: int, length: int) -> list[Message]:
    """Prompts of `length` blocks, one a message, into an empty cache."""
    return [msgpack.packb([float(number), [stored(source, length)], 0]) for number in range(max(1, blocks // length))]


def steady(source: random.Random, blocks: int, length: int) -> list[Message]:
    """The same into a full cache: each block makes another leave, one event each, the last of a prompt first."""
    messages: list[Message] = []
    cached: list[dict[str, object]] = []
    for number in range(max(2, blocks // length)):
        event = stored(source, length)
        old = cached.pop(0)["block_hashes"] if len(cached) >= 8 else []
        assert isinstance(old, list)
        messages.append(msgpack.packb([float(number), [*map(removed, reversed(old)), event], 0]))
        cached.append(event)
    return messages


def replies(source: random.Random, blocks: int, running: int) -> list[Message]:
    """Replies of `running` requests: each step fills a block of some, one event each."""
    last: list[int | None] = [None] * running
    messages: list[Message] = []
    for number in range(max(1, blocks // running)):
        events = [stored(source, 1, parent) for parent in last]
        last = [event["block_hashes"][0] for event in events]  # type: ignore[index]
        messages.append(msgpack.packb([float(number), events, 0]))
    return messages


class Agent:
    """What stands between a socket and the wire to the indexer."""

    def __init__(self) -> None:
        self.state = PublishState(epoch=1)
        self.blocks = IndexBlocks(
            engine_block_tokens=BLOCK, index_block_tokens=INDEX, fingerprint="f", capacity_blocks=1 << 22
        )
        self.feed = Feed(Translator(BLOCK, TIERS, most_host_blocks=1), self._apply, decode_batch)
        self.feed.end_replay(complete=False)

    def _apply(self, events: Sequence[CacheEvent]) -> None:
        changes = Changes()
        self.blocks.apply(events, changes)
        self.state.apply("device", changes, 0.0)

    def read(self, messages: Sequence[Message]) -> None:
        for number, message in enumerate(messages):
            self.feed.offer(number, message)


def unpack(messages: Sequence[Message]) -> None:
    """The baseline."""
    for message in messages:
        msgpack.unpackb(message)


def cpu_seconds(run: Callable[[], object], repeats: int) -> float:
    """Least CPU time of several runs."""
    best = float("inf")
    for _ in range(repeats):
        started = time.process_time()
        run()
        best = min(best, time.process_time() - started)
    return best


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures; the last line is one JSON object."""
    parser = argparse.ArgumentParser(prog="bench adapters", description=__doc__)
    parser.add_argument("--blocks", type=int, default=100_000, help="engine blocks in each measurement")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small, to see that it works")
    options = parser.parse_args(argv)
    blocks = 5_000 if options.quick else options.blocks
    report = Report(judged=not options.quick)
    workloads = {
        "prompts": ("prompts of 2,048 tokens into an empty cache", prompts(random.Random(options.seed), blocks, 128)),
        "steady": ("the same, each block evicting another", steady(random.Random(options.seed), blocks, 128)),
        "replies": ("replies of 32 requests, one block an event", replies(random.Random(options.seed), blocks, 32)),
    }
    report.heading(f"{blocks} engine blocks of {BLOCK} tokens, index blocks of {INDEX}; a second of CPU")
    for name, (text, messages) in workloads.items():
        count = sum(len(event.get("token_ids", ())) for message in messages for event in msgpack.unpackb(message)[1])
        count //= BLOCK
        baseline = count / cpu_seconds(lambda m=messages: unpack(m), options.repeats)
        rate = count / cpu_seconds(lambda m=messages: Agent().read(m), options.repeats)
        figure = "decode_blocks_per_s" if name == "prompts" else f"{name}_blocks_per_s"
        # A block of a reply is an event of 11 fields: an engine makes some hundreds a second.
        goal = None if name == "replies" else GOAL_BLOCKS
        report.add(figure, rate, f"{text}: blocks a second", at_least=goal)
        report.add(f"{name}_msgpack_alone_per_s", baseline, "  msgpack alone over the same bytes")
        report.add(f"{name}_of_msgpack", rate / baseline, "  share of that")
    print(report.to_json())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
