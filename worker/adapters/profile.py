"""What an engine says of itself at the start, and what of its flags keeps its cache from being seen.

A finding says what is wrong and what exactly to change. `warmroute doctor` prints the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from warmroute.config.agent import AgentConfig
from worker.adapters.engine_client import EngineClient, EngineError
from worker.adapters.engine_metrics import EngineFacts, MetricsReader
from worker.adapters.engines.base import About, Engine, Finding
from worker.adapters.engines.registry import engine_named, known_metrics
from worker.adapters.sources import MOST_RANKS, EventSource, SourcesError, from_settings
from worker.publish.offered_files import ModelFiles

logger = logging.getLogger(__name__)

_LISTED: Final = 1024
# As an indexer takes it.
MOST_BLOCK_TOKENS: Final = 4096
MOST_NAME_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class Rank:
    """One data-parallel rank. `cache_tokens` is 0 where nobody says how much it holds."""

    number: int
    block_tokens: int
    cache_tokens: int
    most_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """An engine as it is now. Equal profiles need no new start. `adapters`: name -> path of its weights, or ""."""

    version: str
    model: str
    model_path: str
    ranks: tuple[Rank, ...]
    sources: tuple[EventSource, ...]
    started_at: float | None = field(default=None, compare=False)
    adapters: Mapping[str, str] = field(default_factory=dict, compare=False)
    findings: tuple[Finding, ...] = field(default=(), compare=False)
    approximate: bool = field(default=False, compare=False)
    """Whether gateways must guess what the cache holds."""

    @property
    def blind(self) -> bool:
        """Whether no events can be had."""
        return any(finding.blind for finding in self.findings)


async def probe(client: EngineClient, config: AgentConfig) -> Profile:
    """Ask the engine about itself. Raises EngineError while it does not answer."""
    engine = engine_named(config.engine)
    findings: list[Finding] = []
    models = await client.json("/v1/models")
    model, model_path, adapters = read_models(models)
    if config.model is None and not model:
        raise EngineError(f"{client.url}/v1/models names no model; give --model", status=200)
    about = await engine.about(client)
    scrape = MetricsReader(known_metrics(), quiet=True).read(await client.text_or_empty("/metrics"))
    sources: Sequence[EventSource] = ()
    try:
        if config.events_endpoint is None:
            sources = await engine.sources(client)
        else:
            events, replay, ranks_given = config.events_endpoint, config.replay_endpoint, config.ranks or 1
            sources = from_settings(events, replay, ranks_given, bind=config.events_bind)
    except SourcesError as error:
        findings.append(Finding(error.what, error.remedy, blind=True))
    ranks = _ranks(config, engine, about, scrape.facts, sources)
    findings += _check(config, engine, scrape.facts, sources, ranks)
    return Profile(
        about.version,
        config.model or model,
        model_path,
        ranks,
        tuple(sources),
        scrape.started_at,
        adapters,
        tuple(findings),
        approximate=not engine.publishes_events or any(finding.blind for finding in findings),
    )


def read_models(answer: object) -> tuple[str, str, dict[str, str]]:
    """Base model, path of its folder and adapters, from `GET /v1/models`."""
    listed = answer.get("data") if isinstance(answer, Mapping) else None
    entries = [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []
    bases = [(_name(entry), str(entry.get("root") or "")) for entry in entries if not entry.get("parent")]
    adapters = {_name(entry): str(entry.get("root") or "") for entry in entries[:_LISTED] if entry.get("parent")}
    adapters.pop("", None)
    model, path = bases[0] if bases else ("", "")
    return model, path, adapters


def _name(entry: Mapping[str, Any]) -> str:
    """What the entry is called, or "" where an indexer would take no such name."""
    name = entry.get("id")
    return name if isinstance(name, str) and len(name.encode()) <= MOST_NAME_BYTES else ""


def model_files(config: AgentConfig, profile: Profile) -> ModelFiles:
    """The files of the model's folder that gateways need, where it can be read here; else none. Blocks.

    The folder is what the settings say, else the engine's own, else what the engine has fetched from the Hugging Face
    hub, where its cache (HF_HOME) can be read here.
    """
    folder = config.model_path or _engines_folder(profile.model_path)
    if folder is None:
        return ModelFiles()
    try:
        return ModelFiles.from_folder(folder)
    except (OSError, ValueError) as error:  # ValueError: a path that can be none
        logger.warning("the model's folder cannot be read: %s", error)
        return ModelFiles()


def _engines_folder(said: str) -> Path | None:
    if not said or said.startswith("/"):
        return Path(said) if said else None
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(said, local_files_only=True))
    except (ImportError, OSError, ValueError):  # no such package, nothing there, no name of the hub
        return None


def _ranks(
    config: AgentConfig,
    engine: Engine,
    about: About,
    facts: Mapping[int, EngineFacts],
    sources: Sequence[EventSource],
) -> tuple[Rank, ...]:
    """The ranks that publish events, under the engine's numbers: one server of several may have some of them only."""
    by_source = {source.rank: source.block_tokens for source in sources}
    numbers = sorted(by_source) or range(config.ranks or min(MOST_RANKS, max(1, len(facts))))
    ranks = []
    for rank in numbers:
        said = facts.get(rank) or EngineFacts()
        block = config.engine_block_tokens or by_source.get(rank) or said.block_tokens or about.block_tokens
        cache = config.cache_tokens or said.cache_tokens or about.cache_tokens
        block = block or engine.default_block_tokens
        most = None if config.cache_tokens else said.most_blocks
        ranks.append(Rank(rank, block, cache, most or (cache // block if cache else None)))
    return tuple(ranks)


def _check(
    config: AgentConfig,
    engine: Engine,
    facts: Mapping[int, EngineFacts],
    sources: Sequence[EventSource],
    ranks: Sequence[Rank],
) -> list[Finding]:
    """What costs sight or exactness, beside missing events."""
    findings: list[Finding] = []
    if any(said.prefix_caching is False for said in facts.values()):
        findings.append(
            Finding(
                "the engine caches no prefixes",
                "start it with --enable-prefix-caching",
                blind=engine.publishes_events,
            )
        )
    if sources and all(source.replay is None for source in sources):
        findings.append(
            Finding(
                "the engine keeps no events to ask for again, so that each lost one starts a new epoch",
                'add "replay_endpoint": "tcp://*:5558" to its --kv-events-config',
            )
        )
    if sources and config.ranks not in {None, len(sources)}:
        findings.append(
            Finding(
                f"the engine publishes events of {len(sources)} ranks, not {config.ranks}",
                f"leave out --ranks or give --ranks {len(sources)}",
            )
        )
    for rank in ranks[:1]:
        block, index = rank.block_tokens, config.index_block_tokens
        findings += engine.findings(block)
        if block > MOST_BLOCK_TOKENS:
            findings.append(
                Finding(
                    f"the engine's blocks of {block} tokens are larger than an index takes",
                    f"give the engine blocks of at most {MOST_BLOCK_TOKENS} tokens",
                    blind=True,
                )
            )
        elif index % block and block % index:
            findings.append(
                Finding(
                    f"engine blocks of {block} tokens and index blocks of {index} do not line up",
                    "give all agents and workers of the pool an --index-block-tokens that is a multiple or a divisor",
                    blind=True,
                )
            )
        if not rank.cache_tokens:
            findings.append(
                Finding("nobody says how many tokens the engine's cache holds", "give --cache-tokens, or its /metrics")
            )
    return findings
