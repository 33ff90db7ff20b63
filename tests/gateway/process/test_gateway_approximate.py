"""A worker whose Hello says that it publishes no events: chosen, used and shown without anybody's saying so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from gateway.process.gateway import Gateway
from gateway.routing.state.predictions import Predictions
from indexer.keys import pool_fingerprint
from tests.gateway.http.support import Message, client, run, worker
from tests.gateway.process.test_gateway import healthy_then
from tests.gateway.requests.support import as_json
from tests.indexer.support import hello, indexer, running
from tests.support import eventually, redis_client
from warmroute.config.gateway import GatewayConfig
from warmroute.v1 import index_pb2 as pb
from warmroute.v1 import index_pb2_grpc
from worker.model_cache import ensure_model

BODY = b'{"model": "m", "prompt": [%b]}' % b", ".join(b"%d" % token for token in range(640))
REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


@asynccontextmanager
async def said_hello(indexer_address: str, **facts: Any) -> AsyncIterator[None]:
    """A worker's stream, open after its Hello and an empty snapshot."""
    async with grpc.aio.insecure_channel(indexer_address) as channel:
        stream = index_pb2_grpc.IndexServiceStub(channel).Publish()
        await stream.write(pb.PublishRequest(hello=hello(**facts)))
        answer = await stream.read()
        assert isinstance(answer, pb.PublishResponse)
        assert answer.HasField("welcome"), answer
        await stream.write(pb.PublishRequest(snapshot=pb.SnapshotChunk(epoch=facts["epoch"], seq=1, last=True)))
        yield
        stream.cancel()


async def matched(port: int) -> int:
    async with client(port) as connected:
        answer: Message = await connected.ask(REQUEST)
    assert answer.status == 200
    return int(answer.header(b"x-warmroute-matched-tokens") or b"")


def forgotten(predictions: Predictions, now: float) -> bool:
    """Whether nothing is expected any more of what was just routed."""
    predictions.expire(now)
    return predictions.keys == 0


def test_it_is_chosen_used_and_shown(redis_url: str) -> None:
    async def reply(link) -> None:
        await link.send(as_json(b"{}"))

    async def scenario() -> None:
        async with (
            worker(lambda link: healthy_then(link, reply)) as engine,
            indexer(redis_url) as index,
            redis_client(redis_url) as redis,
        ):
            address = f"127.0.0.1:{engine.port}"
            pool = {"name": "p", "model": "m", "model_path": str(ensure_model()), "workers": [address]}
            settings = GatewayConfig.model_validate({"port": 0, "indexers": [index.address], "pools": [pool]})
            gateway = Gateway(settings, redis, name="g")
            router = gateway.pools["m"].router

            def shown() -> tuple[int, int]:
                """As /readyz and the gauge say it."""
                gateway._set_gauges()
                gauge = gateway.registry.get_sample_value("warmroute_gateway_approximate_workers", {"pool": "p"})
                return gateway.readiness()[1]["pools"]["p"]["approximate_workers"], int(gauge or 0)

            try:
                async with running(*gateway.tasks()):
                    await gateway.server.start()
                    await eventually(lambda: gateway.readiness()[0], within=30)
                    digest = gateway.pools["m"].keyer.tokenizer.digest
                    fingerprint = pool_fingerprint(index_block_tokens=64, base_model="m", tokenizer=digest)
                    facts = {"pool": "p", "model": "m", "address": address, "pool_fingerprint": fingerprint}
                    facts["files"] = [pb.ModelFile(name="tokenizer.json", digest=digest, size=1)]
                    async with said_hello(index.address, **facts, epoch=1, publishes_events=False):
                        await eventually(
                            lambda: (
                                router.census.current().worker_facts
                                and not router.census.current().worker_facts[0].publishes_events
                            )
                        )
                        assert shown() == (1, 1)
                        assert "of 1 of 1 workers" in gateway.pools["m"].routing
                        assert await matched(gateway.server.port) == 0
                        assert await matched(gateway.server.port) == 624
                    # It comes back with events: now its own word counts, and it has said nothing of the prompt.
                    async with said_hello(index.address, **facts, epoch=2):
                        await eventually(
                            lambda: (
                                router.census.current().worker_facts
                                and router.census.current().worker_facts[0].publishes_events
                            )
                        )
                        assert shown() == (0, 0)
                        await eventually(lambda: forgotten(router.state.predictions, router.clock()))
                        assert await matched(gateway.server.port) == 0
            finally:
                await gateway.stop()

    run(scenario())
