"""A tiny random Llama as a Hugging Face folder, shared by the engine's tests."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported: spinning threads starve the others

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.worker.engine.support import (
    END,
    MAX_POSITIONS,
    TEMPLATE,
    VOCAB_SIZE,
    MakeEngine,
    byte_tokenizer,
    tiny_config,
)
from worker.engine.engine import Engine


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, 64 wide, grouped heads, untied head; weights so large that logits are far apart."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    torch.manual_seed(20261129)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        initializer_range=0.25,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=END,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|end|>"}))
    return folder


@pytest.fixture(scope="session")
def tiny_reference(tiny_folder: Path) -> LlamaForCausalLM:
    """The same model in transformers."""
    return LlamaForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()


@pytest.fixture
def make_engine(tiny_folder: Path) -> Iterator[MakeEngine]:
    """Builds engines, and checks their books once the test is over."""
    engines: list[Engine] = []

    def make(*, prefix_caching: bool = True, **changes: Any) -> Engine:
        engine = Engine.from_folder(tiny_folder, tiny_config(**changes), prefix_caching=prefix_caching)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.check_integrity()
