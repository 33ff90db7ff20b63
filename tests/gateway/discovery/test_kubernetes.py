"""Pod discovery against a real API server, directly and through a relay that misbehaves as networks do."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.discovery.kubernetes import KubernetesDiscovery, Pace, retry_wait
from gateway.routing.census.targets import Target
from warmroute.config.pool import KubernetesDiscoveryConfig

if TYPE_CHECKING:
    from conftest import ApiServer, Relay

A, B = "10.0.0.1:8100", "10.0.0.2:8100"
QUICK = Pace(retry_seconds=0.05, retry_limit_seconds=0.2)


class Seen:
    """What discovery reported, and a way to wait for it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Target, ...]] = []
        self._event = asyncio.Event()

    def __call__(self, targets: tuple[Target, ...]) -> None:
        self.calls.append(targets)
        self._event.set()

    @property
    def addresses(self) -> list[str]:
        return sorted(target.address for target in self.calls[-1]) if self.calls else []

    async def wait(self, *addresses: str, seconds: float = 20.0) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not self.calls or self.addresses != sorted(addresses):
                    self._event.clear()
                    await self._event.wait()
        except TimeoutError:
            pytest.fail(f"waited for {addresses}; the last of {len(self.calls)} reports is {self.addresses}")


async def until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while not condition():
        if clock() > deadline:
            pytest.fail(f"waited {seconds} s for: {what}")
        await asyncio.sleep(0.01)


@asynccontextmanager
async def running(
    config: KubernetesDiscoveryConfig, pace: Pace = QUICK
) -> AsyncIterator[tuple[KubernetesDiscovery, Seen]]:
    """Discovery in a task that must still be running at the end."""
    seen = Seen()
    discovery = KubernetesDiscovery(config, seen, pace)
    task = asyncio.create_task(discovery.run())
    try:
        yield discovery, seen
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_the_life_of_a_pod(
    api: ApiServer, namespace: str, configured: Callable[[str], KubernetesDiscoveryConfig]
) -> None:
    async def scenario() -> None:
        async with running(configured(api.url)) as (discovery, seen):
            await seen.wait()
            assert discovery.synced
            uid = api.create(namespace, "a")
            api.status(namespace, "a", ready=False)
            api.status(namespace, "a", ready=True)
            await seen.wait(A)
            assert seen.calls[-1] == (Target(uid=uid, host="10.0.0.1", port=8100, worker_id=uid, name="a"),)
            api.create(namespace, "b")
            api.status(namespace, "b", ip="10.0.0.2")
            await seen.wait(A, B)

            api.status(namespace, "a", ready=False)
            await seen.wait(B)
            api.status(namespace, "a", ready=True)
            await seen.wait(A, B)

            api.status(namespace, "a", ip=None)
            await seen.wait(B)
            api.status(namespace, "a")
            await seen.wait(A, B)

            api.label(namespace, "a", "warmroute.dev/pool", None)
            await seen.wait(B)
            api.label(namespace, "a", "warmroute.dev/pool", "main")
            await seen.wait(A, B)

            api.delete(namespace, "a")
            await seen.wait(B)

    asyncio.run(scenario())


def test_pods_of_other_selectors_and_namespaces_are_never_seen(
    api: ApiServer, namespace: str, configured: Callable[[str], KubernetesDiscoveryConfig]
) -> None:
    async def scenario() -> None:
        api.create(namespace, "other", labels={"warmroute.dev/pool": "other"})
        api.status(namespace, "other")
        api.create(namespace + "-2", "elsewhere")
        api.status(namespace + "-2", "elsewhere")
        async with running(configured(api.url)) as (_, seen):
            await seen.wait()
            api.create(namespace, "mine")
            api.status(namespace, "mine", ip="10.0.0.2")
            await seen.wait(B)
            assert all(target.address == B for report in seen.calls for target in report)

    asyncio.run(scenario())


def test_a_terminating_pod_is_out_while_it_is_still_ready(
    api: ApiServer, namespace: str, configured: Callable[[str], KubernetesDiscoveryConfig]
) -> None:
    async def scenario() -> None:
        # A finalizer keeps the object after its deletion is asked, as the kubelet does for the grace period.
        api.create(namespace, "a", finalizers=["warmroute.dev/test"])
        api.status(namespace, "a")
        async with running(configured(api.url)) as (_, seen):
            await seen.wait(A)
            api.delete(namespace, "a")
            await seen.wait()
            assert api.get(namespace, "a")["status"]["conditions"][0]["status"] == "True"

    asyncio.run(scenario())


