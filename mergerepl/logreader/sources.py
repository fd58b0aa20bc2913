"""The log of one source since its position: read without an engine, with one listing a cycle."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mergerepl.delta.feed.column_changes import (
    ADD,
    DROP,
    FIELDS,
    NULLABILITY,
    RENAME,
    REPLACE,
    RESTORE,
    TYPE,
    ColumnChange,
    is_additive,
)
from mergerepl.delta.feed.schema_walk import is_replacement, walk
from mergerepl.delta.feed.window import unmatched_removals, untrue_versions
from mergerepl.delta.metadata import TableMetadata
from mergerepl.delta.properties import lost_properties
from mergerepl.delta.tables import (
    Commit,
    TableState,
    TruncatedLogError,
    commit_text,
    head_version,
    is_another_commit,
    is_delta_table,
    open_table,
    read_commit,
    written_ns,
)
from mergerepl.errors import StoreError
from mergerepl.logreader.consumer import STOP, UNUSABLE
from mergerepl.logreader.plan import REPLACED, Paused, Placed, Reading, cut, name_at
from mergerepl.logreader.positions import RESUME, may_pass
from mergerepl.logreader.replaced import lost_by_replacement
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local
from mergerepl.systables.logreader import LogReaderRow

"""The number of the error that changes of a source can no longer be determined."""

NO_SOURCE = 22931

_DELTA_RS = "delta-rs"

_ORIGINS = {"": "user", "apply": "merge", "setup": "merge", "schema": "merge", "track": "compact"}
"""The origin of a commit by its kind; for other kinds the origin is the kind."""


@dataclass(frozen=True)
class Unit:
    """The unit of one LSN: a commit; or several that are compared because of a `gap`. `commit` is the last one.

    `is_replaced`: its columns were replaced together with its rows. `is_ddl`: only its columns changed.
    """

    commit: Commit
    placed: Placed
    from_version: int
    gap: str | None = None
    is_replaced: bool = False
    is_ddl: bool = False

    @property
    def version(self) -> int:
        """The version of its last commit."""
        return self.commit.version

    @property
    def origin(self) -> str:
        """The origin of the commit (`_ORIGINS`)."""
        return _ORIGINS.get(self.commit.kind, self.commit.kind)


@dataclass(frozen=True)
class SourceLook:
    """The new commits of a source in the cut. `units` is limited by the caller's `most`.

    `head` is the latest version. `metadata` is the one at each version that stated one, and at the position.
    """

    row: LogReaderRow
    path: Location
    head: int
    units: tuple[Unit, ...] = ()
    through_version_inclusive: int = -1
    commits: tuple[Commit, ...] = ()
    columns: tuple[ColumnChange, ...] = ()
    paused: Paused | None = None
    has_waiting: bool = False

    def limited(self, count: int) -> "SourceLook":
        """Return the look at the first units alone."""
        if count >= len(self.units):
            return self
        through = self.units[count - 1].commit.version if count else self.row.position
        return replace(
            self,
            units=self.units[:count],
            through_version_inclusive=through,
            commits=tuple(each for each in self.commits if each.version <= through),
            columns=tuple(each for each in self.columns if each.version <= through),
            has_waiting=True,
        )

    def metadata_at(self, version: int) -> TableMetadata:
        """Return the metadata at a version of the window."""
        found = metadata_of(self.row)
        for commit in self.commits:
            if commit.version <= version and commit.metadata is not None:
                found = commit.metadata
        return found

    def after(self, *, commit: str | None) -> LogReaderRow:
        """Return the row of the log reader when the window was read; `commit` is that of its last version."""
        metadata = self.metadata_at(self.through_version_inclusive)
        lost = lost_properties(metadata_of(self.row), self.commits, lost=lost_by_replacement(self.row))
        return replace(
            self.row,
            table_id=metadata.table_id,
            position=self.through_version_inclusive,
            position_commit=commit,
            seen=max(self.row.seen, self.head),
            columns=columns_text(metadata, lost),
        )


def columns_text(metadata: TableMetadata, lost: Mapping[str, str] | None = None) -> str:
    """Return a table's columns, partition columns and properties as the log reader keeps them.

    `lost` are the properties that a replacement took away and that were not set again.
    """
    return json.dumps(
        {
            "fields": metadata.fields,
            "partition_columns": list(metadata.partition_columns),
            "configuration": dict(metadata.configuration),
            **({"lost": dict(lost)} if lost else {}),
        },
        separators=(",", ":"),
        ensure_ascii=False,
    )


def metadata_of(row: LogReaderRow) -> TableMetadata:
    """Return the metadata of a source at its position."""
    stated = json.loads(row.columns)
    schema = json.dumps({"type": "struct", "fields": stated["fields"]}, ensure_ascii=False)
    return TableMetadata(row.table_id, schema, stated["configuration"], tuple(stated["partition_columns"]))


def begun(row: LogReaderRow, state: TableState) -> LogReaderRow:
    """Return the row of a source whose reading begins at a state of its table."""
    return replace(
        row,
        table_id=state.metadata.table_id,
        position=state.version,
        position_commit=commit_text(state.path, state.version),
        seen=state.version,
        columns=columns_text(state.metadata),
        status="active",
        error_number=None,
        reason=None,
    )


def look_at(root: Location, row: LogReaderRow, *, began_ns: int, most: int, on_gap: str) -> SourceLook:
    """Return the new units of a source, at most `most`; a source that cannot be read on has the reason in `paused`."""
    path = root / row.source_path
    nothing = SourceLook(row, path, row.position, through_version_inclusive=row.position)
    try:
        return _looked_at(nothing, began_ns=began_ns, most=most, on_gap=on_gap)
    except StoreError as error:
        return replace(nothing, paused=_damaged(row, error))


def _damaged(row: LogReaderRow, error: StoreError) -> Paused:
    """Return why a source is paused whose log is damaged.

    Raises: The error itself if it is local and temporary: a share without an answer, too many open files.
    """
    if may_pass(error):
        raise error
    text = f"{error.message} Its capture is paused; other tables go on. Then run {RESUME}."
    return Paused(row.source_object_id, UNUSABLE, text)


def _looked_at(nothing: SourceLook, *, began_ns: int, most: int, on_gap: str) -> SourceLook:
    row, path = nothing.row, nothing.path
    if not is_delta_table(path):
        return replace(nothing, paused=_gone(row, "there is no Delta table at its path any more"))
    head = head_version(path)
    if head < row.position:
        why = (
            f"it has {head} versions and was read through {row.position}: an older copy was put in its place"
        )
        return replace(nothing, paused=_gone(row, why))
    if is_another_commit(path, row.position, row.position_commit):
        why = f"version {row.position} at its path is another commit than the one that was read"
        return replace(nothing, paused=_gone(row, why))
    if head == row.position:
        return nothing
    return _with_commits(replace(nothing, head=head), began_ns=began_ns, most=most, on_gap=on_gap)


def _gone(row: LogReaderRow, why: str) -> Paused:
    text = (
        f"Table '{row.source_path}' cannot be read on: {why}. Its capture is paused; other tables go on. Put the "
        f"table back, or disable its capture instances; then enable it again, or run {RESUME}."
    )
    return Paused(row.source_object_id, NO_SOURCE, text, is_gone=True)


def _with_commits(look: SourceLook, *, began_ns: int, most: int, on_gap: str) -> SourceLook:
    row, path, head = look.row, look.path, look.head
    found: list[tuple[Commit, Placed]] = []
    has_waiting = False
    changes = 0
    try:
        # A store dates its objects itself, in whole seconds: none is of the future, and those of this second wait.
        seen = row.seen if is_local(path) else -1
        for placed in cut(_logged(row, path, head), began_ns=began_ns, seen=seen):
            commit = read_commit(path, placed.version)
            changes += commit.data_change or commit.metadata is not None
            if changes > most:
                has_waiting = True
                break
            unit = "" if commit.unit is None else commit.unit.id
            found.append((commit, replace(placed, unit=unit)))
    except TruncatedLogError as error:
        if not found:
            return _truncated(look, error, on_gap)
    except StoreError as error:
        if not found:
            return replace(look, paused=_damaged(row, error))
    if not found:
        return replace(look, has_waiting=True)
    last = found[-1][0].version
    commits = [commit for commit, _ in found]
    columns = _column_changes(row, commits)
    at = replace(
        look,
        through_version_inclusive=last,
        commits=tuple(commits),
        columns=tuple(change for changes in columns.values() for change in changes),
        has_waiting=has_waiting or last < head,
    )
    units = _units(at, found, columns)
    gaps = [unit for unit in units if unit.gap is not None]
    if gaps and on_gap == STOP:
        units = units[: units.index(gaps[0])]
        if not units:
            return replace(look, paused=_stopped(row, str(gaps[0].gap)))
    return replace(at, units=tuple(units)).limited(_before_a_type(units, columns))


def _logged(row: LogReaderRow, path: Location, head: int) -> Iterator[Placed]:
    for version in range(row.position + 1, head + 1):
        try:
            at_ns = written_ns(path, version)
        except FileNotFoundError:
            # Reading the commit explains it.
            at_ns = 0
        yield Placed(at_ns, row.source_object_id, version)


def _truncated(look: SourceLook, error: StoreError, on_gap: str) -> SourceLook:
    """Return the look where the log lacks the commits after the position: all of them are one gap."""
    why = "versions are gone from its log"
    if on_gap == STOP:
        return replace(look, paused=_stopped(look.row, why))
    try:
        commit = read_commit(look.path, look.head)
        commit = replace(commit, metadata=open_table(look.path, look.head).metadata)
        placed = Placed(written_ns(look.path, look.head), look.row.source_object_id, look.head)
    except (StoreError, OSError):
        return replace(look, paused=Paused(look.row.source_object_id, UNUSABLE, error.message))
    columns = _column_changes(look.row, [commit])
    unit = Unit(commit, placed, look.row.position + 1, gap=why)
    return replace(
        look,
        through_version_inclusive=look.head,
        commits=(commit,),
        columns=tuple(columns.get(commit.version, ())),
        units=(unit,),
    )


def _stopped(row: LogReaderRow, why: str) -> Paused:
    text = (
        f"Table '{row.source_path}': {why}, and its capture instance says that a gap stops it. Its capture is paused; "
        "other tables go on. Run `mergerepl resume` with --compare, which takes the difference of the versions around "
        "the gap, or with --restart, after which consumers take a snapshot."
    )
    return Paused(row.source_object_id, UNUSABLE, text)


_DDL = (ADD, DROP, RENAME, TYPE, FIELDS, NULLABILITY)
"""The changes of columns that consumers follow; others change no row and no row's shape."""


