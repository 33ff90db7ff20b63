"""One rule for flags, environment and file; every refusal names field, value, origin and remedy."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from warmroute.cli.settings import ConfigError, add_flags, load, unknown_variables
from warmroute.config.model import Config
from warmroute.config.pool import StaticWorker


def configure(*argv: str, environment: dict[str, str] | None = None, section: str = "gateway") -> Config:
    parser = argparse.ArgumentParser()
    add_flags(parser, section, "redis")
    return load(parser.parse_args(argv), environment or {}, section, "redis")


def refused(*argv: str, environment: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        configure(*argv, environment=environment)
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "warmroute.yaml"
    path.write_text(
        "redis: {url: 'redis://file:6379/0'}\n"
        "gateway:\n"
        "  port: 1\n"
        "  admin_port: 2\n"
        "  attempts: 4\n"
        "  pools:\n"
        "    - {name: p, model: m, workers: [{address: '127.0.0.1:8100'}]}\n"
        "indexer: {port: 3}\n"
    )
    return path


def test_flags_win_over_environment_over_file_over_defaults(file: Path) -> None:
    environment = {
        "WARMROUTE_GATEWAY_PORT": "10",
        "WARMROUTE_GATEWAY_ADMIN_PORT": "20",
        "WARMROUTE_REDIS_URL": "redis://env",
    }
    config = configure("--config", str(file), "--port", "100", environment=environment)
    assert (config.gateway.port, config.gateway.admin_port, config.gateway.attempts) == (100, 20, 4)
    assert config.gateway.host == "127.0.0.1"
    assert config.redis.url == "redis://env"
    assert config.gateway.pools[0].workers == (StaticWorker(address="127.0.0.1:8100"),)
    assert config.indexer.port == 3


def test_relative_paths_in_the_file_start_at_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "warmroute.yaml"
    path.write_text(
        "redis: {url: 'rediss://x', tls_ca_file: ca.pem}\n"
        "tenants: {keys_file: ../keys.yaml, salt_secret: tls_ca_file}\n"
        "gateway:\n"
        "  access_log: access.log\n"
        "  unix_socket: /run/gateway.sock\n"
        "  pools:\n"
        "    - {name: p, model: m, model_path: models/m, workers: ['a:1'], upstream_tls: {ca_file: ca.pem}}\n"
    )
    config = configure("--config", str(path))
    pool = config.gateway.pools[0]
    assert config.redis.tls_ca_file == tmp_path / "ca.pem"
    assert config.tenants.keys_file == tmp_path / "../keys.yaml"
    assert config.tenants.salt_secret == "tls_ca_file"
    assert (config.gateway.access_log, config.gateway.unix_socket) == (
        tmp_path / "access.log",
        Path("/run/gateway.sock"),
    )
    assert (pool.name, pool.model, pool.model_path) == ("p", "m", tmp_path / "models/m")
    assert pool.upstream_tls is not None
    assert pool.upstream_tls.ca_file == tmp_path / "ca.pem"
    # Of flags and variables: where the command is called.
    environment = {"WARMROUTE_GATEWAY_UNIX_SOCKET": "here.sock"}
    config = configure("--config", str(path), "--access-log", "here.log", environment=environment)
    assert (config.gateway.access_log, config.gateway.unix_socket) == (Path("here.log"), Path("here.sock"))
    for word in ("off", "json"):
        path.write_text(f"gateway: {{access_log: '{word}'}}\n")
        assert configure("--config", str(path)).gateway.access_log == word
    assert "access_log" in refused("--access-log", "")


def test_the_example_of_the_documentation_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/by-hand.md").read_text()
    path = tmp_path / "warmroute.yaml"
    path.write_text(page.split("```yaml\n")[1].split("```")[0])
    config = configure("--config", str(path))
    assert [worker.address for worker in config.gateway.pools[0].workers] == ["127.0.0.1:8100", "127.0.0.1:8101"]
    assert config.worker.model == config.gateway.pools[0].model


def test_the_file_can_be_named_in_the_environment(file: Path) -> None:
    assert configure(environment={"WARMROUTE_CONFIG": str(file)}).gateway.port == 1


def test_lists_and_mappings_are_yaml_in_flags_too() -> None:
    config = configure("--indexers", "[a:1, b:2]", "--pools", '[{"model": "m", "weights": {"w": 0.5}}]')
    assert config.gateway.indexers == ("a:1", "b:2")
    assert config.gateway.pools[0].weights.w == 0.5


def test_lists_may_be_separated_by_commas_and_workers_be_plain_addresses() -> None:
    config = configure("--indexers", "a:1, b:2", "--pools", '[{"model": "m", "workers": ["c:3", {"address": "d:4"}]}]')
    assert config.gateway.indexers == ("a:1", "b:2")
    assert [worker.address for worker in config.gateway.pools[0].workers] == ["c:3", "d:4"]
    assert "give a list, such as [a, b]" in refused("--pools", "{}")
    assert "give a mapping" in refused("--pools", "[7]")


def test_variables_that_only_look_like_settings_are_found() -> None:
    environment = {"WARMROUTE_GATEWAY_PROT": "1", "WARMROUTE_GATEWAY_PORT": "1", "WARMROUTE_CACHE_DIR": "/x"}
    assert unknown_variables(environment, "gateway", "redis") == ["WARMROUTE_GATEWAY_PROT"]


def test_text_is_taken_as_it_is_and_null_unsets() -> None:
    config = configure("--indexer", "null", "--model", "on", "--worker-id", "123", section="worker")
    assert config.worker.indexer is None
    assert config.worker.model == "on"
    assert config.worker.worker_id == "123"
    assert configure("--advertise-address", "null", section="worker").worker.advertise_address is None


def test_a_wrong_value_names_field_value_origin_and_meaning() -> None:
    message = refused(environment={"WARMROUTE_GATEWAY_PORT": "tcp://10.0.0.1:80"})
    assert "gateway.port: 'tcp://10.0.0.1:80' (from WARMROUTE_GATEWAY_PORT) is refused" in message
    assert "port of the OpenAI API" in message
    assert "gateway.attempts: 0 (from --attempts)" in refused("--attempts", "0")


def test_an_unknown_field_names_the_known_ones(file: Path) -> None:
    file.write_text("gateway: {prot: 8000}\n")
    message = refused("--config", str(file))
    assert "gateway.prot" in message
    assert str(file) in message
    assert "port" in message
    file.write_text("gateway: {pools: [{model: m, polcy: warm}]}\n")
    message = refused("--config", str(file))
    assert "gateway.pools.0.polcy" in message
    assert "policy" in message


def test_a_missing_field_is_named(file: Path) -> None:
    file.write_text("gateway: {pools: [{name: p}]}\n")
    assert "gateway.pools.0.model is missing" in refused("--config", str(file))


def test_redis_urls_are_checked() -> None:
    assert "redis.url: 'foo://x' (from --redis-url)" in refused("--redis-url", "foo://x")
    assert "redis.url" in refused("--redis-url", "redis://host:port")
    assert configure("--redis-url", "rediss://:p%40ss@[::1]:6380/1").redis.url.startswith("rediss")


def test_two_pools_need_two_names() -> None:
    assert "two pools have the name" in refused("--pools", '[{"model": "a"}, {"model": "b"}]')
    assert "two pools have the model" in refused(
        "--pools", '[{"name": "a", "model": "m"}, {"name": "b", "model": "m"}]'
    )


@pytest.mark.parametrize("indexers", ["[indexer]", "[':1']", "['a:0']", "['a:70000']", "['a..b:1']", "['::1:80']"])
def test_indexers_are_host_and_port(indexers: str) -> None:
    assert "gateway.indexers.0" in refused("--indexers", indexers)


@pytest.mark.parametrize("content", ["[1]", "gateway: 7", "a: b: c", "\x00"])
def test_files_that_are_no_settings(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    assert str(path) in refused("--config", str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "cannot be read" in refused("--config", str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    "address", ["", "host", "host:port", "http://host:1", "user@host:1", "a b:1", "a:99999", "::1:80"]
)
def test_worker_addresses_are_host_and_port(address: str) -> None:
    assert "gateway.pools.0.workers.0.address" in refused(
        "--pools", f'[{{"model": "m", "workers": [{{"address": "{address}"}}]}}]'
    )


@pytest.mark.parametrize(
    "content",
    [
        "redis: {password: s3cr3t: x}",
        'redis:\n  password: "s3cr3t',
        "redis: {url: [s3cr3t]}",
        "redis: {url: {a: s3cr3t}}",
    ],
)
def test_what_is_no_setting_is_never_printed_whole(tmp_path: Path, content: str) -> None:
    path = tmp_path / "warmroute.yaml"
    path.write_text(content)
    assert "s3cr3t" not in refused("--config", str(path))


@pytest.mark.parametrize("value", [".inf", ".nan"])
def test_infinite_times_are_refused(value: str) -> None:
    assert "drain_seconds" in refused("--drain-seconds", value)


def test_an_ipv6_address_needs_no_quotes() -> None:
    assert configure("--indexers", "[::1]:50051").gateway.indexers == ("[::1]:50051",)
