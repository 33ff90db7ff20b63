"""The text of `warmroute index`, made for 100 columns: two lines a worker, what is missing said at the end."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from indexer.inspection.view import PartView, PoolView, WorkerView
from indexer.layout import TIERS
from warmroute.cli.index_prompt import PromptView
from warmroute.cli.index_report import Report
from warmroute.cli.index_streams import IndexerView, StreamView, WorkerKey

UNKNOWN: Final = "?"
NOTHING: Final = "-"
WIDTH: Final = 100
ID_WIDTH: Final = 40
SHORT_ID_WIDTH: Final = 16
_UNITS: Final = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def report_text(report: Report) -> str:
    """The whole report, without a last line end."""
    lines = [_server_line(report), _indexers_line(report.indexers)]
    for pool in report.pools:
        lines += ["", *_pool_lines(pool, report.streams)]
    if not report.pools:
        lines += ["", "No pool is in the index: no worker has published to it yet."]
    notes = _notes(report)
    if notes:
        lines.append("")
        for note in notes:
            lines += textwrap.wrap(f"note: {note}", WIDTH, subsequent_indent="      ")
    return "\n".join(lines)


def prompt_text(view: PromptView) -> str:
    """A prompt's holders, without a last line end."""
    head = (
        f"Pool {view.pool}: {view.kind}, {number(view.tokens, 'token')} = {number(view.blocks, 'index block')} of "
        f"{view.index_block_tokens} tokens"
    )
    rest = view.tokens - view.blocks * view.index_block_tokens
    lines = [f"{head}, and {number(rest, 'token')} without a key" if rest else head]
    if not view.blocks:
        return f"{lines[0]}\nA prompt shorter than an index block has no keys: it is routed by load."
    rows = [("WORKER", "ADDRESS", "BLOCKS", "TOKENS", "SHARE", "DEVICE", "HOST", "")]
    rows += [
        (
            cut(holder.worker_id),
            holder.address,
            f"{holder.matched_blocks:,}",
            f"{holder.matched_tokens:,}",
            f"{holder.share:.1%}",
            f"{holder.device_tokens:,}",
            f"{holder.host_tokens:,}",
            "late: routed by load" if holder.late else "",
        )
        for holder in view.holders
        if holder.matched_blocks
    ]
    nothing = sum(not holder.matched_blocks for holder in view.holders)
    if len(rows) > 1:
        lines += ["", *align(rows, left=(0, 1, 7))]
    if nothing == len(view.holders):
        lines += ["", "No worker holds any of it."]
    elif nothing:
        lines += ["", f"{nothing} of {number(len(view.holders), 'worker')} hold nothing of it."]
    return "\n".join(lines)


def _server_line(report: Report) -> str:
    server = report.server
    limit = "no limit" if server.max_bytes == 0 else f"of {size(server.max_bytes)}"
    own = [part.keys_bytes for pool in report.pools for part in pool.parts]
    own += [part.log_bytes for pool in report.pools for part in pool.parts]
    index = size(sum(each or 0 for each in own)) if None not in own else UNKNOWN
    return (
        f"{report.redis}: {size(server.used_bytes)} used, {limit}, {server.policy or UNKNOWN}; the index about {index}"
    )


def _indexers_line(indexers: Iterable[IndexerView]) -> str:
    said = [
        f"{each.address} {each.version or 'of an older release'}, ledger {'up' if each.ledger_up else 'out of reach'}, "
        f"{number(each.streams, 'stream')}"
        if each.error is None
        else f"{each.address} does not answer"
        for each in indexers
    ]
    return f"Indexers: {'; '.join(said)}"


def _pool_lines(pool: PoolView, streams: Mapping[WorkerKey, StreamView]) -> list[str]:
    late = sum(worker.late for worker in pool.workers)
    held = ", ".join(
        f"{number(sum(worker.tiers[tier].keys for worker in pool.workers if tier in worker.tiers), 'key')} on {tier}"
        for tier in TIERS
        if tier == TIERS[0] or any(tier in worker.tiers for worker in pool.workers)
    )
    models = ", ".join(sorted({worker.model for worker in pool.workers}))
    name = f"Pool {pool.pool} ({models})" if models else f"Pool {pool.pool}"
    lines = [f"{name}: {number(len(pool.workers), 'worker')}, {late} late; {held}"]
    lines += align(
        [
            ("PART", "WORKERS", "LOG ENTRIES", "NEWEST", "LOG", "KEYS", "STRAY KEY SETS"),
            *(_part_row(part, pool.workers) for part in pool.parts),
        ]
    )
    if pool.workers:
        lines += ["", *_worker_lines(pool, streams)]
    return lines


def _part_row(part: PartView, workers: Iterable[WorkerView]) -> tuple[str, ...]:
    return (
        str(part.part),
        str(sum(worker.part == part.part for worker in workers)),
        f"{part.log_entries:,}",
        age(part.newest_entry_age_seconds) if part.log_entries else NOTHING,
        size(part.log_bytes),
        size(part.keys_bytes),
        UNKNOWN if part.stray_sets is None else f"{part.stray_sets:,}",
    )