def _column_changes(row: LogReaderRow, found: Sequence[Commit]) -> dict[int, list[ColumnChange]]:
    changes: dict[int, list[ColumnChange]] = {}
    walked = walk(metadata_of(row), found)
    for commit in found:
        stated = walked.at(commit.version)
        columns = [each for each in stated if each.kind in _DDL]
        # Rows that are only read under more columns need no other versions.
        is_replaced = "REPLACE" in commit.operation.upper() or (
            commit.data_change and not is_additive(columns)
        )
        table = [each for each in stated if is_replaced and each.kind in (REPLACE, RESTORE)]
        if columns or table:
            changes[commit.version] = [*columns, *table]
    return changes


def _units(
    look: SourceLook, found: Sequence[tuple[Commit, Placed]], columns: dict[int, list[ColumnChange]]
) -> list[Unit]:
    """Return the units that get LSNs: commits that changed rows or columns; commits whose feed was off are one together."""
    units: list[Unit] = []
    gap = _unmatched(look)
    switched_off = not metadata_of(look.row).change_data_feed
    for commit, placed in found:
        was_off = switched_off
        if commit.metadata is not None:
            switched_off = not commit.metadata.change_data_feed
        changed = columns.get(commit.version, [])
        if commit.data_change and switched_off and not was_off and gap is None and is_replacement(commit):
            # Nothing is lost in between: the versions before and after it are compared.
            units.append(Unit(commit, placed, commit.version, is_replaced=True))
        elif commit.data_change:
            why = "Change Data Feed was off" if switched_off else gap
            before = units[-1] if units and why is not None and units[-1].gap == why else None
            from_version = commit.version if before is None else before.from_version
            # What is compared belongs to no unit.
            at = placed if why is None else replace(placed, unit="")
            unit = Unit(commit, at, from_version, why, is_replaced=_is_replaced(commit, changed))
            units = [*(units if before is None else units[:-1]), unit]
        elif changed:
            units.append(Unit(commit, placed, commit.version, is_ddl=True))
    return units


