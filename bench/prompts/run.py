"""The command: chats of three lengths, new and one turn later, beside `transformers`; the last line is one JSON object.

    python -m bench.prompts [--seed 1] [--quick] [--json] [--model FOLDER]

WARMROUTE_BENCH_TEXTS names a folder with recorded calls of agents (`chats.SESSIONS`); without it the text is generated,
which the figures say. Figures are CPU time of all threads, medians over the chats, each of which is measured once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.index.report import Report
from bench.prompts.chats import chats, sessions
from bench.prompts.measure import STEPS, Costs, Encode, baseline, measure
from gateway.prompts.keyer import PromptKeyer
from gateway.prompts.tokenizer import PromptTokenizer, TokenizerError
from warmroute.chat_template import ChatTemplate, ChatTemplateError
from worker.model_cache import ensure_model

TEXTS: Final = "WARMROUTE_BENCH_TEXTS"
LENGTHS: Final = {"1k": 1_000, "8k": 8_000, "32k": 32_000}
CHATS: Final = {"1k": 60, "8k": 40, "32k": 15}
QUICK_CHATS: Final = 3
BUDGET_SECONDS: Final = 60.0
FOLLOW_UP_GOAL_US: Final = 250.0
WARM_GOAL: Final = 20.0
COLD_GOAL: Final = 5.0
SPEED_GOALS: Final = {"tiktoken": 10.0, "quicktok": 25.0}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures."""
    arguments = _parser().parse_args(argv)
    report = Report(json_only=arguments.json, judged=not arguments.quick)
    started_at = time.monotonic()
    texts = os.environ.get(TEXTS)
    report.note("bench", "prompts")
    report.note("seed", arguments.seed)
    report.note("quick", arguments.quick)
    report.note("texts", "recorded" if texts else f"generated: {TEXTS} is not set")
    report.note("machine", f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}")
    try:
        folder = arguments.model or ensure_model()
        asyncio.run(_run(report, folder, Path(texts) if texts else None, arguments))
    except (TokenizerError, ChatTemplateError, OSError, ValueError) as error:
        print(f"bench.prompts: {error}", file=sys.stderr)
        return 1
    report.heading(f"took {time.monotonic() - started_at:.0f} s; seed {arguments.seed}; {report.figures['texts']} text")
    print(report.to_json(), flush=True)
    return 0


async def _run(report: Report, folder: Path, texts: Path | None, arguments: argparse.Namespace) -> None:
    tokenizer_json = (folder / "tokenizer.json").read_bytes()
    template = ChatTemplate.from_folder(folder)
    counting = PromptTokenizer(tokenizer_json)
    report.note("encoder", counting.encoder)
    report.progress("transformers is loaded")
    encode = _transformers(folder)
    recorded = sessions(texts, arguments.seed)

    def keyer() -> PromptKeyer:
        return PromptKeyer(PromptTokenizer(tokenizer_json), template, budget_seconds=BUDGET_SECONDS)

    for name, tokens in LENGTHS.items():
        report.progress(f"chats of {tokens:,} tokens")
        count = QUICK_CHATS if arguments.quick else CHATS[name]
        made = chats(recorded, tokens, count, counting)
        if not made:
            raise ValueError(f"the texts are too short for a chat of {tokens:,} tokens")
        cold, warm = await measure(keyer, made)
        theirs = baseline(encode, made)
        messages = sum(len(chat.second) for chat in made) // len(made)
        report.heading(f"Chats of {tokens:,} tokens, {messages} messages, by {counting.encoder}")
        _report(report, name, cold, warm, theirs, SPEED_GOALS.get(counting.encoder))


def _report(report: Report, name: str, cold: Costs, warm: Costs, theirs: float, speed_goal: float | None) -> None:
    judged = name == "8k"
    for kind, words, costs in (("follow_up", "next turn", warm), ("cold", "new prompt", cold)):
        for step in STEPS:
            report.add(f"{kind}_{name}_{step}_us", costs.steps[step], f"{words}: {step}", unit=" us")
        goal = FOLLOW_UP_GOAL_US if judged and kind == "follow_up" else None
        report.add(f"{kind}_{name}_us", costs.whole, f"{words}: in all", unit=" us", at_most=goal)
    report.add(f"baseline_{name}_us", theirs, "transformers.apply_chat_template, tokenised", unit=" us")
    suffix = "" if judged else f"_{name}"
    report.add(f"cold_mb_per_s{suffix}", cold.bytes_per_second / 1e6, "new text tokenised", unit=" MB/s",
               at_least=speed_goal if judged else None)  # fmt: skip
    report.add(f"warm_over_baseline{suffix}", theirs / warm.whole, "transformers over a next turn",
               at_least=WARM_GOAL if judged else None)  # fmt: skip
    report.add(f"cold_over_baseline{suffix}", theirs / cold.whole, "transformers over a new prompt",
               at_least=COLD_GOAL if judged else None)  # fmt: skip


def _transformers(folder: Path) -> Encode:
    """`apply_chat_template` of the same model. Its import takes seconds, and sets nothing here."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return lambda messages: tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.prompts",
        description="What a prompt costs on its way to keys, beside transformers.",
        epilog="Example: WARMROUTE_BENCH_TEXTS=texts python -m bench.prompts --seed 3",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the chats' order, and of generated text (default 1)")
    parser.add_argument("--quick", action="store_true", help="few chats, to see that it works")
    parser.add_argument("--json", action="store_true", help="print the JSON object only")
    parser.add_argument("--model", type=Path, help="folder of a model's tokenizer and template (default: the built-in)")
    return parser
