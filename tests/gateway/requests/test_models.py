"""Public names: what they lead to, and that each leads to one thing."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gateway.requests.models import ModelTable, Pool
from tests.gateway.routing.support import Pool as RouterPool
from warmroute.config.gateway import GatewayConfig


def table() -> tuple[ModelTable, RouterPool]:
    pool = RouterPool(aliases={"public": "lora-a", "short": "m", "lora-b": "lora-b"})
    return ModelTable({"m": Pool(pool.router, None)}), pool


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("m", ("m", "", False)),
        ("public", ("lora-a", "lora-a", True)),
        ("short", ("m", "", True)),
        ("lora-b", ("lora-b", "lora-b", False)),
        ("lora-c", ("lora-c", "lora-c", False)),
        ("none", None),
    ],
)
def test_names(name: str, expected: tuple[str, str, bool] | None) -> None:
    models, pool = table()
    pool.hold("a", [], adapters=("lora-c",))
    served = models.find(name)
    assert (served and (served.name, served.adapter, served.alias)) == expected
    assert (name in models.names()) is (expected is not None)


def test_adapters_come_and_go_with_what_workers_say() -> None:
    models, pool = table()
    assert models.find("lora-c") is None
    pool.hold("a", [], adapters=("lora-c",))
    assert models.find("lora-c") is not None
    pool.hold("a", [])
    assert models.find("lora-c") is None


def test_the_only_pool() -> None:
    models, pool = table()
    assert models.only is not None
    assert models.only.name == "m"
    assert models.served("p") is models.only
    assert models.served("q") is None
    both = ModelTable({"m": Pool(pool.router, None), "n": Pool(pool.router, None)})
    assert both.only is None


@pytest.mark.parametrize(
    "aliases", [({"a": "x"}, {"a": "y"}), ({"two": "x"}, {}), ({"one": "one"}, {}), ({"a": ""}, {}), ({"": "a"}, {})]
)
def test_a_name_that_stands_for_two_models_is_refused(aliases: tuple[dict[str, str], dict[str, str]]) -> None:
    pools = [
        {"name": name, "model": name, "aliases": given} for name, given in zip(("one", "two"), aliases, strict=True)
    ]
    with pytest.raises(ValidationError):
        GatewayConfig(pools=pools)