def _unmatched(look: SourceLook) -> str | None:
    """Return why no commit's feed can be used: files were removed by names that the log does not know."""
    found = unmatched_removals(look.path, look.row.position, look.commits)
    if found.standing:
        return (
            "a writer removed files by names that its log does not know, so that they are still in the table"
        )
    return found.gap


def _is_replaced(commit: Commit, changed: Sequence[ColumnChange]) -> bool:
    """True if a commit that changed rows cannot be read under its own columns."""
    columns = [change for change in changed if change.kind in _DDL]
    if len(columns) < len(changed) and not is_additive(columns):
        return True
    return bool(changed) and commit.operation != "WRITE" and commit.engine.startswith(_DELTA_RS)


def _before_a_type(units: Sequence[Unit], columns: dict[int, list[ColumnChange]]) -> int:
    """Return the number of units before the first change of a type: the change tables have their rows by then."""
    for place, unit in enumerate(units):
        retyped = any(change.kind == TYPE for change in columns.get(unit.version, ()))
        if retyped and place and any(not each.is_ddl for each in units[:place]):
            return place
    return len(units)


def readings(look: SourceLook, key: Sequence[str] = ()) -> tuple[Reading, ...]:
    """Return the readings for the rows of the units, cut where columns changed or vectors were dropped.

    `key` are the columns that identify the rows, as at the position.
    """
    found: list[Reading] = []
    run: list[Unit] = []

    def end_run() -> None:
        if run:
            found.append(_reading(look, run, key))
            run.clear()

    cuts = {change.version for change in look.columns}
    cuts |= {commit.version for commit in look.commits if commit.drops_vectors}
    cuts |= _repartitioned(look)
    for unit in look.units:
        if run and any(run[-1].version < version <= unit.version for version in cuts):
            end_run()
        if unit.is_ddl:
            continue
        if unit.gap is not None or unit.is_replaced:
            end_run()
            found.append(compared(look, unit.from_version, unit.version, unit.gap or REPLACED))
        else:
            run.append(unit)
    end_run()
    return tuple(found)


