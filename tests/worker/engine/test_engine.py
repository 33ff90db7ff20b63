"""The engine against transformers, and against itself under every way of cutting the work up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.worker.engine.support import END, MAX_POSITIONS, VOCAB_SIZE, MakeEngine, generate, greedy, tiny_config
from worker.engine.engine import Engine
from worker.engine.errors import ModelError, PromptTooLongError
from worker.engine.request import SamplingParams
from worker.engine.sampler import sample
from worker.events import BlockStored, CacheCleared

TOLERANCE = 1e-3
"""Of fp32 logits. Batch shapes change the order of additions, so equality to the bit is not to be had."""


def random_prompt(length: int, seed: int) -> list[int]:
    return [random.Random(f"{seed}/{place}").randrange(1, VOCAB_SIZE) for place in range(length)]


def record_logits(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> dict[int, list[Tensor]]:
    """The logits of each sampled token, by request id."""
    recorded: dict[int, list[Tensor]] = {}

    def recording(logits: Tensor, requests: Sequence[Any]) -> list[int]:
        for row, request in zip(logits, requests, strict=True):
            recorded.setdefault(request.request_id, []).append(row.clone())
        return sample(logits, requests)

    monkeypatch.setattr("worker.engine.engine.sample", recording)
    return recorded


@torch.inference_mode()
def assert_logits_equal(
    reference: LlamaForCausalLM, prompt: Sequence[int], reply: Sequence[int], logits: Sequence[Tensor]
) -> None:
    """The reference sees prompt and reply at once; its rows from the prompt's last on predict the reply."""
    expected = reference(torch.tensor([[*prompt, *reply[:-1]]])).logits[0, len(prompt) - 1 :]
    actual = torch.stack(list(logits))
    torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)
    assert actual.argmax(-1).tolist() == expected.argmax(-1).tolist() == list(reply)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 100])
