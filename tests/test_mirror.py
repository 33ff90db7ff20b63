"""Tests lie where their sources lie: `tests/X/test_Y.py` is about `X/Y.py` or the package `X/Y`.

A module's tests may fill several files, with the aspect behind the name: `test_relay_leaving.py` is of `relay.py`.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]

FOLDERS = {
    "chaos": "many processes, of which some are killed",
    "deploy": "charts and dashboards, which are no modules",
    "docs": "pages against the code",
    "e2e": "all parts together",
    "live": "real engines",
    "plugins": "the plugins of this test run, which lie beside their tests",
}
FILES = {
    "test_layers.py": "imports of the whole product",
    "test_mirror.py": "the tests' own places",
    "test_private_reads.py": "what the tests know of insides",
    "warmroute/redis/test_redis_py.py": "the library: why some of it is not used",
}


def has_source(test: Path, root: Path) -> bool:
    """Whether a module or package stands where this path, relative to the tests, says."""
    words = test.stem.removeprefix("test_").split("_")
    stems = (root / test.parent / "_".join(words[:count]) for count in range(1, len(words) + 1))
    return any(stem.with_suffix(".py").is_file() or stem.is_dir() for stem in stems)


def strays(tests: Path, root: Path) -> list[str]:
    found = sorted(path.relative_to(tests) for path in tests.rglob("test_*.py"))
    return [
        path.as_posix()
        for path in found
        if path.parts[0] not in FOLDERS and path.as_posix() not in FILES and not has_source(path, root)
    ]


def test_every_test_file_has_its_source() -> None:
    assert strays(ROOT / "tests", ROOT) == []


def test_exceptions_are_there_and_needed() -> None:
    for name in FOLDERS:
        assert list((ROOT / "tests" / name).glob("test_*.py")), name
    for name in FILES:
        assert (ROOT / "tests" / name).is_file(), name
        assert not has_source(Path(name), ROOT), name


def test_a_stray_is_found(tmp_path: Path) -> None:
    for name in ("part/relay.py", "part/census/ranks.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    tests = tmp_path / "tests" / "part"
    tests.mkdir(parents=True)
    for name in ("test_relay.py", "test_relay_leaving.py", "test_census.py", "test_relays.py", "test_forwarder.py"):
        (tests / name).touch()
    assert strays(tmp_path / "tests", tmp_path) == ["part/test_forwarder.py", "part/test_relays.py"]