def _repartitioned(look: SourceLook) -> set[int]:
    found = set()
    known = metadata_of(look.row).partition_columns
    for commit in look.commits:
        if commit.metadata is not None and commit.metadata.partition_columns != known:
            known = commit.metadata.partition_columns
            found.add(commit.version)
    return found


def _reading(look: SourceLook, run: Sequence[Unit], key: Sequence[str]) -> Reading:
    first, last = run[0].version, run[-1].version
    metadata = look.metadata_at(last)
    counts = [unit.commit.changed_rows for unit in run]
    names = [name_at(look.columns, name, last) for name in key]
    by_files, by_keys = untrue_versions(look.path, [unit.commit for unit in run], names)
    stated = (commit.version for commit in look.commits if commit.metadata is not None)
    return Reading(
        first,
        last,
        tuple(unit.version for unit in run),
        tuple(metadata.fields),
        by_files=by_files,
        is_one_metadata=not any(first < version <= last for version in stated),
        most_rows=None if by_files or None in counts else 2 * sum(count or 0 for count in counts),
        timestamp_partitions=metadata.timestamp_partitions,
        by_keys=by_keys,
        former=_former_names(look, first, last),
    )


def compared(look: SourceLook, from_version: int, through_version: int, why: str) -> Reading:
    """Return a reading that compares the versions before and after some commits."""
    metadata = look.metadata_at(through_version)
    return Reading(
        from_version,
        through_version,
        (through_version,),
        tuple(metadata.fields),
        compared=why,
        timestamp_partitions=metadata.timestamp_partitions,
        former=_former_names(look, from_version, through_version),
    )


def _former_names(look: SourceLook, from_version: int, through_version: int) -> tuple[str | None, ...]:
    """Return the names that the columns of a version had before an earlier one; None for columns added since."""
    inside = [each for each in look.commits if from_version <= each.version <= through_version]
    names = walk(look.metadata_at(from_version - 1), inside).former_names
    return tuple(names[each["name"]] for each in look.metadata_at(through_version).fields)
