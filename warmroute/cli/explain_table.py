"""The text of `warmroute explain`, made for 100 columns: the prompt, what each worker costs, what each holds, the
winner."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from warmroute.cli.index_prompt import REASONS
from warmroute.cli.index_table import NOTHING, WIDTH, align, cut, number

MILLIONS: Final = 1_000_000
"""From here on a number of tokens is written in millions."""
ROWS: Final = 20
"""Workers shown; --json has all."""
NAME_WIDTH: Final = 20
SOURCES: Final = 6
"""Parts of a prompt that are named, those with most tokens."""

View = Mapping[str, Any]


def explanation_text(explanation: View) -> str:
    """The whole answer, without a last line end. Raises KeyError and TypeError for what is none of a gateway's."""
    prompt, decision = explanation["prompt"], explanation["decision"]
    lines = _prompt_lines(explanation, prompt)
    candidates = [each for each in decision["workers"] if each["terms"] is not None]
    removed = [each for each in decision["workers"] if each["terms"] is None]
    if candidates:
        shown = _shown(candidates, decision["winner"])
        lines += ["", *_cost_lines(shown, decision)]
        lines += ["", *_match_lines(shown)]
        if len(shown) < len(candidates):
            lines.append(f"{len(candidates) - len(shown):,} more cost more or the same; --json has all.")
    if removed:
        lines += ["", *_wrapped(_removed(removed))]
    return "\n".join([*lines, "", *_wrapped(_winner(decision)), *_notes(explanation, candidates)])


def _prompt_lines(explanation: View, prompt: View) -> list[str]:
    what = f"Pool {explanation['pool']}: {explanation['path']}, model {explanation['model']}"
    if explanation["adapter"]:
        what += " (an adapter)"
    if prompt["load_only"] is not None:
        length = f"about {number(prompt['tokens'], 'token')}" if prompt["tokens"] else "of a length that is not known"
        reason = REASONS.get(prompt["load_only"], prompt["load_only"])
        return _wrapped(f"{what}; a prompt {length}, routed by load alone: {reason}")
    size = prompt["index_block_tokens"]
    whole = f"{what}; {number(prompt['tokens'], 'token')} = {number(prompt['blocks'], 'index block')} of {size} tokens"
    rest = prompt["tokens"] - prompt["blocks"] * size
    if rest > 0:
        whole += f", and {rest:,} without a key"
    if not prompt["exact"]:
        whole += "; the engine may count otherwise: it puts in tokens of media, or cuts what is too long"
    lines = _wrapped(whole)
    if prompt["segments"]:
        lines += _wrapped(f"Tokens from {_sources(prompt['segments'])}")
    return lines


def _sources(segments: Sequence[View]) -> str:
    tokens: Counter[str] = Counter()
    for segment in segments:
        tokens[segment["source"]] += segment["tokens"]
    largest = {source for source, _ in tokens.most_common(SOURCES)}
    named = [f"{source} {count:,}" for source, count in tokens.items() if source in largest]
    rest = [count for source, count in tokens.items() if source not in largest]
    return ", ".join([*named, *([f"{len(rest):,} other parts {sum(rest):,}"] if rest else [])])


def _shown(candidates: Sequence[View], winner: View | None) -> list[View]:
    """The least costs, and the winner whatever it costs."""
    shown = list(candidates[:ROWS])
    name = None if winner is None else winner["worker"]
    if name is not None and all(each["worker"] != name for each in shown):
        shown[-1:] = [each for each in candidates if each["worker"] == name]
    return shown


