"""All policies: the contracts that routing rests on, and what each declares to need."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.policies.facts import CandidateFacts, PrefillRate, RequestFacts
from gateway.routing.policies.policy import Fact, Weight
from gateway.routing.policies.registry import POLICIES
from tests.gateway.routing.policies.support import WEIGHTS, candidates, request, winner
from warmroute.config.pool import Weights
from warmroute.config.setting_types import PolicyName


@pytest.mark.parametrize("name", POLICIES)
@given(workers=candidates, tokens=st.integers(0, 100_000), seed=st.integers(0, 9), affinity=st.integers(0, 2**64 - 1))
def test_every_policy_explains_every_candidate_and_repeats_itself(
    name: str, workers: list[CandidateFacts], tokens: int, seed: int, affinity: int
) -> None:
    facts = request(tokens, seed, affinity)
    untouched = [replace(worker) for worker in workers]
    first = POLICIES[name].choose(facts, workers, WEIGHTS, Random(seed))
    again = POLICIES[name].choose(facts, workers, WEIGHTS, Random(seed))
    assert first == again
    assert workers == untouched
    assert [term.worker for term in first.terms] == [worker.worker for worker in workers]
    assert first.terms[first.winner].cost == min(term.cost for term in first.terms)
    assert all(math.isfinite(term.cost) and term.work_tokens >= 0 for term in first.terms)


@pytest.mark.parametrize("name", ["warm", "least_requests", "prefix_only", "lmetric"])
def test_every_policy_breaks_ties_at_random(name: str) -> None:
    workers = [CandidateFacts(name, 64, 0, 500, 700, 3, 0.5, 1000) for name in "abc"]
    assert {winner(POLICIES[name].choose, 1000, *workers, seed=seed) for seed in range(50)} == {"a", "b", "c"}


@pytest.mark.parametrize("name", ["warm", "lmetric"])
@given(
    workers=candidates.filter(lambda workers: len(workers) > 1), tokens=st.integers(1, 100_000), late=st.integers(0, 11)
)
def test_what_is_unknown_is_the_median_of_the_others(
    name: str, workers: list[CandidateFacts], tokens: int, late: int
) -> None:
    late %= len(workers)
    workers = [replace(worker, reported_waiting_tokens=worker.reported_waiting_tokens or 0) for worker in workers]
    workers[late] = replace(workers[late], reported_waiting_tokens=None)
    others = [worker.reported_waiting_tokens for worker in workers if worker.reported_waiting_tokens is not None]
    term = POLICIES[name].choose(request(tokens), workers, WEIGHTS, Random(0)).terms[late]
    assert term.pending_tokens == max(median(others), workers[late].reserved_tokens)


def test_the_registry_is_what_a_configuration_can_name_and_what_the_chart_accepts() -> None:
    assert list(POLICIES) == list(get_args(PolicyName))
    assert all(name == policy.name for name, policy in POLICIES.items())
    root = Path(__file__).parents[4]
    schema = json.loads((root / "deploy" / "helm" / "warmroute" / "values.schema.json").read_text())
    policy = schema["$defs"]["poolPolicy"]
    enums = [each["enum"] for each in objects(policy) if "enum" in each]
    assert enums
    assert all(set(filter(None, enum)) == set(POLICIES) for enum in enums)


def objects(value: object) -> list[dict[str, Any]]:
    """The value's objects of JSON, at any depth."""
    if isinstance(value, dict):
        return [value, *(found for each in value.values() for found in objects(each))]
    return [found for each in value for found in objects(each)] if isinstance(value, list) else []


def test_facts_and_weights_that_can_be_declared_are_those_that_exist() -> None:
    facts = {each.name for kind in (RequestFacts, CandidateFacts) for each in fields(kind)} - {"worker"}
    assert set(get_args(Fact)) == facts
    assert set(get_args(Weight)) == set(Weights.model_fields)


def costs(name: str, asked: RequestFacts, workers: list[CandidateFacts], weights: Weights) -> list[float]:
    return [term.cost for term in POLICIES[name].choose(asked, workers, weights, Random(1)).terms]


PLAIN = CandidateFacts("", 0, 0, 0, 0, 0, None, 0, None, 0, None)
"""A worker of which nothing is known."""


@pytest.mark.parametrize("name", POLICIES)
@given(workers=candidates, tokens=st.integers(0, 100_000), affinity=st.integers(0, 2**64 - 1))
def test_a_fact_or_weight_that_is_not_declared_changes_no_cost(
    name: str, workers: list[CandidateFacts], tokens: int, affinity: int
) -> None:
    policy, asked = POLICIES[name], request(tokens, 3, affinity)
    hidden = {fact: getattr(PLAIN, fact) for fact in set(get_args(Fact)) - policy.facts if hasattr(PLAIN, fact)}
    unasked = {fact: 0 for fact in set(get_args(Fact)) - policy.facts if hasattr(asked, fact)}
    unweighed = dict.fromkeys(set(get_args(Weight)) - policy.weights, 0.5)
    bare = [replace(worker, **hidden) for worker in workers]
    without = costs(name, replace(asked, **unasked), bare, WEIGHTS.model_copy(update=unweighed))
    assert costs(name, asked, workers, WEIGHTS) == without


CHANGES = {
    "sequence": 4,
    "prompt_tokens": 4000,
    "affinity": 5,
    "matched_tokens": 900,
    "host_tokens": 200,
    "reserved_tokens": 70_000,
    "reported_waiting_tokens": 80_000,
    "in_flight": 9,
    "kv_use": 0.99,
    "kv_capacity_tokens": 2000,
    "rate": PrefillRate(1e-3, 0.5, 1e-4),
    "slots": 2,
    "eviction": 0.7,
    "stay_seconds": 9.0,
    "usual_work_tokens": 70.0,
}


@pytest.mark.parametrize("name", POLICIES)
def test_each_fact_and_weight_that_is_declared_changes_a_cost(name: str) -> None:
    """On three workers of which nearly all is known, one of them changed; with few slots, of which it has none free, or
    with many."""
    rate = PrefillRate(1e-4, 0.1, 1e-5)
    worker = CandidateFacts("a", 512, 128, 1000, 700, 2, 0.93, 100_000, rate, 3, 0.5)
    workers = [worker, replace(worker, worker="b", in_flight=3), replace(worker, worker="c")]
    asked, weights = replace(request(2000, 3, 77), stay_seconds=2.0, usual_work_tokens=900.0), Weights(context=0.5)
    bases = [workers, [replace(each, slots=8) for each in workers]]
    before = [costs(name, asked, base, weights) for base in bases]
    for fact in POLICIES[name].facts:
        change = {fact: CHANGES[fact]}
        if hasattr(asked, fact):
            after = [costs(name, replace(asked, **change), base, weights) for base in bases]
        else:
            # Of all workers at once too: a policy may draw the workers that it looks at.
            after = [costs(name, asked, [replace(each, **change) for each in base], weights) for base in bases]
        assert after != before, fact
    for weight in POLICIES[name].weights:
        assert costs(name, asked, workers, weights.model_copy(update={weight: 0.125})) != before[0], weight
