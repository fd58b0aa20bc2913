"""Commit marks: the author of a commit, kept in its `userMetadata`.

A commit of ours carries {"mergerepl": {"session", "step", "replid", "peer", "unit"}}; fields without a value are left out.
So a reader of the log knows the author of a change, even if the process died between the commit and its bookkeeping.
"""

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

SETUP = "setup"
"""The kind of commits by which `apply` publishes a table or initialises a subscriber: properties, tables, rows."""

APPLY = "apply"
"""The kind of commits that bring a session's outcome to a user's table."""

SCHEMA = "schema"
"""The kind of commits that bring a schema change to a user's table."""

FENCE = "fence"
"""The kind of commits without rows by which the new holder of a root on a store stops an earlier one."""


@dataclass(frozen=True)
class SchemaStep:
    """The step of a `schema:` mark, `schema:<what>:c<field>[:<name>]`: a change of one published column of a table.

    `name` is the column's name in this table after the step. LEAVE: the column stays in the table, unpublished; ADOPT: the
    table had it before. These two commits have no actions.
    """

    what: str
    field: int
    name: str = ""

    ADD: ClassVar[str] = "add"
    ADOPT: ClassVar[str] = "adopt"
    DROP: ClassVar[str] = "drop"
    LEAVE: ClassVar[str] = "leave"
    RENAME: ClassVar[str] = "rename"
    TYPE: ClassVar[str] = "type"
    NULLABLE: ClassVar[str] = "nullable"
    COMMENT: ClassVar[str] = "comment"
    DEFAULT: ClassVar[str] = "default"

    @property
    def is_followed(self) -> bool:
        """True if readers follow the column by the mark; a comment or a default changes no row."""
        return self.what not in (SchemaStep.COMMENT, SchemaStep.DEFAULT)

    def to_step(self) -> str:
        """Return the step of the commit's mark."""
        kind = SCHEMA if self.is_followed else SETUP
        return f"{kind}:{self.what}:c{self.field}" + (f":{self.name}" if self.name else "")

    @staticmethod
    def of(step: str) -> "SchemaStep | None":
        """Return the step of a mark, None if it is of another kind or names no column."""
        kind, _, rest = step.partition(":")
        what, _, rest = rest.partition(":")
        field, _, name = rest.partition(":")
        is_one = kind == SCHEMA and field[:1] == "c" and field[1:].isdecimal()
        return SchemaStep(what, int(field[1:]), name) if is_one else None


MERGE_KINDS = frozenset({SETUP, APPLY, SCHEMA})
"""The kinds of commits that merge replication writes to users' tables. It treats every other commit as a user's change."""


_UNIT = "mergerepl_unit"
"""The key of a unit in the userMetadata of a user's commit."""


@dataclass(frozen=True)
class CommitUnit:
    """Commits of several tables that belong together: their id, and the tables below the root."""

    id: str
    tables: tuple[str, ...]

    def to_user_metadata(self) -> str:
        """Return the text for the userMetadata of a user's commit: {"mergerepl_unit": {"id", "tables"}}."""
        return json.dumps({_UNIT: {"id": self.id, "tables": list(self.tables)}}, separators=(",", ":"))

    @staticmethod
    def of_user_metadata(text: object) -> "CommitUnit | None":
        """Return the unit of a commit of ours or of a user, or None; other writers may store any JSON."""
        if (mark := CommitMark.of_user_metadata(text)) is not None:
            return mark.unit
        if not isinstance(text, str) or not text.startswith(f'{{"{_UNIT}":'):
            return None
        try:
            unit = json.loads(text)[_UNIT]
            return CommitUnit(str(unit["id"]), tuple(map(str, unit["tables"])))
        except (ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True)
class CommitMark:
    """The author of a commit: a session (or capture, or apply), its step, its replica and the peer replica."""

    session: str
    step: str
    replid: str = ""
    peer: str = ""
    unit: CommitUnit | None = field(default=None, compare=False)
    """Other commits to which it belongs; the others identify it."""

    @property
    def kind(self) -> str:
        """The step up to its first colon: the kind of writer."""
        return self.step.partition(":")[0]

    def to_user_metadata(self) -> str:
        """Return the text for the commit's userMetadata."""
        stated: dict[str, Any] = {"session": self.session, "step": self.step}
        stated |= {name: value for name, value in (("replid", self.replid), ("peer", self.peer)) if value}
        if self.unit is not None:
            stated["unit"] = {"id": self.unit.id, "tables": list(self.unit.tables)}
        return json.dumps({"mergerepl": stated}, separators=(",", ":"), sort_keys=True)

    @staticmethod
    def of_user_metadata(text: object) -> "CommitMark | None":
        """Return the mark of a commit, or None; other writers may store any JSON."""
        if not isinstance(text, str) or not text.startswith('{"mergerepl":'):
            return None
        try:
            mark = json.loads(text)["mergerepl"]
            unit = mark.get("unit")
            return CommitMark(
                str(mark["session"]),
                str(mark["step"]),
                str(mark.get("replid", "")),
                str(mark.get("peer", "")),
                unit and CommitUnit(str(unit["id"]), tuple(map(str, unit["tables"]))),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


def apply_step(side: str, nickname: int, round_: int) -> str:
    """Return the step of a session's commit to a user's table: of an article (its nickname), in a round."""
    return f"{APPLY}:{side}:{nickname}:{round_}"


def is_own_of_merge(mark: CommitMark | None, replid: str, nickname: int | None = None) -> bool:
    """Whether merge replication wrote a commit at this replica, so that capture leaves it out; fences have no rows.

    `nickname`: the article that captures. A commit of a session for another article of the table is a change.
    """
    if mark is None or mark.kind == FENCE:
        return mark is not None
    if mark.kind not in MERGE_KINDS or mark.replid != replid:
        return False
    return mark.kind != APPLY or nickname is None or mark.step.split(":")[2:3] == [str(nickname)]


BOOKKEEPING = CommitMark("", "bookkeeping")
"""The mark of writes to system tables that no session, capture or transaction names: commits without one are edits."""
