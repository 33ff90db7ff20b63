"""What `IndexService.Describe` says of one stream."""

from __future__ import annotations

from collections.abc import Mapping

from indexer.layout import Tier
from indexer.server.load_board import LoadTable
from indexer.server.session import Claim, Session
from indexer.server.validation import TIER_NUMBERS
from warmroute.v1 import index_pb2 as pb


def describe(session: Session, claim: Claim, loads: LoadTable, now: float) -> pb.WorkerDescription:
    """The worker as its stream knows it; `now` in seconds of `time.monotonic`."""
    facts = claim.facts
    description = pb.WorkerDescription(
        pool=claim.pool,
        worker_id=claim.worker[1],
        epoch=claim.owner.epoch,
        address=facts.address,
        model=facts.model,
        engine=facts.engine,
        engine_version=facts.engine_version,
        seq=session.seq if session.in_step else 0,
        held=_by_tier(session.held),
        capacity=_by_tier(facts.capacity),
        stream_seconds=now - session.started_at,
    )
    if (known := loads.get(claim.worker, session)) is not None:
        load, received_at = known
        description.load.CopyFrom(load)
        description.load_age_ms = max(0, int((now - received_at) * 1000))
    return description


def _by_tier(keys: Mapping[Tier, int] | Mapping[str, int]) -> list[pb.TierCapacity]:
    # A stream that removes what it had before it began counts below zero.
    return [
        pb.TierCapacity(tier=number, keys=max(0, keys[tier])) for tier, number in TIER_NUMBERS.items() if tier in keys
    ]
