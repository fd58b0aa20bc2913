"""Opened tables: a session keeps them and moves them forward.

Opening a table (delta-rs' view of it) reads its whole log, which takes 6 to 40 ms. Moving it forward reads the new commits;
two look-ups show that there are none.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any

from mergerepl.delta.fences import refuse_fenced
from mergerepl.delta.known_heads import forget_head, note_head
from mergerepl.delta.log import as_seen, has_commit, last_version, note_written
from mergerepl.delta.own_checkpoints import is_checkpoint_due, write_own_checkpoint
from mergerepl.errors import CommitConflictError
from mergerepl.store.location import Location
from mergerepl.store.objects import storage_options
from mergerepl.store.register import noting_unknown
from mergerepl.store.rehearsal import before_write
from mergerepl.store.storage import is_local

if TYPE_CHECKING:
    from deltalake import DeltaTable

_MOST_LEFT_OPEN = 100
"""The most tables that stay open between two blocks: those of ten articles at both sides, with their system tables."""

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
        at = last_version(path) if version is None else version
        # Taken before the log is read: a file replaced at that moment is noticed next time.
        seen = None if at is None else _seen(path, at)
        is_latest = version is None or not has_commit(path, version + 1)
        # delta-rs takes twice as long to open a version by its number.
        log = _delta_rs(path, None if is_latest else version)
        if version is not None and log.version() != version:
            log = _delta_rs(path, version)
        self._path, self._log, self._lock = path, log, RLock()
        self.seen = seen if log.version() == at else None

    @property
    def version(self) -> int:
        """The version that it has moved to."""
        return self._log.version()

    @contextmanager
    def at(self, version: int) -> Iterator["DeltaTable"]:
        """Give the table at a version, for reading; it does not move in this block."""
        with self._lock:
            has_moved = self._log.version() != version
            yield _delta_rs(self._path, version) if has_moved else self._log

    @contextmanager
    def writing(self, version: int) -> Iterator["DeltaTable"]:
        """Give the table at a version for one commit; delta-rs moves it to that commit."""
        before_write()
        with self.at(version) as log:
            refuse_fenced(log, self._path)
            seen, self.seen = self.seen, None
            with outcome_noted(self._path):
                yield log
            is_moved = log is self._log and log.version() != version
            if is_moved:
                note_head(self._path, log.version())
                note_written(self._path, log.version())
            else:
                # A commit of files does not move it.
                forget_head(self._path)
            # `read_back` finds the commit's mark after this, which confirms the file as delta-rs' own.
            self.seen = _seen(self._path, log.version()) if is_moved else seen
            if is_checkpoint_due(self._path, log):
                write_own_checkpoint(self._path, log if is_moved else _delta_rs(self._path))

    def move_to(self, version: int | None) -> bool:
        """Move forward to a version, or to the latest one; False if it has to be reopened."""
        from deltalake.exceptions import DeltaError

        with self._lock:
            if self.seen is None:
                return False
            here: int = self.seen[1]
            if _seen(self._path, here) != self.seen:
                self.seen = None
                return False
            there = version
            if there is None:
                there = here
                while has_commit(self._path, there + 1):
                    there += 1
                note_head(self._path, there)
            if there > here:
                self.seen = _seen(self._path, there)
                try:
                    self._log.update_incremental()
                except DeltaError:
                    self.seen = None
                if self._log.version() != there:
                    self.seen = None
            return there >= here and self.seen is not None


def _delta_rs(path: Location, version: int | None = None) -> "DeltaTable":
    from deltalake import DeltaTable

    return DeltaTable(str(path), version=version, storage_options=storage_options(path) or None)


def outcome_noted(path: Location) -> "AbstractContextManager[None]":
    """Note a commit to a table on a store whose outcome is unknown."""
    if is_local(path):
        return nullcontext()
    from deltalake.exceptions import CommitFailedError

    from mergerepl.frames import NeedsSparkError

    return noting_unknown(path, CommitFailedError, CommitConflictError, NeedsSparkError)


def _seen(path: Location, version: int) -> list[Any] | None:
    try:
        return as_seen(path, version)
    except OSError:
        return None


def open_or_reuse(path: Location, version: int | None = None) -> OpenedTable:
    """Return a table opened at a version, by default at its latest one; reuse one kept open if the table is unchanged.

    Raises: delta-rs' errors.
    """
    path = Location.of(path)
    with _lock:
        is_kept = any(path.is_in(root) for root in _roots)
        # The last one used comes last.
        gate = _gates.pop(path, None) or RLock() if is_kept else None
        if gate is not None:
            _gates[path] = gate
    if gate is None:
        return OpenedTable(path, version)
    with gate:
        known = _kept.get(path)
        if known is not None and known.move_to(version):
            return known
        opened = OpenedTable(path, version)
        if known is None or known.seen is None or opened.version >= known.version:
            _kept[path] = opened
        return opened


@contextmanager
def tables_kept_open(*roots: Location) -> Iterator[None]:
    """Keep the tables below some replicas open in this block: each log is read once, then only its new commits.

    The next block in this process finds those that were used last, so that an agent reads only new commits, too.
    """
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
            left = [each for each in _gates if not any(each.is_in(root) for root in _roots)]
            for path in left[: max(0, len(left) - _MOST_LEFT_OPEN)]:
                del _gates[path]
                _kept.pop(path, None)


def kept_table(path: Location) -> OpenedTable | None:
    """Return a table that is kept open, None for any other."""
    return _kept.get(path)
