"""The next move of an article's definition at a replica: which commits change the published columns, and to what. Pure.

Capture cuts its window there: rows written before are read under the old columns, so that they say nothing of new ones.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mergerepl.delta.contract.problems import Code, TableContract
from mergerepl.delta.feed.column_changes import (
    ADD,
    COMPUTED,
    DROP,
    FIELDS,
    NULLABILITY,
    RENAME,
    REPLACE,
    RESTORE,
    STATEMENTS,
    TYPE,
    ColumnChange,
)
from mergerepl.delta.feed.schema_walk import SchemaWalk, identity_of, walk
from mergerepl.delta.feed.window import FeedWindow
from mergerepl.delta.marks import SchemaStep
from mergerepl.delta.metadata import DEFAULT_EXPRESSION, TableMetadata
from mergerepl.delta.tables import Commit, TableState
from mergerepl.delta.types import Field, ddl_of, is_widening
from mergerepl.model.definition import Definition, PublishedField
from mergerepl.model.resolvers import resolver_info
from mergerepl.model.tracking_options import SYSTEM_PREFIX
from triggers.schema_checks import ArticleTable, changed_columns, named_columns

_OF_PUBLISHED = (DROP, RENAME, TYPE, FIELDS, NULLABILITY, COMPUTED)
_FOLLOWED = (RENAME, DROP, NULLABILITY, TYPE)
"""Changes of published columns that travel."""

_WHOLE = frozenset({"tinyint", "smallint", "int", "bigint"})

_UNFIT = (
    *(Code.FEED_NAME, Code.MERGE_NAME, Code.MAPPED_NAME, Code.MAPPED_PART, Code.BACKTICK, Code.BACKTICK_PART),
    *(Code.VOID, Code.TYPE, Code.COLLATED, Code.IDENTITY, Code.GENERATED, Code.INNER_RULE, Code.INNER_LENGTH),
)
"""Problems of a column that is added later; a generated one would have to be computed for all rows."""


@dataclass(frozen=True)
class Move:
    """A move of an article's definition, by the commits from `first` to `through`.

    `changes` are those of published columns. `gap` is why the rows before `first` and at `through` are compared; None if
    the feed has what these commits changed. `former` has by column of the new definition its name before `first`; None: it
    is new.
    """

    definition: Definition
    first: int
    through: int
    changes: tuple[ColumnChange, ...]
    gap: str | None
    former: Mapping[str, str | None]

    def dropped(self, before: Definition) -> list[PublishedField]:
        """Return the fields of the definition before that end with it."""
        return [each for each in before.fields if each.number not in self.definition.by_number]


@dataclass(frozen=True)
class Follower:
    """An article at one replica, with its definition there and all that its row of sysmergearticles has.

    Those of later versions are left of a move that died: it is made again, or its versions and numbers are passed over.
    """

    at: ArticleTable
    definition: Definition
    entered: Mapping[int, Definition]
    filtered: Sequence[str] = ()
    """The columns that row filters read."""

    def next_move(self, window: FeedWindow) -> Move | None:
        """Return the next move of the definition in a window; None without one.

        None also where the log no longer says what happened, and for changes that are not followed: the checks of a
        session then refuse the article.

        Raises: SchemaMismatchError if a new column cannot be published, or one that a row filter reads has changed.
        """
        numbers = self._numbers(window)
        if numbers is None:
            return None
        before = self._before(window)
        walked = walk(before, window.commits, fields=numbers, replid=self.at.replid)
        whole = self._counted(walked)
        # A column that a session which died added, and a user took away: the next step adds it again.
        lost = _own_added(walked) - walked.published().keys() - set(numbers.values())
        late = [each["name"] for each in before.fields if identity_of(each) not in numbers]
        # A session that was writing when a column was added passed that commit.
        is_late = any(self._is_published(name) for name in late)
        if not whole and not is_late:
            return None
        self._refuse_changed_filter(window, walked)
        first = window.from_version_exclusive + 1 if is_late else whole[0].version
        # RESTORE takes a DROP back: the field never ended.
        dropped = {each.field for each in whole if each.kind == DROP and each.version == first}
        # A type that becomes narrower counts by the table at the end: RESTORE takes a wider one back.
        is_narrowed = any(
            not is_widening(each.old_type, each.new_type) for each in whole if each.kind == TYPE
        )
        is_whole = is_late or bool(lost) or bool(dropped & walked.published().keys()) or is_narrowed
        through = window.through_version_inclusive if is_whole else self._through(window, first, whole)
        passed = [commit for commit in window.commits if commit.version <= through]
        walked = walk(before, passed, fields=numbers, replid=self.at.replid)
        changes = [each for each in self._counted(walked) if each.version <= through]
        metadata = next((c.metadata for c in reversed(passed) if c.metadata is not None), before)
        is_replaced = any(each.kind in (REPLACE, RESTORE) for each in changes)
        if any(not self._is_followed(each, window) for each in changes if each.field not in lost):
            return None
        definition, former = self._after(walked, metadata, changes)
        if not self._are_wider(definition):
            return None
        self._refuse_unfit(window, definition, passed[-1])
        gap = "the table was replaced" if is_replaced else None
        gap = "a column that was being added was taken away" if lost else gap
        gap = "a column was added while a session wrote" if is_late else gap
        gap = "a column of the table's own was adopted" if _adopted(walked) else gap
        return Move(definition, first, through, tuple(changes), gap, former)

    def ended(self, window: FeedWindow) -> tuple[str, ...]:
        """Return the published columns that are no more at a window's end."""
        numbers = self._numbers(window)
        if numbers is None:
            return ()
        last = walk(self._before(window), window.commits, fields=numbers, replid=self.at.replid).published()
        return tuple(each.name for each in self.definition.fields if each.number not in last)

    def _through(self, window: FeedWindow, first: int, changes: Iterable[ColumnChange]) -> int:
        """Return the last version of a move that begins with a commit.

        A replacement is compared with the head, once for all of them, or with the table before an own ALTER: its rows say
        nothing of that column. Else the move ends before the next commit with rows, which is captured under the new
        definition.
        """
        kinds = {each.kind for each in changes if each.version == first}
        passed = [*_from(window.commits, first)]
        if kinds & {REPLACE, RESTORE}:
            altered = (each.version for each in passed if self._is_own_step(each))
            return next(altered, window.through_version_inclusive + 1) - 1
        through = first
        for commit in passed:
            if commit.data_change:
                break
            through = commit.version
        return through

    def _is_own_step(self, commit: Commit) -> bool:
        mark = commit.mark
        return mark is not None and mark.replid == self.at.replid and SchemaStep.of(mark.step) is not None

    def _before(self, window: FeedWindow) -> TableMetadata:
        assert window.before is not None
        return window.before

    def _numbers(self, window: FeedWindow) -> dict[str, int] | None:
        """Return the numbers of the published columns by their identities at the window's start; None if unknown."""
        if window.unreadable is not None or not window.commits or window.before is None:
            return None
        identities = {column["name"]: identity_of(column) for column in window.before.fields}
        if any(field.name not in identities for field in self.definition.fields):
            return None
        return {identities[field.name]: field.number for field in self.definition.fields}

    def _counted(self, walked: SchemaWalk) -> list[ColumnChange]:
        """Return the changes of the definition; RESTORE is one only if it changed columns."""
        stated = sorted([*walked.changes, *_adopted(walked)], key=lambda each: each.version)
        counted = [each for each in stated if self._counts(each)]
        replaced = {each.version for each in counted if each.kind == REPLACE}
        # A replacement that states nothing takes no comment or default away from subscribers.
        found = [
            each
            for each in counted
            if each.kind not in STATEMENTS or each.new_text or each.version not in replaced
        ]
        changed = {each.version for each in found if each.kind not in (RESTORE, *STATEMENTS)}
        return [each for each in found if each.kind != RESTORE or each.version in changed]

    def _counts(self, change: ColumnChange) -> bool:
        if change.kind == ADD:
            return change.field is not None or self._is_published(change.new_name)
        if change.kind in STATEMENTS:
            return self.at.is_publisher and change.field is not None
        return change.kind in (REPLACE, RESTORE) or (
            change.kind in _OF_PUBLISHED and change.field is not None
        )

    def _is_followed(self, change: ColumnChange, window: FeedWindow) -> bool:
        """Whether a change may travel: at a subscriber only what the agent did changes published columns."""
        if change.kind not in _OF_PUBLISHED:
            return True
        if any(each.version == change.version and self._is_own_step(each) for each in window.commits):
            return True
        if change.kind == TYPE and not self.at.is_publisher:
            # The publisher's column has the same type by now.
            return self._is_taken_over(change, window)
        if not self.at.is_publisher or change.kind not in _FOLLOWED:
            return False
        if change.kind == NULLABILITY:
            return True
        if change.kind == TYPE and change.column in self._whole_keys:
            return {change.old_type, change.new_type} <= _WHOLE
        return change.column not in named_columns(self.at.article)

    def _is_taken_over(self, change: ColumnChange, window: FeedWindow) -> bool:
        """Whether merge replication said later that a type which a user gave a column is the publisher's, or widened it."""
        steps = [
            SchemaStep.of(each.mark.step)
            for each in _from(window.commits, change.version)
            if each.mark is not None and self._is_own_step(each)
        ]
        return any(each and (each.what, each.field) == (SchemaStep.TYPE, change.field) for each in steps)

    def _are_wider(self, after: Definition) -> bool:
        """Whether each column has its type, or one that Delta widens it to."""
        known = self.definition.by_number
        pairs = ((known[each.number].type, each.type) for each in after.fields if each.number in known)
        return all(before == now or is_widening(before, now) for before, now in pairs)

    @property
    def _whole_keys(self) -> set[str]:
        """The key columns: a rowguid that is made of whole numbers is the same for all their types."""
        article = self.at.article
        if article.rowguid_column is not None:
            return set()
        others = {*dict(article.generated), *resolver_info(article.resolver_info).columns}
        return {*article.identity} - others

    def _is_published(self, name: str) -> bool:
        """Whether a column that a user adds is published: at the publisher, if the article has all columns."""
        return self.at.is_publisher and not self.at.article.vertical and not name.startswith(SYSTEM_PREFIX)

    def _after(
        self, walked: SchemaWalk, metadata: TableMetadata, changes: Iterable[ColumnChange]
    ) -> tuple[Definition, dict[str, str | None]]:
        """Return the definition after a walk, and the former names of its columns."""
        columns = {column["name"]: column for column in metadata.fields}
        published = walked.published()
        order = {field.number: place for place, field in enumerate(self.definition.fields)}
        fields: list[PublishedField] = []
        former: dict[str, str | None] = {}
        for number, column in sorted(
            published.items(), key=lambda each: (order.get(each[0], len(order)), each[0])
        ):
            assert column.name is not None
            fields.append(published_field(number, columns[column.name]))
            # The values of an adopted column are changes: it counts as new.
            former[column.name] = column.first_name if number in order else None
        taken = {field.name for field in fields}
        news = [column for name, column in columns.items() if name not in taken and self._is_published(name)]
        former |= {column["name"]: None for column in news}
        is_changed = self.at.is_publisher and any(each.kind in (NULLABILITY, *STATEMENTS) for each in changes)
        return self._next(fields, news, is_changed=is_changed), former

    def _next(
        self, fields: Sequence[PublishedField], news: Sequence[Field], *, is_changed: bool
    ) -> Definition:
        """Return the next definition: these fields, then new columns under the next numbers."""
        left = [each for version, each in self.entered.items() if version > self.definition.version]
        is_root = self.at.is_publisher

        def with_news(known: Iterable[Definition], version: int) -> Definition:
            first = 1 + max(field.number for each in known for field in each.fields)
            numbered = [published_field(number, column) for number, column in enumerate(news, first)]
            return self.definition.next([*fields, *numbered], version, is_root=is_root, is_changed=is_changed)

        counted = [each for version, each in self.entered.items() if version <= self.definition.version]
        after = with_news(counted, self.definition.version + 1)
        again = next((each for each in left if each.is_like(after)), None)
        if after is self.definition or not left:
            return after
        return again or with_news(self.entered.values(), max(self.entered) + 1)

    def _refuse_changed_filter(self, window: FeedWindow, walked: SchemaWalk) -> None:
        """Check that the columns that row filters read are at the window's end as they were.

        Raises: SchemaMismatchError naming the first one that is not.
        """
        stated = window.metadata_commits
        if not self.filtered or not stated or stated[-1].metadata is None:
            return
        types = {column["name"]: ddl_of(column["type"]) for column in stated[-1].metadata.fields}
        names = {number: column.name for number, column in walked.published().items()}
        for field in self.definition.fields:
            is_same = names.get(field.number) == field.name and types.get(field.name) == field.type
            if field.name in self.filtered and not is_same:
                problem = f"column '{field.name}', which a row filter reads, was dropped, renamed or given another type"
                raise changed_columns(self.at, problem, stated[-1])

    def _refuse_unfit(self, window: FeedWindow, after: Definition, commit: Commit) -> None:
        """Check that new columns, and those with new names, can be published.

        Raises: SchemaMismatchError naming the first one that cannot.
        """
        known = self.definition.by_number
        for field in after.fields:
            before = known.get(field.number)
            problem = None
            if before is None or before.name != field.name:
                problem = self.problem_of_new(window.table, field, is_added=before is None)
            elif before.type != field.type:
                problem = self._problem_of_type(field)
            if problem is not None:
                raise changed_columns(self.at, problem, commit)

    def _problem_of_type(self, field: PublishedField) -> str | None:
        others = _unlike(self._named_as(field), field)
        is_wider = f"column '{field.name}' is {field.type} now"
        return f"{is_wider}, and another column of that name was {others[-1]}" if others else None

    def _named_as(self, field: PublishedField) -> list[PublishedField]:
        """Return all that ever had a field's name: their losing rows are in one column of the conflict table."""
        counted = (each for version, each in self.entered.items() if version <= self.definition.version)
        named = (each for known in counted for each in known.fields)
        return [each for each in named if each.name.lower() == field.name.lower()]

    def problem_of_new(self, table: TableState, field: PublishedField, *, is_added: bool) -> str | None:
        """Return why a new column of the publisher's table, or a new name, cannot be published; None if it can."""
        is_new = f"column '{field.name}' was added" if is_added else f"a column was renamed to '{field.name}'"
        if is_added and not field.nullable:
            return f"column '{field.name}' was added as NOT NULL"
        if field.name in resolver_info(self.at.article.resolver_info).columns:
            return f"{is_new}, which the article's resolver names"
        former = self._named_as(field)
        if any(each.name != field.name for each in former):
            return f"{is_new}, which differs from another one in letter case only"
        if others := _unlike(former, field):
            return f"{is_new}, which is {field.type}, and another column of that name was {others[-1]}"
        found = TableContract(table, [field.name]).find(*_UNFIT)
        if found is not None and found.column == field.name:
            return f"{is_new}, which cannot be published ({found.code.value})"
        return None


