"""`warmroute demo`: one scripted conversation, routed warm and round-robin, turn by turn beside each other."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any, Final

import aiohttp
import orjson

from warmroute.cli.children import free_ports
from warmroute.cli.script import QUESTIONS, system_prompt
from warmroute.cli.stack import MODEL, Plan, Ports, Stack, model_folder, say_on_stderr
from warmroute.config.local import DemoConfig
from warmroute.config.log import LogConfig
from warmroute.process.lifecycle import StartupError

LANES: Final = {"warm": "warm", "round_robin": "round robin"}
TURN_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one lane. Tokens, and seconds from sending the request to the reply's first event."""

    lane: str
    turn: int
    worker: str
    prompt_tokens: int
    matched_tokens: int
    cached_tokens: int
    ttft_seconds: float
    reply: str


def run(config: DemoConfig, log: LogConfig, *, as_json: bool) -> int:
    """Start everything privately, converse, print, stop. Raises StartupError."""
    ports = iter(free_ports(2 * (1 + config.workers + len(LANES))))

    def pair() -> Ports:
        return Ports(next(ports), next(ports))

    plan = Plan(
        host="127.0.0.1",
        indexer=pair(),
        workers=[pair() for _ in range(config.workers)],
        gateways=[("gateway-warm", "warm", pair()), ("gateway-round-robin", "round_robin", pair())],
        redis_url=config.redis_url,
        model_path=model_folder(),
        start_seconds=config.start_seconds,
        log=log,
    )
    say_on_stderr(f"Starting the index, {config.workers} workers and two gateways ...")
    with Stack(plan, say_on_stderr):
        gateways = dict(zip(LANES, (gateway.main for _, _, gateway in plan.gateways), strict=True))
        turns = asyncio.run(_converse(config, gateways))
    figures = summarise(turns)
    print(_table(turns, figures), file=sys.stderr if as_json else sys.stdout, flush=True)
    if as_json:
        print(json.dumps({**figures, "turns": [asdict(turn) for turn in turns]}), flush=True)
    return 0


async def _converse(config: DemoConfig, gateways: dict[str, int]) -> list[Turn]:
    """Hold the conversation in both lanes; each has a cache salt of its own, so that neither warms the other."""
    turns: list[Turn] = []
    histories = {lane: [{"role": "system", "content": system_prompt()}] for lane in LANES}
    salts = {lane: uuid.uuid4().hex for lane in LANES}
    timeout = aiohttp.ClientTimeout(total=TURN_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for number, question in enumerate(QUESTIONS, start=1):
            for lane, port in gateways.items():
                messages = histories[lane]
                messages.append({"role": "user", "content": question})
                body = {
                    "model": MODEL,
                    "messages": messages,
                    "max_tokens": config.max_tokens,
                    "temperature": 0,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                    "cache_salt": salts[lane],
                }
                turn = await _ask(session, port, body, lane, number)
                messages.append({"role": "assistant", "content": turn.reply})
                turns.append(turn)
                say_on_stderr(f"turn {number}, {LANES[lane]}: first byte after {turn.ttft_seconds:.2f} s")
            await asyncio.sleep(config.pause_seconds)
    return turns


async def _ask(session: aiohttp.ClientSession, port: int, body: dict[str, Any], lane: str, number: int) -> Turn:
    loop = asyncio.get_running_loop()
    sent_at = loop.time()
    ttft: float | None = None
    text: list[str] = []
    usage: dict[str, Any] = {}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    try:
        async with session.post(url, json=body) as response:
            if response.status != 200:
                raise StartupError(f"turn {number}: the gateway answered {response.status}: {await response.text()}")
            async for line in response.content:
                if not line.startswith(b"data:"):
                    continue
                ttft = ttft if ttft is not None else loop.time() - sent_at
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    break
                event = orjson.loads(data)
                if "error" in event:
                    raise StartupError(f"turn {number}: the reply broke off: {event['error'].get('message')}")
                usage = event.get("usage") or usage
                text.extend(choice["delta"].get("content") or "" for choice in event.get("choices", ()))
            headers = response.headers
    except (aiohttp.ClientError, TimeoutError) as error:
        raise StartupError(f"turn {number}: no reply: {error or type(error).__name__}") from error
    if ttft is None or not usage:
        raise StartupError(f"turn {number}: the reply had no events or no usage")
    return Turn(
        lane=lane,
        turn=number,
        worker=headers["x-warmroute-worker"],
        prompt_tokens=usage["prompt_tokens"],
        matched_tokens=int(headers["x-warmroute-matched-tokens"]),
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        ttft_seconds=ttft,
        reply="".join(text),
    )


def summarise(turns: list[Turn]) -> dict[str, Any]:
    """The figures of the comparison. Cold: turn 1 of a lane; warm: the mean of its later turns."""
    lanes = {lane: [turn for turn in turns if turn.lane == lane] for lane in LANES}
    later = {lane: mean(turn.ttft_seconds for turn in own[1:]) for lane, own in lanes.items()}
    warm = lanes["warm"]
    return {
        "ttft_ratio_cold_over_warm": round(warm[0].ttft_seconds / later["warm"], 2),
        "round_robin_ttft_ratio_cold_over_later": round(lanes["round_robin"][0].ttft_seconds / later["round_robin"], 2),
        "ttft_ratio_round_robin_over_warm": round(later["round_robin"] / later["warm"], 2),
        "warm_turns_on_warm_worker": sum(turn.worker == warm[0].worker for turn in warm[1:]),
        "max_abs_predicted_minus_reported": max(abs(turn.matched_tokens - turn.cached_tokens) for turn in turns),
        "warm_cold_ttft_seconds": round(warm[0].ttft_seconds, 4),
        "warm_later_ttft_seconds": round(later["warm"], 4),
        "round_robin_later_ttft_seconds": round(later["round_robin"], 4),
    }


def _table(turns: list[Turn], figures: dict[str, Any]) -> str:
    lines = ["", f"{'turn':>4}  {'routing':<12} {'worker':<10} {'prompt':>7} {'matched':>8} {'cached':>7} {'TTFT':>8}"]
    lines += [
        f"{turn.turn:>4}  {LANES[turn.lane]:<12} {turn.worker:<10} {turn.prompt_tokens:>7} {turn.matched_tokens:>8} "
        f"{turn.cached_tokens:>7} {turn.ttft_seconds:>6.2f} s"
        for turn in turns
    ]
    cold = figures["ttft_ratio_cold_over_warm"]
    cold_round_robin = figures["round_robin_ttft_ratio_cold_over_later"]
    lines += [
        "",
        "matched: tokens that the index expected on the chosen worker; cached: tokens the engine found there.",
        f"Warm: turns 2 to {len(QUESTIONS)} start answering {cold} times as fast as turn 1;",
        f"round robin: {cold_round_robin} times. Warm's later turns start answering",
        f"{figures['ttft_ratio_round_robin_over_warm']} times as fast as round robin's.",
    ]
    return "\n".join(lines)
