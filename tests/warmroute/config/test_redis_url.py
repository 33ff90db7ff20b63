"""What a URL of Redis may say; refusals give a remedy and no password."""

from __future__ import annotations

import re

import pytest
from pydantic import ValidationError

from warmroute.config.redis import RedisConfig
from warmroute.config.redis_url import RedisTarget, parse, redacted

PASSWORD = "s3cr3t"


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("redis://host", RedisTarget("single", False, (("host", 6379),))),
        ("redis://host:1/2", RedisTarget("single", False, (("host", 1),), database=2)),
        ("redis://host:1/", RedisTarget("single", False, (("host", 1),))),
        (
            "rediss://me:p%40s%2Fs@[::1]:6380/1",
            RedisTarget("single", True, (("::1", 6380),), database=1, username="me", password="p@s/s"),
        ),
        ("redis://:p@host", RedisTarget("single", False, (("host", 6379),), password="p")),
        ("redis://me@host", RedisTarget("single", False, (("host", 6379),), username="me")),
        ("unix:///run/redis.sock", RedisTarget("single", False, socket="/run/redis.sock")),
        ("unix://:p@/run/r?db=3", RedisTarget("single", False, socket="/run/r", database=3, password="p")),
        ("redis+sentinel://a,b:2/main", RedisTarget("sentinel", False, (("a", 26379), ("b", 2)), master="main")),
        ("rediss+sentinel://a/main/4", RedisTarget("sentinel", True, (("a", 26379),), master="main", database=4)),
        ("redis+cluster://a,[::1]:2", RedisTarget("cluster", False, (("a", 6379), ("::1", 2)))),
        ("rediss+cluster://u:p@a/0", RedisTarget("cluster", True, (("a", 6379),), username="u", password="p")),
    ],
)
def test_urls(url: str, target: RedisTarget) -> None:
    assert parse(url) == target
    assert RedisConfig(url=url).target == target


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        (f"foo://u:{PASSWORD}@h", "must begin with redis://"),
        (f"redis://u:{PASSWORD}@h:port", "malformed"),
        (f"redis://u:{PASSWORD}@h:0", "1 to 65535"),
        (f"redis://u:{PASSWORD}@a,b", "one server has one host"),
        (f"redis://u:{PASSWORD}@h/x", "database's number"),
        (f"redis://u:{PASSWORD}/x@h", "malformed"),
        (f"redis://u:{PASSWORD}@h/0/1", "too long"),
        (f"redis://u:{PASSWORD}@h?ssl_cert_reqs=none", "settings of their own"),
        (f"redis://h?password={PASSWORD}", "settings of their own"),
        (f"redis+sentinel://u:{PASSWORD}@h", "name Sentinel's master"),
        (f"redis+cluster://u:{PASSWORD}@h/1", "database 0 alone"),
        (f"unix://u:{PASSWORD}@run/redis.sock", "full path"),
        ("redis://", "malformed"),
    ],
)
def test_refusals_give_a_remedy_and_no_password(url: str, remedy: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RedisConfig(url=url)
    (problem,) = caught.value.errors()
    assert remedy in problem["msg"]
    assert PASSWORD not in f"{problem['msg']} {problem['input']!r} {redacted(url)}"


def test_a_configuration_shows_no_password() -> None:
    config = RedisConfig(url=f"redis+sentinel://u:{PASSWORD}@h/m", sentinel_password=PASSWORD)
    assert PASSWORD not in repr(config)
    assert PASSWORD not in repr(config.target)
    assert PASSWORD not in repr(RedisConfig(password=PASSWORD))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"url": "redis://u@h", "username": "v"}, "username: redis.url names a user too"),
        ({"url": f"redis://:{PASSWORD}@h", "password": f"{PASSWORD}2"}, "password: redis.url has a password too"),
        ({"url": f"redis://:{PASSWORD}@h", "password_file": "/p"}, "password_file: redis.url has a password too"),
        ({"password": PASSWORD, "password_file": "/p"}, "password_file: redis.password is set too"),
        ({"password": {PASSWORD: PASSWORD}}, "password: Input should be a valid string"),
        (
            {"sentinel_password": PASSWORD},
            r"sentinel_password: it is for Sentinels: redis.url must begin with redis\+s",
        ),
        ({"tls_ca_file": "/ca"}, "tls_ca_file: it is for TLS: redis.url must begin with rediss://"),
        ({"url": "rediss://h", "tls_key_file": "/k"}, "tls_key_file: set redis.tls_cert_file"),
    ],
)
def test_fields_that_do_not_fit_are_named_without_the_password(fields: dict, reason: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RedisConfig(**fields)
    text = "\n".join(
        f"{problem['loc'][0]}: {problem['msg'].removeprefix('Value error, ')} {problem['input']!r}"
        for problem in caught.value.errors()
    )
    assert re.search(reason, text)
    assert PASSWORD not in text


def test_a_password_of_digits_is_text() -> None:
    assert RedisConfig(password=12345).password == "12345"