def test_prefill_and_decode(
    make_engine: MakeEngine, tiny_reference: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    engine = make_engine()
    logits = record_logits(engine, monkeypatch)
    prompt = random_prompt(length, seed=1)
    [reply] = generate(engine, [prompt], 20)
    assert_logits_equal(tiny_reference, prompt, reply, logits[0])


@pytest.mark.parametrize("max_step_tokens", [16, 17, 48])
def test_chunked_prefill(
    make_engine: MakeEngine, tiny_reference: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch, max_step_tokens: int
) -> None:
    engine = make_engine(max_step_tokens=max_step_tokens)
    logits = record_logits(engine, monkeypatch)
    prompt = random_prompt(100, seed=2)
    [reply] = generate(engine, [prompt], 5)
    assert_logits_equal(tiny_reference, prompt, reply, logits[0])


@pytest.mark.parametrize(("shared", "expected_hit"), [(100, 96), (99, 96), (96, 96), (95, 80), (16, 16), (15, 0)])
def test_prefix_hits(
    make_engine: MakeEngine,
    tiny_reference: LlamaForCausalLM,
    monkeypatch: pytest.MonkeyPatch,
    shared: int,
    expected_hit: int,
) -> None:
    engine = make_engine()
    generate(engine, [random_prompt(100, seed=3)], 4)
    logits = record_logits(engine, monkeypatch)
    prompt = random_prompt(100, seed=3)[:shared] + random_prompt(30, seed=4)
    engine.add_request(engine.new_request(7, prompt, greedy(4)))
    reply = []
    while engine.has_work():
        for output in engine.step().values():
            assert output.cached_tokens == expected_hit
            reply.append(output.token_id)
    assert_logits_equal(tiny_reference, prompt, reply, logits[7])


def test_a_prompt_of_whole_blocks_computes_its_last_one_again(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompt = random_prompt(64, seed=5)
    for expected in (0, 48):
        engine.add_request(engine.new_request(expected, prompt, greedy(1)))
        assert [output.cached_tokens for output in engine.step().values()] == [expected]


def test_batch(make_engine: MakeEngine, tiny_reference: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of all lengths at once: prefills, chunks and decodes share steps."""
    engine = make_engine(max_step_tokens=64, max_batch_requests=6)
    logits = record_logits(engine, monkeypatch)
    prompts = [random_prompt(length, seed=length) for length in (1, 3, 16, 33, 64, 90, 120, 7)]
    replies = generate(engine, prompts, 12)
    for number, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        assert_logits_equal(tiny_reference, prompt, reply, logits[number])


@torch.inference_mode()
def test_generation_ends_where_transformers_ends(make_engine: MakeEngine, tiny_reference: LlamaForCausalLM) -> None:
    engine = make_engine()
    ended = 0
    for seed in range(12):
        prompt = random_prompt(10, seed=seed)
        expected = tiny_reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=150,
            do_sample=False,
        )[0, len(prompt) :].tolist()
        engine.add_request(engine.new_request(seed, prompt, SamplingParams(max_tokens=150, temperature=0)))
        outputs = []
        while engine.has_work():
            outputs += engine.step().values()
        assert [output.token_id for output in outputs] == expected
        assert outputs[-1].finish_reason == ("stop" if expected[-1] == END else "length")
        ended += expected[-1] == END
    assert ended, "no reply ended by itself: the seeds test nothing"


VARIANTS: dict[str, dict[str, Any]] = {
    "no cache": {"prefix_caching": False},
    "blocks of 1": {"block_tokens": 1},
    "blocks of 7": {"block_tokens": 7},
    "blocks of 64": {"block_tokens": 64},
    "small chunks": {"max_step_tokens": 16},
    "one at a time": {"max_batch_requests": 1},
    "two at a time": {"max_batch_requests": 2, "max_step_tokens": 19},
    "preemption": {"kv_cache_tokens": 256},
    "preemption, no cache": {"kv_cache_tokens": 256, "prefix_caching": False, "max_step_tokens": 32},
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_the_same_tokens_however_the_work_is_cut(make_engine: MakeEngine, variant: dict[str, Any]) -> None:
    """Prompts with shared prefixes, twice, so that the second round hits what the first left."""
    common = random_prompt(50, seed=9)
    prompts = [common[: 10 * number] + random_prompt(20 + number, seed=number) for number in range(6)] * 2
    assert generate(make_engine(**variant), prompts, 40) == generate(make_engine(), prompts, 40)


def test_preemption_happens_under_pressure(make_engine: MakeEngine) -> None:
    engine = make_engine(kv_cache_tokens=256)
    generate(engine, [random_prompt(50, seed=number) for number in range(5)], 40)
    assert engine.stats.preemptions > 0
    assert engine.load().kv_cache_usage == 0


def test_salts_and_adapters_share_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompt = random_prompt(40, seed=6)
    roots = [{}, {"salt": "a"}, {"adapter": "a"}, {"salt": "a", "adapter": "b"}, {"salt": "b", "adapter": "a"}]
    for number, root in enumerate(roots):
        engine.add_request(engine.new_request(number, prompt, greedy(1), **root))
        assert [output.cached_tokens for output in engine.step().values()] == [0]
    for number, root in enumerate(roots):
        engine.add_request(engine.new_request(100 + number, prompt, greedy(1), **root))
        assert [output.cached_tokens for output in engine.step().values()] == [32]
    firsts = [event for event in engine.drain_events() if isinstance(event, BlockStored) and event.parent is None]
    assert [(event.salt, event.adapter) for event in firsts] == [
        (root.get("salt", ""), root.get("adapter", "")) for root in roots
    ]


def test_blocks_are_stored_after_their_compute(make_engine: MakeEngine) -> None:
    engine = make_engine(max_step_tokens=32)
    prompt = random_prompt(64, seed=7)
    engine.add_request(engine.new_request(1, prompt, greedy(1)))
    assert engine.drain_events() == []
    engine.step()
    events = engine.drain_events()
    assert [tuple(event.token_ids) for event in events if isinstance(event, BlockStored)] == [
        tuple(prompt[:16]),
        tuple(prompt[16:32]),
    ]
    assert [event.parent for event in events if isinstance(event, BlockStored)] == [None, events[0].block_hash]


def test_reset_with_a_request_running(
    make_engine: MakeEngine, tiny_reference: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    logits = record_logits(engine, monkeypatch)
    prompt = random_prompt(40, seed=8)
    engine.add_request(engine.new_request(1, prompt, greedy(40)))
    reply = [output.token_id for _ in range(3) for output in engine.step().values()]
    engine.drain_events()
    engine.reset_prefix_cache()
    while engine.has_work():
        reply += [output.token_id for output in engine.step().values()]
    assert engine.drain_events() == [CacheCleared()]
    assert_logits_equal(tiny_reference, prompt, reply, logits[1])
    engine.add_request(engine.new_request(2, prompt, greedy(1)))
    assert [output.cached_tokens for output in engine.step().values()] == [0]


def test_refused_requests(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with pytest.raises(PromptTooLongError, match="holds 512 tokens; the prompt has 500 and up to 13"):
        engine.new_request(1, [1] * 500, greedy(13))
    engine.new_request(1, [1] * 500, greedy(12))
    with pytest.raises(ValueError, match="at least one token"):
        engine.new_request(1, [], greedy(1))
    for token in (-1, VOCAB_SIZE):
        with pytest.raises(ValueError, match=r"0\.\.258"):
            engine.new_request(1, [token], greedy(1))


def test_the_context_ends_with_the_cache(make_engine: MakeEngine) -> None:
    assert make_engine(kv_cache_tokens=256).max_context_tokens == 256
    assert make_engine(max_context_tokens=100).max_context_tokens == 100
    assert make_engine(max_context_tokens=4096).max_context_tokens == MAX_POSITIONS


def test_a_full_context_is_generated(make_engine: MakeEngine) -> None:
    engine = make_engine(kv_cache_tokens=256)
    [reply] = generate(engine, [random_prompt(3, seed=10)], 253)
    assert len(reply) == 253


def test_an_unknown_device(tiny_folder: Path) -> None:
    with pytest.raises(ModelError, match="'abacus' cannot be used"):
        Engine.from_folder(tiny_folder, tiny_config(device="abacus"))