def _worker_lines(pool: PoolView, streams: Mapping[WorkerKey, StreamView]) -> list[str]:
    table = _worker_table(pool, streams, ID_WIDTH)
    excess = max(map(len, table)) - WIDTH
    if excess > 0:
        table = _worker_table(pool, streams, max(SHORT_ID_WIDTH, ID_WIDTH - excess))
    head, *rows = table
    return [head, *(line for pair in zip(rows, map(_worker_facts, pool.workers), strict=True) for line in pair)]


def _worker_table(pool: PoolView, streams: Mapping[WorkerKey, StreamView], id_width: int) -> list[str]:
    rows = [("WORKER", "BEAT", "DEVICE", "", "HOST", "", "LAG", "UNSENT", "ORPHANS", "RUNNING", "WAITING")]
    for worker in pool.workers:
        stream = streams.get((pool.pool, worker.worker_id))
        rows.append(
            (
                cut(worker.worker_id, id_width),
                f"{age(worker.beat_age_seconds)}{' late' if worker.late else ''}",
                *_tier_cells(worker, "device"),
                *_tier_cells(worker, "host"),
                age(stream.publication_lag_seconds if stream else None),
                _count(stream.unpublished_keys if stream else None),
                _count(stream.orphaned_blocks if stream else None),
                _count(stream.running_requests if stream else None),
                _count(stream.waiting_requests if stream else None),
            )
        )
    return align(rows)


def _worker_facts(worker: WorkerView) -> str:
    """Eight digits tell epochs apart; --json has all of them, and the slot."""
    state = f"state {worker.seq}" if worker.slot else "no slot yet"
    snapshot = "" if worker.snapshot_chunks is None else f", {number(worker.snapshot_chunks, 'chunk')} of a snapshot"
    silent = "" if worker.publishes_events else ", publishes no events"
    engine = f"{worker.engine} {worker.engine_version}"
    return f"    {worker.address}  {engine}  epoch {worker.epoch[:8]}, {state}{snapshot}{silent}"


def _tier_cells(worker: WorkerView, tier: str) -> tuple[str, str]:
    view = worker.tiers.get(tier)
    if view is None:
        return NOTHING, ""
    return f"{view.keys:,}", "" if view.share is None else f"{view.share:.1%}"


def _notes(report: Report) -> list[str]:
    notes = [f"indexer {each.address} does not answer: {each.error}" for each in report.indexers if each.error]
    silent = [
        worker.worker_id
        for pool in report.pools
        for worker in pool.workers
        if (stream := report.streams.get((pool.pool, worker.worker_id))) is None or stream.load_age_seconds is None
    ]
    if silent:
        some = ", ".join(cut(worker_id, SHORT_ID_WIDTH) for worker_id in silent[:3]) + (
            f" and {len(silent) - 3:,} others" if len(silent) > 3 else ""
        )
        notes.append(f"no indexer that answered has a load of {some}: lag, orphans and load (?) are unknown")
    if report.server.policy not in {None, "noeviction"}:
        notes.append(f"Redis may drop keys of the index: set maxmemory-policy noeviction, not {report.server.policy}")
    if report.server.used_bytes is None:
        notes.append("the Redis user may not run INFO: the server's memory (?) is unknown")
    for pool in report.pools:
        notes += [f"pool {pool.pool}: {problem}" for problem in pool.problems]
        notes += _pool_notes(pool)
    if not report.survey_complete:
        notes.append(
            "the server has more keys than were looked at: pools may be missing, stray key sets (?) are unknown"
        )
    return notes


def _pool_notes(pool: PoolView) -> list[str]:
    notes = []
    strays = sum(part.stray_sets or 0 for part in pool.parts)
    if strays:
        notes.append(
            f"pool {pool.pool}: {number(strays, 'set')} of keys belong to no worker; their memory is lost, nothing else"
        )
    beyond = [part.part for part in pool.parts if pool.declared_parts is not None and part.part >= pool.declared_parts]
    if beyond:
        notes.append(f"pool {pool.pool}: parts {beyond} are left over: it has {pool.declared_parts}")
    return notes


# --- cells -----------------------------------------------------------------------------------------------------------


def align(rows: Sequence[Sequence[str]], left: Iterable[int] = (0,)) -> list[str]:
    """Columns two blanks apart, right-aligned but for `left`; columns that are empty in all rows but the first go."""
    used = [column for column in range(len(rows[0])) if any(row[column] not in {"", NOTHING} for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in used}
    lefts = set(left)
    return [
        "  ".join(
            row[column].ljust(widths[column]) if column in lefts else row[column].rjust(widths[column])
            for column in used
        ).rstrip()
        for row in rows
    ]


def cut(worker_id: str, width: int = ID_WIDTH) -> str:
    """Long ids lose their middle: pods differ at both ends. Control characters are shown, not sent to the terminal."""
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in worker_id)
    if len(shown) <= width:
        return shown
    end = (width - 1) // 2
    return f"{shown[: width - 1 - end]}…{shown[-end:]}"


def age(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"


def size(count: int | None) -> str:
    """Bytes, in decimal units."""
    if count is None:
        return UNKNOWN
    for unit, factor in _UNITS:
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def number(count: int | None, noun: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s") if count is not None else UNKNOWN


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"
