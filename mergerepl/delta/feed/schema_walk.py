"""Follow the columns of a table through the metadata commits of a window, for every product (schema.md 2). Pure.

A column is followed by its identity: the physical name where columns are mapped, else the name. A commit that replaces
the table, or switches column mapping, keeps the columns that it names. RESTORE brings back the columns of its version. A
commit of merge replication (`schema:`) names its published column in the mark.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mergerepl.delta.feed.column_changes import (
    ADD,
    COMMENT,
    COMPUTED,
    DEFAULT,
    DROP,
    FIELDS,
    MAPPING,
    NULLABILITY,
    RENAME,
    REPLACE,
    RESTORE,
    TYPE,
    ColumnChange,
    added_fields,
    column_id,
    is_additive,
)
from mergerepl.delta.marks import SCHEMA, SchemaStep
from mergerepl.delta.metadata import DEFAULT_EXPRESSION, GENERATION_EXPRESSION, TableMetadata
from mergerepl.delta.types import Field, ddl_of
from mergerepl.rows.sql import quote

if TYPE_CHECKING:
    from mergerepl.delta.commits import Commit

PHYSICAL_NAME: Final = "delta.columnMapping.physicalName"
_MODE: Final = "delta.columnMapping.mode"
_IDENTITY: Final = "delta.identity."

_BEGINS: Final = (SchemaStep.ADD, SchemaStep.ADOPT)
_ENDS: Final = (SchemaStep.DROP, SchemaStep.LEAVE)

Path = tuple[str, ...]
"""A column by its name, or a field inside of one by the names above it."""


@dataclass(frozen=True)
class OwnStep:
    """A step of merge replication on a published column: add, adopt, drop, leave, rename, type."""

    version: int
    what: str
    field: int


@dataclass(frozen=True)
class FollowedColumn:
    """A column, or a field inside of one, from the start of a window to its end.

    `start` and `end` are its paths then; None where it did not exist. `field` is the number of the published column at the
    end, as given for the start or by marks; `first_field` is the one at the start. `added` and `dropped` are versions.
    `lost` is the commit after which its name at the start was another column's, or nobody's. `own` are the steps of merge
    replication on it.
    """

    start: Path | None
    end: Path | None
    identity: str
    field: int | None = None
    first_field: int | None = None
    added: int | None = None
    dropped: int | None = None
    lost: "Commit | None" = None
    own: tuple[OwnStep, ...] = ()

    @property
    def is_nested(self) -> bool:
        """True for a field inside of a column."""
        return len(self.start or self.end or ()) > 1

    @property
    def first_name(self) -> str | None:
        """The name of the column at the start; None if the table lacked it."""
        return None if self.start is None else self.start[0]

    @property
    def name(self) -> str | None:
        """The name of the column at the end; None if it was dropped."""
        return None if self.end is None else self.end[0]


@dataclass(frozen=True)
class SchemaWalk:
    """The columns of a table through a window, and the changes of each commit in order."""

    columns: tuple[FollowedColumn, ...] = ()
    changes: tuple[ColumnChange, ...] = ()

    @property
    def top(self) -> Iterator[FollowedColumn]:
        """The columns of the table, without the fields inside of them."""
        return (each for each in self.columns if not each.is_nested)

    def at(self, version: int) -> list[ColumnChange]:
        """Return the changes of one commit."""
        return [each for each in self.changes if each.version == version]

    @property
    def former_names(self) -> dict[str, str | None]:
        """The name at the start of each column of the end, by its name at the end; None for a new column."""
        return {each.name: each.first_name for each in self.top if each.name is not None}

    def published(self) -> dict[int, FollowedColumn]:
        """Return the published columns at the end, by the numbers of their fields."""
        return {each.field: each for each in self.top if each.field is not None and each.end is not None}

    @property
    def replaced_names(self) -> "dict[Path, Commit]":
        """The paths at the start that other columns have at the end, with the commits that took them away."""
        ends = {each.end: each for each in self.columns if each.end is not None}
        return {
            each.start: each.lost
            for each in self.columns
            if each.start is not None and each.lost is not None and ends.get(each.start, each) is not each
        }


@dataclass(eq=False)
class _Track:
    """One column while it is followed. `now` and `identity` are None while the table lacks it; `had` are all identities."""

    start: Path | None
    now: Path | None
    identity: Path | None
    last: Path
    number: int | None = None
    first_number: int | None = None
    added: int | None = None
    dropped: "Commit | None" = None
    lost: "Commit | None" = None
    had: list[Path] = field(default_factory=list)
    own: list[OwnStep] = field(default_factory=list)


_State = dict[_Track, tuple[Path, Path]]
"""Each column that a version has, with its name and its identity."""


def walk(
    before: TableMetadata,
    commits: "Iterable[Commit]",
    *,
    fields: Mapping[str, int] | None = None,
    replid: str | None = None,
) -> SchemaWalk:
    """Follow the columns of a table from its metadata at a position through the commits after it, oldest first.

    Args:
        before: The metadata at the position.
        commits: The commits after it; those without metadata or mark are passed over.
        fields: The numbers of the published columns at the position, by their identities.
        replid: The replica whose `schema:` marks count. None: such commits count as anybody's.
    """
    walker = _Walker(before, fields or {})
    for commit in commits:
        walker.passed(commit, replid)
    return SchemaWalk(tuple(walker.columns()), tuple(walker.changes))


def identity_of(column: Field) -> str:
    """Return the identity of a column of a table's metadata."""
    return str(column["metadata"].get(PHYSICAL_NAME, column["name"]))