def _cost_lines(shown: Sequence[View], decision: View) -> list[str]:
    unit, winner = decision["unit"], decision["winner"]["worker"]
    head = ("", "WORKER", "COST", "PENDING", "UNCACHED", "STREAMS", "PRICE", "DECODE", "MEMORY", "SLOT", "1ST BYTE")
    rows = [head]
    for each in shown:
        terms = each["terms"]
        rows.append(
            (
                "*" if each["worker"] == winner else " ",
                cut(each["worker"], NAME_WIDTH),
                _cost(terms["cost"], unit),
                _cost(terms["pending_tokens"], "tokens"),
                f"{terms['uncached_tokens']:,.0f}",
                f"{terms['in_flight']:,}",
                _price(terms),
                _cost(terms["decode"], unit) if terms["decode"] else NOTHING,
                _cost(terms["memory"], unit) if terms["memory"] else NOTHING,
                _cost(terms["slot_wait"], unit) if terms.get("slot_wait") else NOTHING,
                NOTHING if each["estimate_seconds"] is None else f"{each['estimate_seconds']:.3f} s",
            )
        )
    weights = ", ".join(
        f"{name} {'measured' if value is None else f'{value:g}'}" for name, value in decision["weights"].items()
    )
    said = f" ({weights})" if decision["policy"] == "warm" else ""
    return [*_wrapped(f"Policy {decision['policy']}{said}; costs in {unit}:"), *align(rows, left=(0, 1))]


def _price(terms: View) -> str:
    """Of an uncached token, beside its prefill and the streams that it stalls; gateways of former releases do not
    say."""
    price = terms.get("eviction", 0.0) + terms.get("queued", 0.0)
    return f"{1 + price:.2f}" if price else NOTHING


def _match_lines(shown: Sequence[View]) -> list[str]:
    head = ("  WORKER", "MATCHED", "DEVICE", "HOST", "ROUTED", "EXPECTED", "WAITING", "KV USE", "INDEX")
    rows = [head]
    for each in shown:
        match, load = each["match"], each["load"]
        rows.append(
            (
                "  " + cut(each["worker"], NAME_WIDTH),
                f"{match['matched_tokens']:,}",
                *(
                    f"{match[name]:,}" if match[name] else NOTHING
                    for name in ("device_tokens", "host_tokens", "approximate_tokens", "predicted_tokens")
                ),
                NOTHING if load["waiting_tokens"] is None else f"{load['waiting_tokens']:,}",
                NOTHING if load["kv_use"] is None else f"{load['kv_use']:.0%}",
                each["index"],
            )
        )
    return ["Prompt tokens that each holds, and what it reports:", *align(rows, left=(0, 8))]


def _removed(removed: Sequence[View]) -> str:
    named = [
        f"{cut(each['worker'], NAME_WIDTH)} ({each['removed_by']}; holds {each['match']['matched_tokens']:,})"
        for each in removed[:ROWS]
    ]
    more = f" and {len(removed) - ROWS:,} more" if len(removed) > ROWS else ""
    return f"Not considered: {', '.join(named)}{more}."


def _winner(decision: View) -> str:
    winner, unit = decision["winner"], decision["unit"]
    if winner is None:
        return "No worker can be asked: a client would get 503."
    text = f"Winner: {cut(winner['worker'], NAME_WIDTH)}, at {_cost(winner['cost'], unit)} {unit}"
    if winner["tied"] > 1:
        return f"{text}; {winner['tied']:,} cost the same, of which one is drawn each time."
    if winner["next_best"] is None:
        return f"{text}; there is no other."
    margin = winner["margin"]
    more = f"{_cost(abs(margin), unit)} {'more' if margin >= 0 else 'less'}"
    return f"{text}; {cut(winner['next_best'], NAME_WIDTH)} would cost {more}."


def _notes(explanation: View, candidates: Sequence[View]) -> list[str]:
    notes = []
    if explanation["decision"]["bookings"] == "own":
        notes.append("what other gateways have in flight is not known: own bookings and workers' reports count")
    unreported = sum(each["load"]["waiting_tokens"] is None for each in candidates)
    if unreported and unreported < len(candidates):
        notes.append(f"{number(unreported, 'worker')} without a fresh report count as the others' median")
    if late := sum(each["index"] == "late" for each in candidates):
        notes.append(f"{number(late, 'worker')} late in the index: only what is expected there counts as held")
    if explanation["prompt"]["counted_by"] == "engine":
        notes.append("the token ids are the engine's: replies counted others than this gateway")
    return [line for note in notes for line in _wrapped(f"note: {note}")]


def _cost(value: float, unit: str) -> str:
    if unit == "tokens":
        return f"{value:,.0f}" if value < MILLIONS else f"{value / 1e6:,.1f}M"
    return f"{value:.3f}" if unit == "seconds" else f"{value:g}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ")