def test_the_last_known_set_outlives_the_api_server_and_heals_after_it(
    api: ApiServer,
    new_api: Callable[..., ApiServer],
    namespace: str,
    configured: Callable[[str], KubernetesDiscoveryConfig],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        mortal = new_api()
        api.create(namespace, "a")
        api.status(namespace, "a")
        with caplog.at_level(logging.DEBUG, "gateway.discovery.kubernetes"):
            async with running(configured(mortal.url)) as (discovery, seen):
                await seen.wait(A)
                await until(lambda: discovery.watching, "a watch")
                reports = len(seen.calls)
                mortal.end(signal.SIGKILL)
                await until(lambda: not discovery.watching, "the broken watch is noticed")
                await until(lambda: len(caplog.records) >= 4, "some tries have failed")
                assert discovery.synced
                assert len(seen.calls) == reports
                # What the cluster does meanwhile, it tells another API server.
                api.delete(namespace, "a")
                api.create(namespace, "b")
                api.status(namespace, "b", ip="10.0.0.2")
                mortal.start()
                await seen.wait(B)
                await until(lambda: discovery.watching, "a watch again")
        warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(warnings) == 1, "one line an outage"
        assert "1 workers" in warnings[0].getMessage()

    asyncio.run(scenario())


def test_a_start_without_an_api_server_waits_for_it(
    new_api: Callable[..., ApiServer], namespace: str, configured: Callable[[str], KubernetesDiscoveryConfig]
) -> None:
    async def scenario() -> None:
        late = new_api()
        late.create(namespace, "a")
        late.status(namespace, "a")
        late.end(signal.SIGKILL)
        async with running(configured(late.url)) as (discovery, seen):
            assert not discovery.synced
            late.start()
            await seen.wait(A)
            assert discovery.synced

    asyncio.run(scenario())


def test_compacted_history_answers_410_and_a_list_heals(
    new_api: Callable[..., ApiServer],
    new_relay: Callable[[str], Relay],
    namespace: str,
    configured: Callable[[str], KubernetesDiscoveryConfig],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        uncached = new_api("-watch-cache=false")
        uncached.create(namespace, "a")
        uncached.status(namespace, "a")
        async with new_relay(uncached.url) as relay:
            relay.open.clear()
            with caplog.at_level(logging.INFO, "gateway.discovery.kubernetes"):
                async with running(configured(relay.url)) as (_, seen):
                    await seen.wait(A)
                    await relay.watch_asked.wait()
                    uncached.delete(namespace, "a")
                    uncached.create(namespace, "b")
                    uncached.status(namespace, "b", ip="10.0.0.2")
                    uncached.compact()
                    relay.open.set()
                    await seen.wait(B)
            assert relay.lists >= 2
        assert "expired" in caplog.text

    asyncio.run(scenario())


def test_a_lost_deletion_heals_after_the_watch_breaks(
    api: ApiServer,
    new_relay: Callable[[str], Relay],
    namespace: str,
    configured: Callable[[str], KubernetesDiscoveryConfig],
) -> None:
    async def scenario() -> None:
        for name, ip in (("a", "10.0.0.1"), ("b", "10.0.0.2")):
            api.create(namespace, name)
            api.status(namespace, name, ip=ip)
        async with new_relay(api.url) as relay:
            lost = asyncio.Event()

            def lose(line: bytes) -> bool:
                if b'"DELETED"' in line:
                    lost.set()
                return b"deletionTimestamp" in line  # MODIFIED, then DELETED

            relay.lose = lose
            async with running(configured(relay.url)) as (discovery, seen):
                await seen.wait(A, B)
                await until(lambda: discovery.watching, "a watch")
                api.delete(namespace, "a")
                await asyncio.wait_for(lost.wait(), 20)
                assert seen.addresses == [A, B]
                relay.break_streams()
                await seen.wait(B)

    asyncio.run(scenario())


def test_a_silent_watch_is_dropped_and_listed_again(
    api: ApiServer,
    new_relay: Callable[[str], Relay],
    namespace: str,
    configured: Callable[[str], KubernetesDiscoveryConfig],
) -> None:
    """The socket stays open and nothing comes: what a vanished node or an expired NAT entry look like."""

    async def scenario() -> None:
        api.create(namespace, "a")
        api.status(namespace, "a")
        async with new_relay(api.url) as relay:
            relay.lose = lambda line: True
            async with running(configured(relay.url), Pace(quiet_seconds=0.5, retry_seconds=0.05)) as (_, seen):
                await seen.wait(A)
                api.status(namespace, "a", ip="10.0.0.2")
                await seen.wait(B)
            assert relay.lists >= 2

    asyncio.run(scenario())


def test_a_watch_that_is_accepted_and_never_answered_is_dropped(
    api: ApiServer,
    new_relay: Callable[[str], Relay],
    namespace: str,
    configured: Callable[[str], KubernetesDiscoveryConfig],
) -> None:
    async def scenario() -> None:
        async with new_relay(api.url) as relay:
            relay.open.clear()
            pace = Pace(quiet_seconds=0.3, retry_seconds=0.05)
            async with running(configured(relay.url), pace) as (discovery, _):
                await until(lambda: relay.watches >= 2, "a second watch")
                assert not discovery.watching

    asyncio.run(scenario())


def test_a_bookmark_is_a_sign_of_life_and_nothing_more(
    api: ApiServer,
    new_relay: Callable[[str], Relay],
    namespace: str,
    configured: Callable[[str], KubernetesDiscoveryConfig],
) -> None:
    async def scenario() -> None:
        api.create(namespace, "a")
        api.status(namespace, "a")
        async with new_relay(api.url) as relay:
            bookmarks: list[bytes] = []

            def look(line: bytes) -> bool:
                if b'"BOOKMARK"' in line:
                    bookmarks.append(line)
                return False

            relay.lose = look
            # The API server sends one two seconds before it ends a watch, if anything has changed since its start.
            pace = Pace(watch_seconds=4, retry_seconds=0.05)
            async with running(configured(relay.url), pace) as (discovery, seen):
                await seen.wait(A)
                changed = 0

                def bookmarked() -> bool:
                    nonlocal changed
                    if discovery.watching and changed < relay.watches:
                        changed = relay.watches
                        api.label(namespace, "a", "watch", str(changed))
                    return bool(bookmarks)

                await until(bookmarked, "a bookmark")
                await until(lambda: relay.watches >= 2, "the next watch")
                assert len(seen.calls) == 1

    asyncio.run(scenario())


def test_the_server_ends_watches_and_each_end_is_followed_by_a_list(
    api: ApiServer,
    new_relay: Callable[[str], Relay],
    namespace: str,
    configured: Callable[[str], KubernetesDiscoveryConfig],
) -> None:
    async def scenario() -> None:
        async with new_relay(api.url) as relay:
            async with running(configured(relay.url), Pace(watch_seconds=1, retry_seconds=0.05)):
                await until(lambda: relay.watches >= 3, "a third watch")
            assert relay.lists >= 3
            for query in relay.watch_queries:
                assert query["timeoutSeconds"] == "1"
                assert query["allowWatchBookmarks"] == "true"
                assert int(query["resourceVersion"]) > 0
                assert query["labelSelector"] == "warmroute.dev/pool=main"

    asyncio.run(scenario())


def test_missing_credentials_are_an_outage_like_any_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    async def scenario(config: KubernetesDiscoveryConfig) -> None:
        caplog.clear()
        async with running(config):
            await until(lambda: "Kubernetes credentials" in caplog.text, "a warning")

    asyncio.run(scenario(KubernetesDiscoveryConfig(selector="a=b")))
    asyncio.run(scenario(KubernetesDiscoveryConfig(selector="a=b", kubeconfig=tmp_path / "absent")))
    not_yaml = tmp_path / "not-yaml"
    not_yaml.write_text("a: [")
    asyncio.run(scenario(KubernetesDiscoveryConfig(selector="a=b", kubeconfig=not_yaml)))


def test_a_failing_consumer_ends_the_loop_so_that_its_owner_notices(
    api: ApiServer, configured: Callable[[str], KubernetesDiscoveryConfig]
) -> None:
    def fail(targets: tuple[Target, ...]) -> None:
        raise ValueError("a defect of ours, not of the API server")

    with pytest.raises(ValueError, match="a defect of ours"):
        asyncio.run(KubernetesDiscovery(configured(api.url), fail).run())


def test_waits_double_up_to_the_limit() -> None:
    pace = Pace(retry_seconds=0.5, retry_limit_seconds=30)
    assert [retry_wait(pace, breaks, 1.0) for breaks in (0, 1, 2, 6, 10_000)] == [0.5, 1.0, 2.0, 30.0, 30.0]
    assert retry_wait(pace, 3, 0.25) == 1.0
