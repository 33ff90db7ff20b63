"""Pools as the public port sees them, and the public model names that lead to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.entrypoint.upstream import UpstreamPool
from gateway.prompts.keyer import PromptKeyer
from gateway.routing.router import PoolRouter


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool. `keyer` is None where the gateway has no tokenizer for it."""

    router: PoolRouter
    keyer: PromptKeyer | None
    upstreams: UpstreamPool | None = None
    """Connections of its own, where its workers want TLS or a key; None: those that pools share."""

    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.router.config.name)

    @property
    def routing(self) -> str:
        """How prompts are routed now, and if only by load, why."""
        if self.keyer is None:
            return "by load: no tokenizer (model_path)"
        if not self.router.index.mirror.workers:
            return "by load: no worker has published to the index yet"
        if self.router.key_space() is None:
            return "by load: no worker in the index keys with this tokenizer"
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

    def pool(self, name: str) -> Pool | None:
        """The pool with this name."""
        return next((pool for pool in self._pools.values() if pool.name == name), None)

    def find(self, public: str) -> Served | None:
        if (served := self._bases.get(public) or self._aliases.get(public)) is not None:
            return served
        for pool in self._pools.values():
            if public in pool.router.adapters:
                return Served(pool, public, public, alias=False)
        return None

    def names(self) -> list[str]:
        """All of them, sorted."""
        names = {*self._pools, *self._aliases}
        for pool in self._pools.values():
            names |= pool.router.adapters
        return sorted(names)
