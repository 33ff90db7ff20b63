"""The configuration model: one YAML file; environment variables and flags override it by one rule.

The file has one section a command (`gateway`, `indexer`, `worker`, `agent`, `index`, `explain`, `up`, `demo`,
`replay`) and shared ones (`redis`, `grpc`, `tenants`, `log`). A field `gateway.admin_port` is the flag `--admin-port`
of `warmroute gateway` and the environment variable `WARMROUTE_GATEWAY_ADMIN_PORT`; one of a shared section keeps its
section in the flag, as `--redis-url`. Flags win over the environment, the environment over the file, the file over
defaults. Values of flags and variables are YAML, so lists and mappings can be given too. Unknown fields are errors.
Relative paths start at the folder of the file, those of flags and variables where the command is called.
"""

from __future__ import annotations

from warmroute.config.agent import AgentConfig
from warmroute.config.explain import ExplainConfig
from warmroute.config.gateway import GatewayConfig
from warmroute.config.grpc import GrpcConfig
from warmroute.config.index import IndexConfig
from warmroute.config.indexer import IndexerConfig
from warmroute.config.local import DemoConfig, UpConfig
from warmroute.config.log import LogConfig
from warmroute.config.redis import RedisConfig
from warmroute.config.replay import ReplayConfig
from warmroute.config.setting_types import Section
from warmroute.config.tenants import TenantsConfig
from warmroute.config.worker import WorkerConfig


class Config(Section):
    """The whole file."""

    log: LogConfig = LogConfig()
    redis: RedisConfig = RedisConfig()
    grpc: GrpcConfig = GrpcConfig()
    tenants: TenantsConfig = TenantsConfig()
    gateway: GatewayConfig = GatewayConfig()
    indexer: IndexerConfig = IndexerConfig()
    worker: WorkerConfig = WorkerConfig()
    agent: AgentConfig = AgentConfig()
    index: IndexConfig = IndexConfig()
    explain: ExplainConfig = ExplainConfig()
    up: UpConfig = UpConfig()
    demo: DemoConfig = DemoConfig()
    replay: ReplayConfig = ReplayConfig()
