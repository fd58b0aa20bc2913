"""`Conflicts`: the logged conflicts of a replica, or some of them, and what can be done with them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from mergerepl.calls import Caller, methods_of_caller, require_choice, require_limit
from mergerepl.errors import ConfigurationError
from mergerepl.model.conflict_filter import Choice, ConflictFilter, ConflictStatus, Wish
from mergerepl.model.conflicts import (
    ConflictCount,
    ConflictRecord,
    ExportedFile,
    PurgeResult,
    ResolveResult,
    RetryResult,
)
from mergerepl.model.listing import Listing
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIELDS = {"day": "day", "table": "article", "type": "conflict_type", "resolver": "resolver"}
"""What `count_by` counts by -> the field of a `ConflictCount`."""


@methods_of_caller
class Conflicts(Caller):
    """The logged conflicts of a replica, newest first; `where` chooses among them. Only `rows` and `resolve` need Java.

    The publisher logs them, unless the file says otherwise. Iterating yields `ConflictRecord`s without their rows.

    Attributes:
        root: The folder of the replica.
        chosen: The conditions that all of them meet.
    """

    def __init__(
        self,
        root: Location,
        *,
        chosen: ConflictFilter | None = None,
        spark: SparkSession | None = None,
        lock_wait_s: float = 0.0,
    ) -> None:
        super().__init__(spark, lock_wait_s)
        self.root = root
        self.chosen = chosen or ConflictFilter()

    def __repr__(self) -> str:
        return f"Conflicts({str(self.root)!r}, {self.chosen})"

    def where(
        self,
        table: str | None = None,
        *,
        publication: str | None = None,
        ids: Sequence[str] = (),
        conflict_type: int | Sequence[int] = (),
        status: ConflictStatus | str | None = None,
        from_: datetime | None = None,
        to: datetime | None = None,
        column: str | None = None,
        resolver: str | None = None,
    ) -> Conflicts:
        """Return those of the conflicts that also meet these conditions.

        Args:
            table: Name of the article.
            publication: Its name.
            ids: Ids, or beginnings of them.
            conflict_type: Types of conflicts, by number.
            status: open or settled.
            from_: The first time; UTC without a zone.
            to: The last time, with it.
            column: A column in conflict.
            resolver: The resolver that decided.

        Raises: ConfigurationError if a status is unknown.
        """
        if status is not None:
            require_choice("status of conflicts", str(status), [each.value for each in ConflictStatus])
        given: dict[str, Any] = {
            "article": table,
            "publication": publication,
            "ids": tuple(ids) or None,
            "types": ((conflict_type,) if isinstance(conflict_type, int) else tuple(conflict_type)) or None,
            "status": None if status is None else ConflictStatus(status),
            "since": from_,
            # The filter excludes its end.
            "until": None if to is None else to + timedelta(microseconds=1),
            "column": column,
            "resolver": resolver,
        }
        chosen = replace(self.chosen, **{name: each for name, each in given.items() if each is not None})
        return Conflicts(self.root, chosen=chosen, spark=self.spark, lock_wait_s=self.lock_wait_s)

    def list(self, *, limit: int | None = None, with_rows: bool = False) -> Listing[ConflictRecord]:
        """Return the conflicts, newest first; without a `limit` all of them, in memory.

        `with_rows` adds `losing_row` and `winning_row`: column to value, None for a delete.

        Raises: ConfigurationError if the folder is not a replica, a name or an id is unknown, or the limit is out of
            range; StoreError.
        """
        from mergerepl.conflicts.listing import read_conflicts
        from mergerepl.conflicts.lost_edits import has_merge, read_lost_edits

        if limit is not None:
            require_limit(limit)
        self._require_ids()
        found = read_lost_edits(self.root, self.chosen, limit=limit, with_rows=with_rows)
        if has_merge(self.root):
            found += read_conflicts(self.root, self.chosen, limit=limit, with_rows=with_rows)
            found.sort(key=lambda each: each.created, reverse=True)
        shown = Listing.limited(found[:limit], limit, self.count)
        missing = self.chosen.ids_without([each.conflict_id for each in shown])
        if missing and len(shown) != limit:
            raise ConfigurationError(
                f"Conflict {missing[0]!r} at '{self.root}' is not among what the other conditions mean: leave them out.",
                conflict_id=missing[0],
            )
        return shown

    def get(self, conflict_id: str) -> ConflictRecord:
        """Return one conflict with its rows; `conflict_id` is its id, or the beginning of it.

        Raises: ConfigurationError if the id is unknown, or the beginning of several.
        """
        from mergerepl.conflicts.listing import no_conflict, read_conflicts
        from mergerepl.conflicts.lost_edits import has_merge, read_lost_edits

        chosen = replace(self.chosen, ids=(conflict_id,))
        found = read_lost_edits(self.root, chosen, with_rows=True)
        if has_merge(self.root):
            found += read_conflicts(self.root, chosen, with_rows=True, is_one=True)
        if not found:
            raise ConfigurationError(no_conflict(self.root, [conflict_id]))
        if len(found) > 1:
            raise ConfigurationError(
                f"Several conflicts at '{self.root}' begin with '{conflict_id}': "
                f"{', '.join(each.conflict_id for each in found[:10])}. Give more of the id."
            )
        return found[0]

    def count(self) -> int:
        """Return the number of conflicts.

        Raises: as `list`.
        """
        from mergerepl.conflicts.listing import count_conflicts
        from mergerepl.conflicts.lost_edits import count_lost_edits, has_merge

        lost = count_lost_edits(self.root, self.chosen)
        return lost + (count_conflicts(self.root, self.chosen) if has_merge(self.root) else 0)

    def count_by(self, *fields: str) -> Listing[ConflictCount]:
        """Count the conflicts by day (UTC, the newest first), table, type, resolver; without fields by all of them.

        Fields that are not counted by are empty in the result.

        Raises: as `list`; ConfigurationError if a field is unknown.
        """
        from mergerepl.conflicts.listing import conflict_summary
        from mergerepl.conflicts.lost_edits import has_merge, summary_of_lost_edits

        for field in fields:
            require_choice("field to count by", field, tuple(_FIELDS))
        self._require_ids()
        found = list(summary_of_lost_edits(self.root, self.chosen))
        if has_merge(self.root):
            found += conflict_summary(self.root, self.chosen)
        return Listing(_added(found, fields or tuple(_FIELDS)))

    def rows(self, table: str) -> DataFrame:
        """Return the losing rows of one article joined with MSmerge_conflicts_info, as a Spark DataFrame.

        Columns: the article's own, with the losing row's values (NULL for a losing delete), then those of
        MSmerge_conflicts_info (docs/system-tables.md); one whose name the article also uses is called `info_<name>`.
        The publication is the only condition that counts.

        Raises: ConfigurationError if the folder is not a replica or does not have the article; StoreError, EngineError.
        """
        from mergerepl.conflicts.listing import conflict_frame
        from mergerepl.spark import session as engine

        self._require_merge("read as a frame")
        return conflict_frame(engine.session(), self.root, publication=self.chosen.publication, article=table)

    def resolve(
        self,
        choice: Literal["winner", "loser"] | Mapping[str, str | None],
        *,
        whole_row: bool = False,
        force: bool = False,
        dry_run: bool = False,
        message: str = "",
        progress: Progress | None = None,
    ) -> ResolveResult:
        """Decide the conflicts again, by an ordinary change of this replica that replicates everywhere.

        Args:
            choice: `winner` (nothing is written, the conflicts are settled), `loser`, or the values to set in each row:
                column to value as text, None for NULL.
            whole_row: Write the whole losing row, not just the columns in conflict.
            force: Also write rows that were changed since the conflict.
            dry_run: Only report what would be written.
            message: The reason, for the record.
            progress: Receives the steps.

        Raises: ConfigurationError if no conflict matches, or a column or value cannot be set; ConflictError if there are
            too many, a session is interrupted, or the article is no longer published; LeaseError, StoreError,
            CommitConflictError, EngineError.
        """
        from mergerepl.conflicts import resolve
        from mergerepl.spark import session as engine

        self._require_merge("decided again")
        values = {} if isinstance(choice, str) else dict(choice)
        if isinstance(choice, str):
            require_choice("decision", choice, ("winner", "loser"))
        elif not values:
            raise ConfigurationError("Say what to accept (winner, loser), or which values to set.")
        wish = Wish(
            Choice(choice) if isinstance(choice, str) else Choice.EDITED,
            values,
            whole_rows=whole_row,
            force=force,
            message=message,
        )
        return resolve.resolve_conflicts(
            engine.session, self.root, self.chosen, wish, dry_run=dry_run, progress=progress or NoProgress()
        )

    def retry(self) -> RetryResult:
        """Let the next sessions resend changes that a table refused, though neither row nor table has changed.

        This covers the refused changes waiting at the replica, and those waiting for it at the replicas in reach. Only
        the conditions on publication and table count.

        Raises: ConfigurationError if the folder is not a replica or a name is unknown; ConflictError if a session is
            interrupted; LeaseError, StoreError.
        """
        from mergerepl.conflicts import decide_again

        self._require_merge("sent again")
        chosen = self.chosen
        return decide_again.retry_failed(self.root, publication=chosen.publication, article=chosen.article)

    def drop(self, *, older_than: timedelta | None = None, dry_run: bool = False) -> PurgeResult:
        """Remove the conflicts from the log, with their losing rows; without `older_than`, those past their retention.

        Raises: ConfigurationError if the folder is not a replica, or a name or an id is unknown; LeaseError, StoreError.
        """
        from mergerepl.conflicts.lost_edits import has_merge, purge_lost_edits
        from mergerepl.conflicts.purge import purge_conflicts

        self._require_ids()
        terms: dict[str, Any] = {"older_than": older_than, "dry_run": dry_run}
        lost = purge_lost_edits(self.root, self.chosen, **terms)
        if not has_merge(self.root):
            return lost
        found = purge_conflicts(self.root, self.chosen, **terms)
        return replace(found, conflicts=found.conflicts + lost.conflicts, rows=found.rows + lost.rows)

    def export(
        self, output: str | os.PathLike[str] | TextIO, *, format: Literal["csv", "json", "parquet"] = "csv"
    ) -> Listing[ExportedFile]:
        """Write the conflicts with their rows into a folder, one file for each article; or all of them to an open file.

        Raises: as `list`; ConfigurationError if the folder cannot be written, or an open file is to hold Parquet, or
            the CSV of several articles.
        """
        from mergerepl.conflicts.export import export_conflicts, write_conflicts

        self._require_merge("exported")
        require_choice("format", format, ("csv", "json", "parquet"))
        self._require_ids()
        if isinstance(output, str | os.PathLike):
            return Listing(export_conflicts(self.root, Path(output), self.chosen, form=format))
        write_conflicts(self.root, output, self.chosen, form=format)
        return Listing()

    def report(self, output: str | os.PathLike[str] | TextIO, *, limit: int = 2000) -> int:
        """Write the newest conflicts as one self-contained HTML page to a path or an open file; return their number.

        Raises: as `list`; ConfigurationError if the file cannot be written.
        """
        from mergerepl.conflicts.html_page import conflict_page

        records = self.list(limit=limit, with_rows=True)
        page = conflict_page(str(self.root), records, total=self.count())
        if not isinstance(output, str | os.PathLike):
            output.write(page)
            return len(records)
        try:
            Path(output).write_text(page, encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"The report cannot be written to '{output}': {error.strerror}. Name another file.",
                path=str(output),
            ) from error
        return len(records)

    def _require_ids(self) -> None:
        from mergerepl.conflicts.listing import no_conflict, require_ids
        from mergerepl.conflicts.lost_edits import has_merge, read_lost_edits

        if not self.chosen.ids:
            return
        chosen = ConflictFilter(ids=self.chosen.ids)
        missing = chosen.ids_without([each.conflict_id for each in read_lost_edits(self.root, chosen)])
        if missing and has_merge(self.root):
            require_ids(self.root, replace(chosen, ids=tuple(missing)))
        elif missing:
            raise ConfigurationError(no_conflict(self.root, missing))

    def _require_merge(self, done: str) -> None:
        """Refuse a task that only conflicts of merge replication have."""
        from mergerepl.conflicts.lost_edits import has_merge

        if not has_merge(self.root):
            raise ConfigurationError(
                f"Conflicts of a transactional publication cannot be {done}, only listed, shown, counted, reported and "
                f"dropped. Nothing was changed. The publisher's row stands at '{self.root}': to bring an edit back, write "
                "its values again (`mergerepl conflicts show` has them).",
                root=str(self.root),
            )

    def _repr_html_(self) -> str:
        return self.list(limit=100)._repr_html_()


def _added(counts: Iterable[ConflictCount], fields: Sequence[str]) -> Iterable[ConflictCount]:
    """Add up counts that are alike in some fields; the other fields become empty."""
    left_out: dict[str, Any] = {name: None for field, name in _FIELDS.items() if field not in fields}
    found: dict[tuple[Any, ...], ConflictCount] = {}
    for each in counts:
        key = tuple(getattr(each, _FIELDS[field]) for field in fields)
        before = found.get(key, replace(each, conflicts=0, columns={}, **left_out))
        columns = {name: before.columns.get(name, 0) + n for name, n in each.columns.items()}
        found[key] = replace(
            before, conflicts=before.conflicts + each.conflicts, columns={**before.columns, **columns}
        )
    return found.values()
