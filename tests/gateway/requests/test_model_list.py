"""The list of models: base models, aliases, and the adapters that workers have."""

from __future__ import annotations

import orjson

from tests.gateway.http.support import run
from tests.gateway.support import gate


def test_models_are_merged_with_aliases_and_adapters() -> None:
    async def scenario() -> None:
        async with gate(1, aliases={"public": "lora-a", "base": "m"}) as gateway:
            gateway.pool.hold("w0", [], adapters=("lora-a", "lora-b"))
            listed = orjson.loads((await gateway.ask("GET", "/v1/models")).body)["data"]
            assert [model["id"] for model in listed] == ["base", "lora-a", "lora-b", "m", "org/other@x y", "public"]
            shown = orjson.loads((await gateway.ask("GET", "/v1/models/public")).body)
            assert (shown["root"], shown["parent"]) == ("lora-a", "m")

    run(scenario())