def _unlike(former: Iterable[PublishedField], field: PublishedField) -> list[str]:
    """Return the types of other fields that a column of the conflict table with this one's type cannot hold."""
    types = [each.type for each in former if each.number != field.number]
    return [each for each in types if each != field.type and not is_widening(each, field.type)]


def field_of(change: ColumnChange, after: Definition) -> int | None:
    """Return the number of the field that a change concerns, in the definition that it leads to; None without one."""
    if change.field is not None:
        return change.field
    return next((each.number for each in after.fields if each.name == change.new_name), None)


def published_field(number: int, column: Field) -> PublishedField:
    """Return a field as a column of a table's metadata states it."""
    metadata = column["metadata"]
    identity = identity_of(column)
    return PublishedField(
        number,
        column["name"],
        ddl_of(column["type"]),
        bool(column["nullable"]),
        metadata.get(DEFAULT_EXPRESSION),
        metadata.get("comment"),
        identity if identity != column["name"] else None,
    )


def _own_added(walked: SchemaWalk) -> set[int]:
    """Return the numbers of the columns that merge replication added, or adopted, in a window."""
    changes = [*walked.changes, *_adopted(walked)]
    return {each.field for each in changes if each.kind == ADD and each.field is not None}


def _adopted(walked: SchemaWalk) -> list[ColumnChange]:
    """Return the adoptions of a window as additions: no metadata tells them from other commits."""
    return [
        ColumnChange(step.version, ADD, "", column.name or "", field=step.field)
        for column in walked.top
        for step in column.own
        if step.what == SchemaStep.ADOPT
    ]


def _from(commits: Iterable[Commit], version: int) -> Iterator[Commit]:
    return (commit for commit in commits if commit.version >= version)
