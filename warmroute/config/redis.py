"""The section `redis`, which all parts share."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from warmroute.config.redis_url import RedisTarget, parse
from warmroute.config.secret import conceal
from warmroute.config.setting_types import RedisUrl, Section


class RedisConfig(Section):
    """The Redis or Valkey server, Sentinel group or cluster (7 or newer, maxmemory-policy noeviction) that holds the
    index. User and password stand in the URL or in fields of their own; a password file is read for every connection.
    """

    url: RedisUrl = Field(
        "redis://127.0.0.1:6379/0",
        repr=False,
        description="redis://, rediss:// (TLS) or unix:// URL; redis+sentinel://host:26379,.../master-name or "
        "redis+cluster://host:6379,... (rediss+... with TLS) for several servers",
    )
    username: str | None = Field(None, description="ACL user; the default user when left out")
    password: str | None = Field(None, repr=False, description="password")
    password_file: Path | None = Field(None, description="file that holds the password")
    sentinel_username: str | None = Field(None, description="ACL user on the Sentinels")
    sentinel_password: str | None = Field(None, repr=False, description="password of the Sentinels")
    sentinel_password_file: Path | None = Field(None, description="file that holds the password of the Sentinels")
    tls_ca_file: Path | None = Field(None, description="PEM file of authorities to trust; the system's when left out")
    tls_cert_file: Path | None = Field(None, description="PEM file of the client's certificate, for mutual TLS")
    tls_key_file: Path | None = Field(None, description="PEM file of its key, where the certificate's has none")
    tls_check_hostname: bool = Field(True, description="whether the server's certificate must name the host")
    tls_verify: bool = Field(True, description="whether the server's certificate is checked at all; false is insecure")
    timeout_seconds: float = Field(5.0, ge=1, le=10, description="deadline of one call, in seconds")

    @property
    def target(self) -> RedisTarget:
        """What the URL says."""
        return parse(self.url)

    # Checks across fields hang on single ones, so that errors show that one's value and no password.
    @field_validator("username", "password", "password_file")
    @classmethod
    def _once(cls, value: object, info: ValidationInfo) -> object:
        target = _target(info)
        if value is None or target is None:
            return value
        if info.field_name == "username" and target.username:
            raise ValueError("redis.url names a user too: give it in one place")
        if info.field_name != "username" and target.password:
            raise ValueError("redis.url has a password too: give it in one place")
        if info.field_name == "password_file" and info.data.get("password"):
            raise ValueError("redis.password is set too: leave one out")
        return value

    @field_validator("sentinel_username", "sentinel_password", "sentinel_password_file")
    @classmethod
    def _of_sentinels(cls, value: object, info: ValidationInfo) -> object:
        target = _target(info)
        if value is not None and target is not None and target.topology != "sentinel":
            raise ValueError("it is for Sentinels: redis.url must begin with redis+sentinel:// or rediss+sentinel://")
        if value is not None and info.field_name == "sentinel_password_file" and info.data.get("sentinel_password"):
            raise ValueError("redis.sentinel_password is set too: leave one out")
        return value

    @field_validator("tls_ca_file", "tls_cert_file", "tls_key_file")
    @classmethod
    def _of_tls(cls, value: object, info: ValidationInfo) -> object:
        target = _target(info)
        if value is not None and target is not None and not target.tls:
            raise ValueError(
                "it is for TLS: redis.url must begin with rediss://, rediss+sentinel:// or rediss+cluster://"
            )
        if value is not None and info.field_name == "tls_key_file" and info.data.get("tls_cert_file") is None:
            raise ValueError("set redis.tls_cert_file to the certificate of this key")
        return value

    # The last one, so that it wraps those above.
    @field_validator("password", "sentinel_password", mode="before")
    @classmethod
    def _concealed(cls, value: object) -> object:
        return conceal(value)


def _target(info: ValidationInfo) -> RedisTarget | None:
    """What the URL says; None where the URL itself is refused."""
    url = info.data.get("url")
    return parse(url) if url is not None else None
