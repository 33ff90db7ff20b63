"""Pools as the public port sees them, and the public model names that lead to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.http.upstream import UpstreamPool
from gateway.prompts.engine_tokens import EngineTokens
from gateway.prompts.keyer import PromptKeyer
from gateway.prompts.pool_prompts import PoolPrompts
from gateway.prompts.self_check import TokenIdSource
from gateway.routing.router import PoolRouter


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool, and what its prompts are keyed with."""

    router: PoolRouter
    prompts: PoolPrompts = field(default_factory=PoolPrompts)
    upstreams: UpstreamPool | None = None
    """Connections of its own, where its workers want TLS or a key; None: those that pools share."""

    engine_tokens: EngineTokens = field(default_factory=EngineTokens)
    """Asked where the gateway's own token ids turn out to be wrong."""

    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.router.config.name)

    @property
    def keyer(self) -> PromptKeyer | None:
        """The keyer in use now; None while the gateway has no tokenizer for the pool."""
        return self.prompts.keyer

    @property
    def routing(self) -> str:
        """How prompts are routed now, and if only by load, why."""
        if self.keyer is None:
            return f"by load: no tokenizer: {self.prompts.trouble}"
        census = self.router.census.current()
        if census.space is None:
            known = bool(self.router.state.index.mirror.workers)
            why = "no worker in the index keys with this tokenizer" if known else "no worker is known yet"
            return f"by load: {why}"
        match self.prompts.check.source(self.router.clock()):
            case TokenIdSource.ENGINE:
                return "by cache and load: the engine is asked for token ids, since replies counted others"
            case TokenIdSource.NONE:
                return "by load: replies count other prompt tokens than this gateway, and the engine tells none"
        approximate, workers = census.approximate, len(census.workers)
        if approximate:
            return f"by cache and load; of {approximate} of {workers} workers, by what was routed to them alone"
        return "by cache and load"


@dataclass(frozen=True, slots=True)
class Served:
    """What a public name stands for."""

    pool: Pool
    name: str
    """The engine's name for it."""
    adapter: str
    """Its LoRA adapter; "" for the base model."""
    alias: bool
    """The engine's name differs from the public one."""


class ModelTable:
    """Public names: base models, configured aliases, and the adapters that workers say they serve, in this order."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        """`pools`: base model's public name -> pool."""
        self._pools = pools
        self._bases = {name: Served(pool, name, "", alias=False) for name, pool in pools.items()}
        self._aliases: dict[str, Served] = {}
        for base, pool in pools.items():
            for public, target in pool.router.config.aliases.items():
                adapter = "" if target == base else target
                self._aliases[public] = Served(pool, target, adapter, alias=public != target)

    @property
    def only(self) -> Served | None:
        """The base model of the only pool; None where there are several."""
        return next(iter(self._bases.values())) if len(self._bases) == 1 else None

    def served(self, pool: str) -> Served | None:
        """The base model of the pool with this name."""
        return next((served for served in self._bases.values() if served.pool.name == pool), None)

    def find(self, public: str) -> Served | None:
        if (served := self._bases.get(public) or self._aliases.get(public)) is not None:
            return served
        for pool in self._pools.values():
            if public in pool.router.census.current().adapters:
                return Served(pool, public, public, alias=False)
        return None

    def names(self) -> list[str]:
        """All of them, sorted."""
        names = {*self._pools, *self._aliases}
        for pool in self._pools.values():
            names |= pool.router.census.current().adapters
        return sorted(names)
