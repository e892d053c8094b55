"""Investigations shared by several calls: a bundle does not change, so it is read once."""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddx_server.serve.call import ServedCall
from ddx_server.serve.workspace import Workspace
from ddx_tools.sources.temporary import prefix_of

if TYPE_CHECKING:
    from ddx_tools.evidence.store import Store
    from ddx_tools.investigation.result import Investigation
    from ddx_tools.investigation.session.capture import Machine

_MOST_KEPT = 8
_WAIT_S = 0.2

Key = tuple[str, int, int]


class Opened:
    """An investigation's findings, and a file with its rows that exists as long as this object."""

    def __init__(self, found: Investigation, store: Store) -> None:
        directory = Path(tempfile.mkdtemp(prefix=prefix_of("evidence")))
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        self.found = found
        self.rows = directory / "evidence.duckdb"
        store.save(self.rows)
        self.tables = _row_counts(store)
        self.ranks = _distinct(store, self.tables, "rank")
        self.hosts = _distinct(store, self.tables, "host")


class Investigations:
    """Opens targets and caches the last few that cannot change. Safe to use from several threads."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._kept: OrderedDict[Key, Opened] = OrderedDict()
        self._busy: dict[Key, threading.Lock] = {}
        self._lock = threading.Lock()

    def of(self, target: Sequence[str], call: ServedCall) -> Opened:
        """The investigation of a resolved target (see `Workspace.resolve`), with rows. Raises DdxError if unusable."""
        key = self._key(target)
        if key is None:
            return _investigated(target, call)
        with self._alone(key, call):
            opened = self._known(key)
            if opened is None:
                opened = _investigated(target, call)
                self._keep(key, opened)
            return opened

    def found(self, target: Sequence[str], call: ServedCall) -> Investigation:
        """Return the investigation of a resolved target: its findings, without a file of rows for queries.

        The results for bundles are cached; any other target is investigated anew.
        """
        from ddx_tools.investigation.run import investigate

        if self._key(target) is None:
            return investigate(target, progress=call.progress, machine=call.machine())
        return self.of(target, call).found

    def capture(self, target: Sequence[str], bundle: Path, call: ServedCall, machine: Machine) -> None:
        """Investigate a target and save the material as a new bundle; the result is cached as that of the bundle."""
        opened = _investigated(target, call, bundle, machine)
        if key := self._key([str(bundle)]):
            self._keep(key, opened)

    def _key(self, target: Sequence[str]) -> Key | None:
        """The cache key of a target that cannot change; None for all others."""
        from ddx_tools.sources.bundle import is_bundle
        from ddx_tools.sources.packed_bundle import MANIFEST

        if len(target) != 1 or self._workspace.is_live(target):
            return None
        path = Path(target[0])
        if path != self._workspace.config.recorded and not is_bundle(path):
            return None
        manifest = path / MANIFEST
        stat = (manifest if manifest.is_file() else path).stat()
        return str(path), stat.st_mtime_ns, stat.st_size

    def _known(self, key: Key) -> Opened | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _keep(self, key: Key, opened: Opened) -> None:
        with self._lock:
            self._kept[key] = opened
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)

    @contextmanager
    def _alone(self, key: Key, call: ServedCall) -> Iterator[None]:
        """Let one of several calls about the same material work, while the others wait (or are cancelled)."""
        with self._lock:
            busy = self._busy.setdefault(key, threading.Lock())
        while not busy.acquire(timeout=_WAIT_S):
            call.stop_if_cancelled()
        try:
            yield
        finally:
            busy.release()


def _investigated(
    target: Sequence[str], call: ServedCall, save: Path | None = None, machine: Machine | None = None
) -> Opened:
    from ddx_tools.evidence.store import Store
    from ddx_tools.investigation.run import investigate

    with Store() as store:
        found = investigate(target, save, call.progress, machine=machine or call.machine(), store=store)
        call.progress("saving the rows for queries")
        return Opened(found, store)


def _row_counts(store: Store) -> dict[str, int]:
    """The number of rows of each table that has any."""
    from ddx_tools.evidence.schema import tables

    counted = {table: store.query(f"SELECT count(*) AS rows FROM {table}")[0]["rows"] for table in tables()}
    return {table: rows for table, rows in counted.items() if rows}


def _distinct(store: Store, tables: Iterable[str], column: str) -> list[Any]:
    """The distinct values of a column over all tables that have it, in order."""
    from ddx_tools.evidence.schema import columns

    having = [f"SELECT {column} AS value FROM {table}" for table in tables if column in columns(table)]
    if not having:
        return []
    rows = store.query(
        f"SELECT DISTINCT value FROM ({' UNION ALL '.join(having)}) WHERE value IS NOT NULL ORDER BY value"
    )
    return [row["value"] for row in rows]
