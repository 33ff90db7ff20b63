"""Requests and workers that policies are tested on."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from gateway.routing.policies.facts import CandidateFacts, PrefillRate, RequestFacts
from gateway.routing.policies.policy import Choose
from warmroute.config.pool import Weights

WEIGHTS = Weights()
FAST, SLOW = PrefillRate(1e-5), PrefillRate(1e-4)

candidates = st.lists(
    st.builds(
        CandidateFacts,
        worker=st.text("abcdef", min_size=1, max_size=6),
        matched_tokens=st.integers(0, 4096),
        reserved_tokens=st.integers(0, 100_000),
        reported_waiting_tokens=st.none() | st.integers(0, 100_000),
        in_flight=st.integers(0, 200),
        kv_use=st.none() | st.floats(0, 1),
        kv_capacity_tokens=st.sampled_from([0, 100_000]),
        slots=st.sampled_from([0, 8, 64]),
        eviction=st.none() | st.floats(0, 20),
        rate=st.none() | st.builds(PrefillRate, st.floats(1e-6, 1e-2), st.floats(0, 1), st.floats(0, 1e-4)),
    ),
    min_size=1,
    max_size=12,
)


def request(tokens: int, sequence: int = 0, affinity: int = 0) -> RequestFacts:
    return RequestFacts(sequence, tokens, affinity)


def winner(choose: Choose, tokens: int, *workers: CandidateFacts, sequence: int = 0, seed: int = 0) -> str:
    decision = choose(request(tokens, sequence), workers, WEIGHTS, Random(seed))
    return workers[decision.winner].worker
