"""Traffic of agents that call tools: a synthetic mix, shaped after published excerpts of Mooncake's tool-agent trace.

38 % of the requests share a template of 12 blocks (6.2k to 8.2k tokens, replies of 3 to 35), 17 % one of 5 blocks (3k
to 3.5k tokens, replies of 14 to 26), and 45 % are those of a real conversation trace, in its order. Poisson arrivals.
It stands in for the real trace, which is too large to pass around; its figures compare policies and nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count, cycle
from random import Random
from typing import Final

from gateway.replay.trace import Trace, TraceRequest

REQUESTS: Final = 16_000
REQUESTS_A_SECOND: Final = 6.55
_TEMPLATE_KEYS: Final = 1 << 40
_OWN_KEYS: Final = 1 << 41


def toolmix(conversation: Trace, *, seed: int = 1) -> Trace:
    """The mix, with the conversation trace's requests as its chats."""
    random = Random(seed)
    chats, own_keys = cycle(conversation.requests), count(_OWN_KEYS)
    size = conversation.block_tokens
    at, requests = 0.0, []
    for _ in range(REQUESTS):
        at += random.expovariate(REQUESTS_A_SECOND)
        draw = random.random()
        if draw >= 0.55:
            requests.append(replace(next(chats), at=at))
            continue
        if draw < 0.38:
            template, shared, tokens, reply = 0, 12, random.randint(6166, 8180), random.choice((3, 3, 27, 35))
        else:
            template, shared, tokens, reply = 1, 5, random.randint(3000, 3480), random.randint(14, 26)
        first = _TEMPLATE_KEYS + 1000 * template
        keys = list(range(first, first + shared))
        keys += [next(own_keys) for _ in range(tokens // size - shared)]
        requests.append(TraceRequest(at, tokens, reply, keys))
    return Trace("toolmix", size, requests)
