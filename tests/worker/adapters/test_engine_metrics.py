"""Load and facts from the metrics of real engines, old names and new ones."""

from __future__ import annotations

import math

import pytest

from tests.worker.adapters.support import fixtures
from worker.adapters.engine_metrics import MetricsReader
from worker.adapters.engines.registry import known_metrics
from worker.adapters.numbers import MOST
from worker.events import EngineLoad


def test_a_busy_engine() -> None:
    scrape = MetricsReader(known_metrics()).read((fixtures() / "vllm-metrics-busy.txt").read_text())
    assert scrape.loads[0].running_requests == 3
    assert scrape.loads[0].waiting_requests == 2
    assert scrape.loads[0].waiting_tokens == int(2 * 19356 / 112)
    assert scrape.loads[0].kv_cache_usage == pytest.approx(0.7734375)
    facts = scrape.facts[0]
    assert (facts.block_tokens, facts.cache_tokens, facts.prefix_caching) == (16, 4112, True)


def test_an_idle_engine_says_when_it_began() -> None:
    scrape = MetricsReader(known_metrics()).read((fixtures() / "vllm-metrics.txt").read_text())
    assert scrape.loads == {0: EngineLoad()}
    assert scrape.started_at == 1.79598424975e09


def test_ranks_have_loads_and_facts_of_their_own() -> None:
    scrape = MetricsReader(known_metrics()).read((fixtures() / "vllm-metrics-dp2.txt").read_text())
    assert set(scrape.loads) == {0, 1}
    # 514 blocks there are those of both ranks.
    assert [scrape.facts[rank].cache_tokens for rank in (0, 1)] == [4112, 4112]


def test_names_of_earlier_versions_and_of_sglang() -> None:
    old = """vllm:num_requests_running{model_name="m"} 1.0
vllm:num_requests_waiting{model_name="m"} 4.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:prompt_tokens_total{model_name="m"} 1000.0
vllm:gpu_prefix_cache_hits_total{model_name="m"} 400.0
vllm:request_success_total{finished_reason="stop",model_name="m"} 4.0
vllm:request_success_total{finished_reason="length",model_name="m"} 2.0
vllm:cache_config_info{block_size="32",num_gpu_blocks="100",enable_prefix_caching="False"} 1.0
"""
    scrape = MetricsReader(known_metrics()).read(old)
    assert scrape.loads[0] == EngineLoad(1, 4, 400, 0.5)
    assert (scrape.facts[0].cache_tokens, scrape.facts[0].prefix_caching) == (3200, False)
    sglang = """sglang:num_running_reqs{engine_type="unified",dp_rank="1"} 2.0
sglang:num_queue_reqs{engine_type="unified",dp_rank="1"} 1.0
sglang:token_usage{dp_rank="1"} 0.25
sglang:max_total_num_tokens{dp_rank="1"} 5000.0
sglang:page_size{dp_rank="1"} 64.0
"""
    scrape = MetricsReader(known_metrics()).read(sglang)
    assert scrape.loads == {1: EngineLoad(2, 1, 0, 0.25)}
    assert (scrape.facts[1].block_tokens, scrape.facts[1].cache_tokens) == (64, 5000)


def test_missing_metrics_are_neutral_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    reader = MetricsReader(known_metrics())
    for _ in range(3):
        assert reader.read("vllm:num_requests_running 2.0\n").loads == {0: EngineLoad(running_requests=2)}
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        "the engine's metrics lack waiting requests",
        "the engine's metrics lack cache use",
    ]


@pytest.mark.parametrize("text", ["", "\x00", "vllm:num_requests_running{", "vllm:num_requests_running x\n", "{" * 99])
def test_what_is_no_metric_is_nothing(text: str) -> None:
    assert MetricsReader(known_metrics()).read(text).loads == {}


def test_the_mean_follows_what_requests_bring_now() -> None:
    reader = MetricsReader(known_metrics())
    text = """vllm:num_requests_waiting 1.0
vllm:request_prefill_kv_computed_tokens_sum {tokens}
vllm:request_prefill_kv_computed_tokens_count {requests}
"""
    tokens = requests = 0
    for uncached, number in ((1000, 1000), (10, 4000)):
        tokens, requests = tokens + uncached * number, requests + number
        scrape = reader.read(text.format(tokens=tokens, requests=requests))
        assert scrape.loads[0].waiting_tokens == pytest.approx(uncached, abs=1)
    # Counters that went back are those of another process.
    assert reader.read(text.format(tokens=70, requests=1)).loads[0].waiting_tokens < 100


@pytest.mark.parametrize("value", ["1e300", "-1", "NaN", "+Inf", "9" * 5000, "0.5"])
def test_numbers_that_cannot_be_meant_are_bounded(value: str) -> None:
    text = f"""vllm:num_requests_running {value}
vllm:num_requests_running {value}
vllm:num_requests_waiting {value}
vllm:request_prefill_kv_computed_tokens_sum {value}
vllm:request_prefill_kv_computed_tokens_count 1
vllm:cache_config_info{{block_size="{value}",num_gpu_blocks="{value}"}} 1
sglang:page_size{{dp_rank="1"}} {value}
sglang:max_total_num_tokens{{dp_rank="1"}} {value}
vllm:kv_cache_usage_perc{{engine="{value}"}} {value}
process_start_time_seconds {value}
"""
    scrape = MetricsReader(known_metrics()).read(text)
    for load in scrape.loads.values():
        assert 0 <= load.running_requests <= MOST
        assert 0 <= load.waiting_tokens <= MOST
        assert 0 <= load.kv_cache_usage <= 1
    for facts in scrape.facts.values():
        for found in (facts.block_tokens, facts.cache_tokens, facts.most_blocks):
            assert found is None or 0 < found <= MOST
    assert scrape.started_at is None or math.isfinite(scrape.started_at)


def test_ranks_and_lines_are_bounded() -> None:
    lines = [f'vllm:num_requests_running{{engine="{rank}"}} 1' for rank in range(20_000)]
    reader = MetricsReader(known_metrics())
    assert len(reader.read("\n".join(lines)).loads) == 1024
    reader.read("\n".join(lines[10_000:]))
    assert len(reader._uncached) == 1024
    facts = [f'vllm:cache_config_info{{engine="{rank}",block_size="16"}} 1' for rank in range(5000)]
    assert len(reader.read("\n".join(facts)).facts) == 1024
