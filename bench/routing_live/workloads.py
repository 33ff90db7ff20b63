"""What the clients ask: chats of tenants, drawn from a seed, the same for every policy.

A chat begins at a fixed time, whatever became of the others; its turns follow each other, each a while after the reply
to the last. So a slow policy is not spared new chats, as a closed loop of clients would do.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from bench.relay.load import WORDS

UNSTREAMED_SHARE: Final = 0.1
"""Of the chats: their replies are not streamed."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A question `think_seconds` after the last reply. Nearly every word of it is one token."""

    question: str
    reply_tokens: int
    think_seconds: float


@dataclass(frozen=True, slots=True)
class Chat:
    """One conversation, begun `at` seconds after the workload."""

    tenant: str
    at: float
    system: str
    turns: tuple[Turn, ...]
    streamed: bool


@dataclass(frozen=True, slots=True)
class Workload:
    """Chats in the order of their beginnings, and the engines that they meet. `cache_tokens`: KV cache of each;
    `running_requests`: how many each runs at a time."""

    name: str
    about: str
    cache_tokens: int
    chats: tuple[Chat, ...]
    running_requests: int = 16

    @property
    def requests(self) -> int:
        return sum(len(chat.turns) for chat in self.chats)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of a workload. Chats begin within `seconds`; of the requests' rate, right for eight engines, `load` is
    asked; users take `think` of their time; chats have `turns` at most."""

    seconds: float
    load: float = 1.0
    think: float = 1.0
    turns: int = 100


@dataclass(frozen=True, slots=True)
class Tenants:
    """Tenants, each with a system prompt of its own; `hot_share` of the chats are the first one's."""

    tenants: int
    system_tokens: int
    question_tokens: int
    reply_tokens: int
    turns: int
    think_seconds: float
    requests_per_second: float
    hot_share: float = 0.0

    def chats(self, random: Random, scale: Scale) -> tuple[Chat, ...]:
        """Chats that begin as a Poisson process."""
        systems = [_text(random, self.system_tokens) for _ in range(self.tenants)]
        chats = []
        turns = min(self.turns, scale.turns)
        chats_per_second = scale.load * self.requests_per_second / turns
        at = random.expovariate(chats_per_second)
        while at < scale.seconds:
            tenant = 0 if random.random() < self.hot_share else random.randrange(bool(self.hot_share), self.tenants)
            questions = [self._turn(random, scale.think * self.think_seconds * bool(turn)) for turn in range(turns)]
            streamed = random.random() >= UNSTREAMED_SHARE
            chats.append(Chat(f"tenant-{tenant}", at, systems[tenant], tuple(questions), streamed))
            at += random.expovariate(chats_per_second)
        return tuple(chats)

    def _turn(self, random: Random, think_seconds: float) -> Turn:
        return Turn(
            _text(random, round(self.question_tokens * random.uniform(0.5, 1.5))),
            max(2, round(self.reply_tokens * random.uniform(0.5, 1.5))),
            random.expovariate(1 / think_seconds) if think_seconds else 0.0,
        )


@dataclass(frozen=True, slots=True)
class Bursts:
    """Every `every_seconds` a prompt that nobody has seen, asked `requests` times within `within_seconds`, each time
    with another question."""

    prompt_tokens: int
    requests: int
    within_seconds: float
    every_seconds: float
    question_tokens: int
    reply_tokens: int

    def chats(self, random: Random, scale: Scale) -> tuple[Chat, ...]:
        """Whole bursts; at less load there are fewer questions in each."""
        chats = []
        for number in range(max(1, round(scale.seconds / self.every_seconds))):
            prompt = _text(random, self.prompt_tokens)
            began = number * self.every_seconds
            for _ in range(max(2, round(scale.load * self.requests))):
                at = began + random.uniform(0, self.within_seconds)
                turn = Turn(_text(random, self.question_tokens), self.reply_tokens, 0.0)
                chats.append(Chat(f"burst-{number}", at, prompt, (turn,), streamed=random.random() >= UNSTREAMED_SHARE))
        return tuple(sorted(chats, key=lambda chat: chat.at))


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a workload is drawn."""

    about: str
    cache_tokens: int
    traffic: Tenants | Bursts
    running_requests: int = 16

    def workload(self, name: str, seed: int, scale: Scale) -> Workload:
        """The chats that a seed gives."""
        chats = self.traffic.chats(Random(f"{seed} {name}"), scale)
        return Workload(name, self.about, self.cache_tokens, chats, self.running_requests)


RECIPES: Final = {
    "tenants": Recipe(
        "24 tenants with system prompts of 1,500 tokens, chats of 5 turns",
        49_152,
        Tenants(24, 1500, 100, 24, 5, 1.0, requests_per_second=40),
    ),
    "hot_tenant": Recipe(
        "17 tenants with system prompts of 3,000 tokens, half of the traffic of one of them",
        65_536,
        Tenants(17, 3000, 60, 24, 5, 1.0, requests_per_second=40, hot_share=0.5),
    ),
    "slots": Recipe(
        "17 tenants with 4,000 tokens, half of the traffic of one, engines that run 8 requests at a time",
        200_000,
        Tenants(17, 4000, 60, 100, 4, 1.0, requests_per_second=30, hot_share=0.5),
        running_requests=8,
    ),
    "tight_cache": Recipe(
        "80 tenants with 1,500 tokens, of which one engine can keep 16, all together 131",
        24_576,
        Tenants(80, 1500, 80, 24, 5, 1.0, requests_per_second=24),
    ),
    "burst": Recipe(
        "every second a new prompt of 4,000 tokens, asked 32 times within 1.5 s",
        65_536,
        Bursts(4000, 32, 1.5, 1.0, 30, 16),
    ),
}


def _text(random: Random, tokens: int) -> str:
    return " ".join(random.choices(WORDS, k=tokens))
