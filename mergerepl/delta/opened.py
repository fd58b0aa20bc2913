"""Opened tables: delta-rs' view of a table's log. A session keeps them open and moves them forward.

Opening a table reads its whole log, which takes 6 to 40 ms. Moving it forward reads the new commits; two look-ups show
that there are none.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any

from mergerepl.delta.log import as_seen, last_version, log_path
from mergerepl.store.folders import exists
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from deltalake import DeltaTable

_kept: dict[Location, "OpenedTable"] = {}
_roots: Counter[Location] = Counter()
_gates: dict[Location, RLock] = {}
_lock = Lock()


class OpenedTable:
    """A table's log as delta-rs read it, at the latest version or at one. It moves forward: use it through `at`.

    It is trusted while the file of its last commit is the one that was read, by inode, size and time. A table that was
    replaced or restored from a copy has another file.
    """

    def __init__(self, path: Location, version: int | None) -> None:
        from deltalake import DeltaTable

        at = last_version(path) if version is None else version
        # Taken before the log is read: a file replaced at that moment is noticed next time.
        seen = None if at is None else _seen(path, at)
        is_latest = version is None or not exists(log_path(path, version + 1))
        # delta-rs takes twice as long to open a version by its number.
        log = DeltaTable(str(path)) if is_latest else DeltaTable(str(path), version=version)
        if version is not None and log.version() != version:
            log = DeltaTable(str(path), version=version)
        self._path, self._log, self._lock = path, log, RLock()
        self._seen = seen if log.version() == at else None

    @property
    def version(self) -> int:
        """The version that it has moved to."""
        return self._log.version()

    @property
    def is_trusted(self) -> bool:
        """False once the file of its last commit was replaced, or a write to it failed."""
        return self._seen is not None

    @contextmanager
    def at(self, version: int) -> Iterator["DeltaTable"]:
        """Give the table at a version, for reading; it does not move in this block."""
        from deltalake import DeltaTable

        with self._lock:
            has_moved = self._log.version() != version
            yield DeltaTable(str(self._path), version=version) if has_moved else self._log

    @contextmanager
    def writing(self, version: int) -> Iterator["DeltaTable"]:
        """Give the table at a version for one commit; delta-rs moves it to that commit."""
        with self.at(version) as log:
            seen, self._seen = self._seen, None
            yield log
            is_moved = log is self._log and log.version() != version
            # `read_back` finds the commit's mark after this, which confirms the file as delta-rs' own.
            self._seen = _seen(self._path, log.version()) if is_moved else seen

    def move_to(self, version: int | None) -> bool:
        """Move forward to a version, or to the latest one; False if it has to be reopened."""
        from deltalake.exceptions import DeltaError

        with self._lock:
            if self._seen is None:
                return False
            here: int = self._seen[1]
            if _seen(self._path, here) != self._seen:
                self._seen = None
                return False
            there = version
            if there is None:
                there = here
                while exists(log_path(self._path, there + 1)):
                    there += 1
            if there > here:
                self._seen = _seen(self._path, there)
                try:
                    self._log.update_incremental()
                except DeltaError:
                    self._seen = None
                if self._log.version() != there:
                    self._seen = None
            return there >= here and self._seen is not None


def _seen(path: Location, version: int) -> list[Any] | None:
    try:
        return as_seen(path, version)
    except OSError:
        return None


def opened_table(path: Location, version: int | None = None) -> OpenedTable:
    """Return a table opened at a version, by default at its latest one; reuse one kept open if the table is unchanged.

    Raises: delta-rs' errors.
    """
    path = Location.of(path)
    with _lock:
        is_kept = any(path.is_in(root) for root in _roots)
        gate = _gates.setdefault(path, RLock()) if is_kept else None
    if gate is None:
        return OpenedTable(path, version)
    with gate:
        known = _kept.get(path)
        if known is not None and known.move_to(version):
            return known
        opened = OpenedTable(path, version)
        if known is None or not known.is_trusted or opened.version >= known.version:
            _kept[path] = opened
        return opened


@contextmanager
def tables_kept_open(*roots: Location) -> Iterator[None]:
    """Keep the tables below some replicas open in this block: each log is read once, then only its new commits."""
    roots = tuple(map(Location.of, roots))
    with _lock:
        _roots.update(roots)
    try:
        yield
    finally:
        with _lock:
            _roots.subtract(roots)
            for root in set(roots):
                if not _roots[root]:
                    del _roots[root]
            for path in [each for each in _gates if not any(each.is_in(root) for root in _roots)]:
                del _gates[path]
                _kept.pop(path, None)
