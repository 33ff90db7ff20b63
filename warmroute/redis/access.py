"""What Redis must permit each part: the commands it uses, as rules of an ACL.

    ACL SETUSER indexer on >PASSWORD ~wr:* +ping +info +eval +evalsha +hget ...
    ACL SETUSER gateway on >PASSWORD %R~wr:* ~wr-tenant:* ~wr-response:* ~wr-model:* &wr:*:flight +ping +hgetall ...

`indexer_rules()` and `gateway_rules()` give what follows the password, whole. HELLO and AUTH are free to all. A user
on Sentinels needs `+sentinel|get-master-addr-by-name` and no keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from warmroute.redis.client import Client

# The script's own commands are checked against the user too.
SCRIPT_COMMANDS: Final = (
    "get",
    "hdel",
    "hget",
    "hlen",
    "hset",
    "memory|usage",
    "sadd",
    "set",
    "srem",
    "time",
    "unlink",
    "xadd",
    "xlen",
    "xrevrange",
    "xtrim",
    "zadd",
    "zcard",
    "zrange",
    "zrangebyscore",
    "zrem",
    "zremrangebyscore",
    "zscore",
)
# The script of model files calls these too. An indexer without them keeps none, and does everything else.
FILE_COMMANDS: Final = ("exists", "persist", "pexpire", "rename", "setrange", "strlen")
INDEXER_COMMANDS: Final = ("ping", "info", "eval", "evalsha", "smembers", *SCRIPT_COMMANDS)
GATEWAY_COMMANDS: Final = ("ping", "get", "getrange", "hgetall", "smembers", "xrange", "xread", "xrevrange", "zrange")
# The scripts of tenants' limits and of stored responses, and what they call.
LIMIT_COMMANDS: Final = ("eval", "evalsha", "hdel", "hset", "pexpire", "time")
RESPONSE_COMMANDS: Final = ("hget", "zadd", "zcard", "zrangebyscore", "zrem")
# What gateways remember of model files that they refused.
REFUSAL_COMMANDS: Final = ("set",)
# What gateways tell each other, on the channel `wr:{pool}:flight`.
FLIGHT_COMMANDS: Final = ("spublish", "ssubscribe")
# To read a cluster's map.
CLUSTER_COMMANDS: Final = ("cluster|slots",)


def indexer_rules(*, cluster: bool = False) -> str:
    """Reads and writes keys of the index alone."""
    return _rules("~wr:*", (*INDEXER_COMMANDS, *FILE_COMMANDS), cluster)


def gateway_rules(*, cluster: bool = False) -> str:
    """Reads keys of the index, writes those of tenants' limits, of stored responses and of refused model files, and
    talks with the other gateways."""
    commands = (*GATEWAY_COMMANDS, *LIMIT_COMMANDS, *RESPONSE_COMMANDS, *REFUSAL_COMMANDS, *FLIGHT_COMMANDS)
    return _rules("%R~wr:* ~wr-tenant:* ~wr-response:* ~wr-model:* &wr:*:flight", commands, cluster)


async def missing_commands(redis: Client, commands: Iterable[str]) -> list[str]:
    """Those of the commands that this client's user may not call on the keys of the index.

    Raises NoPermissionError when it may not even run a script.
    """
    reply = await redis.execute_command("EVAL", _CHECK, 0, *commands)
    return [name.decode() for name in reply]


# The keys are arguments, so that any node of a cluster takes the script.
_CHECK: Final = """
local missing = {}
for _, name in ipairs(ARGV) do
  local command, subcommand = name:match('([^|]+)|?(.*)')
  local permitted
  if subcommand ~= '' then permitted = redis.acl_check_cmd(command, subcommand, 'wr:{check}', 'wr:{check}')
  else permitted = redis.acl_check_cmd(command, 'wr:{check}', 'wr:{check}') end
  if not permitted then table.insert(missing, name) end
end
return missing
"""


def _rules(keys: str, commands: tuple[str, ...], cluster: bool) -> str:
    return " ".join([keys, *(f"+{name}" for name in (*commands, *(CLUSTER_COMMANDS if cluster else ())))])