def is_replacement(commit: "Commit") -> bool:
    """Whether a commit replaced the columns of the table together with its rows."""
    return commit.metadata is not None and commit.operation != "RESTORE" and commit.replaces_table


class _Walker:
    def __init__(self, before: TableMetadata, fields: Mapping[str, int]) -> None:
        self.tracks: list[_Track] = []
        self.changes: list[ColumnChange] = []
        self.metadata = before
        self.first: int | None = None
        self.states: list[tuple[int, _State]] = []
        for name, identity in identities(before.fields).items():
            number = fields.get(identity[0]) if len(name) == 1 else None
            self.tracks.append(_Track(name, name, identity, identity, number, number, had=[identity]))
        self.states.append((-1, self.state()))

    def state(self) -> _State:
        return {
            each: (each.now, each.identity)
            for each in self.tracks
            if each.now is not None and each.identity is not None
        }

    def passed(self, commit: "Commit", replid: str | None) -> None:
        if self.first is None:
            self.first = commit.version
        step = None
        if commit.mark is not None and commit.kind == SCHEMA and commit.mark.replid == replid:
            step = SchemaStep.of(commit.mark.step)
        before, old = self.state(), self.metadata
        if commit.metadata is not None:
            self.follow(commit, commit.metadata)
            self.metadata = commit.metadata
        if step is not None and step.what in _BEGINS:
            self.begin(commit.version, step, before)
        if commit.metadata is not None:
            self.states.append((commit.version, self.state()))
            self.changes += _changes(commit, before, old, self.state(), commit.metadata)
        if step is not None and step.what not in _BEGINS:
            self.go_on(commit.version, step)

    def follow(self, commit: "Commit", metadata: TableMetadata) -> None:
        """Give each column its name and identity after a commit that states the table's metadata."""
        new = identities(metadata.fields)
        found = self.restored(commit, new) if commit.operation == "RESTORE" else self.matched(commit, new)
        taken = {name for name, _ in found.values()}
        for track in self.tracks:
            if track in found:
                track.now, track.identity = found[track]
                track.dropped = None
                track.last = found[track][1]
                track.had.append(track.last)
            else:
                if track.now is not None:
                    track.dropped = commit
                track.now = track.identity = None
            if track.start is not None and track.now == track.start:
                track.lost = None
            elif track.lost is None:
                track.lost = commit
        for name, identity in new.items():
            if name not in taken:
                self.tracks.append(
                    _Track(None, name, identity, identity, added=commit.version, had=[identity])
                )

    def matched(self, commit: "Commit", new: Mapping[Path, Path]) -> _State:
        """Return where the columns are after a commit other than RESTORE."""
        present = self.state()
        switched = _mode(self.metadata) != _mode(commit.metadata)
        found: _State = {}
        if not switched:
            by_identity = {identity: name for name, identity in new.items()}
            found = {t: (by_identity[i], i) for t, (_, i) in present.items() if i in by_identity}
        if switched or commit.data_change or is_replacement(commit):
            taken = {name for name, _ in found.values()}
            for track, (name, _) in present.items():
                if track not in found and name in new and name not in taken:
                    found[track] = name, new[name]
        return found

    def restored(self, commit: "Commit", new: Mapping[Path, Path]) -> _State:
        """Return where the columns are after RESTORE: as in its version, if that is in the window, else by identity."""
        wanted = commit.restored_version
        if wanted is not None and self.first is not None and wanted >= self.first - 1:
            state = [state for version, state in self.states if version <= wanted][-1]
            return {track: where for track, where in state.items() if new.get(where[0]) == where[1]}
        found: _State = {}
        left = {identity: name for name, identity in new.items()}
        present = self.state()
        for track in (*present, *(each for each in self.tracks if each not in present)):
            had = [present[track][1]] if track in present else track.had
            identity = next((each for each in had if each in left), None)
            if identity is not None:
                found[track] = left.pop(identity), identity
        return found

    def begin(self, version: int, step: SchemaStep, before: _State) -> None:
        """Give a column the number that the mark of an own commit names."""
        news = [track for track, (name, _) in self.state().items() if len(name) == 1]
        track = next((each for each in news if each.now == (step.name,)), None)
        if track is None and step.what == SchemaStep.ADD:
            track = next((each for each in news if each not in before), None)
        if track is not None:
            track.number = step.field
            track.own.append(OwnStep(version, step.what, step.field))

    def go_on(self, version: int, step: SchemaStep) -> None:
        """Note a step on a published column, and take its number away if it is published no more."""
        for track in self.tracks:
            if track.number == step.field:
                track.own.append(OwnStep(version, step.what, step.field))
                if step.what in _ENDS:
                    track.number = None
                if step.what == SchemaStep.LEAVE and track.now is not None:
                    self.changes.append(ColumnChange(version, DROP, track.now[0], field=step.field))

    def columns(self) -> Iterator[FollowedColumn]:
        for each in self.tracks:
            yield FollowedColumn(
                each.start,
                each.now,
                (each.identity or each.last)[-1],
                each.number,
                each.first_number,
                each.added,
                None if each.dropped is None else each.dropped.version,
                each.lost,
                tuple(each.own),
            )


def _changes(
    commit: "Commit", before: _State, old: TableMetadata, after: _State, new: TableMetadata
) -> list[ColumnChange]:
    """Return the changes of one commit: drops and other changes in the order of the columns before, then new columns."""
    olds = {each["name"]: each for each in old.fields}
    news = {each["name"]: each for each in new.fields}
    found: list[ColumnChange] = []
    for track, (name, _) in sorted(before.items(), key=lambda each: _place(old.fields, each[1][0])):
        if len(name) == 1:
            now = news[after[track][0][0]] if track in after else None
            number = column_id(old.fields, name[0])
            found += _change(commit.version, olds[name[0]], now, number, track.number)
    for track, (name, _) in sorted(after.items(), key=lambda each: _place(new.fields, each[1][0])):
        if len(name) == 1 and track not in before:
            column = news[name[0]]
            found.append(
                ColumnChange(
                    *(commit.version, ADD, "", name[0], "", ddl_of(column["type"]), column["nullable"]),
                    column_id=column_id(new.fields, name[0]),
                    new_text=_default(column),
                    field=track.number,
                )
            )
    if _mode(old) != _mode(new):
        found.append(ColumnChange(commit.version, MAPPING, new_text=_mode(new)))
    if commit.operation == "RESTORE":
        text = "" if commit.restored_version is None else str(commit.restored_version)
        found.append(ColumnChange(commit.version, RESTORE, new_text=text))
    elif is_replacement(commit) or (commit.data_change and not is_additive(found)):
        found.append(ColumnChange(commit.version, REPLACE))
    return found


def _place(fields: Sequence[Mapping[str, Any]], name: Path) -> int:
    return next(place for place, each in enumerate(fields) if each["name"] == name[0])


def _change(
    version: int, old: Field, new: Field | None, number: int, published: int | None
) -> Iterator[ColumnChange]:
    name, type_ = old["name"], ddl_of(old["type"])
    if new is None:
        yield ColumnChange(version, DROP, name, old_type=type_, column_id=number, field=published)
        return
    new_name, new_type, is_nullable = new["name"], ddl_of(new["type"]), new["nullable"]

    def change(kind: str, *, fields: Sequence[str] = (), text: str = "") -> ColumnChange:
        return ColumnChange(
            *(
                version,
                kind,
                name,
                new_name,
                type_,
                new_type,
                is_nullable,
                number,
                tuple(fields),
                text,
                published,
            )
        )

    if new_name != name:
        yield change(RENAME)
    if new_type != type_:
        fields = added_fields(old["type"], new["type"], quote(new_name))
        yield change(TYPE if fields is None else FIELDS, fields=fields or ())
    if is_nullable != old["nullable"]:
        yield change(NULLABILITY)
    for kind, text in ((DEFAULT, _default), (COMMENT, _comment), (COMPUTED, _computed)):
        if text(old) != text(new):
            yield change(kind, text=text(new))


def _default(column: Field) -> str:
    return str(column["metadata"].get(DEFAULT_EXPRESSION, ""))


def _comment(column: Field) -> str:
    return str(column["metadata"].get("comment", ""))


def _computed(column: Field) -> str:
    identity = any(name.startswith(_IDENTITY) for name in column["metadata"])
    return "identity" if identity else str(column["metadata"].get(GENERATION_EXPRESSION, ""))


def _mode(metadata: TableMetadata | None) -> str:
    return "none" if metadata is None else metadata.configuration.get(_MODE, "none").lower()


def identities(fields: Sequence[Field]) -> dict[Path, Path]:
    """Return the identity of each column, and of each field inside of one: path of names -> path of physical names."""
    return dict(_identities(fields, (), ()))


def _identities(fields: Sequence[Field], names: Path, physical: Path) -> Iterator[tuple[Path, Path]]:
    for each in fields:
        name, identity = (*names, each["name"]), (*physical, identity_of(each))
        yield name, identity
        yield from _inside(each["type"], name, identity)


def _inside(type_: Any, names: Path, physical: Path) -> Iterator[tuple[Path, Path]]:
    if isinstance(type_, str):
        return
    yield from _identities(type_.get("fields", ()), names, physical)
    for part in ("elementType", "keyType", "valueType"):
        if part in type_:
            yield from _inside(type_[part], (*names, part), (*physical, part))
