"""The pure steps of a session, called with cases in words: of the case tables, only this knows how they are called.

A case speaks of one row of an article with a key and the value columns a and b, at the publisher `hq` and the subscriber
`north`; `south` is another replica. All cases of a table go through a step in one Spark job.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conflict.detect import compared, detect
from conflict.resolve import SessionTerms, final_states, one_sided, with_actions
from conflict.resolvers.registry import resolver
from enumeration.enum_changes import enum_changes
from enumeration.get_metadata import get_metadata
from mergerepl.changes import CHANGE_COLUMNS, ROWGUID, VERDICT, Verdict
from mergerepl.model.article import PublishedArticle
from mergerepl.systables.contents import COLV1_TYPE, LINEAGE_TYPE
from triggers.tracked_rows import KNOWN_COLUMNS, Origin, tracked_rows

NICKNAMES = {"published": 0, "hq": 1, "north": 2, "south": 3}
_NAMES = {nickname: name for name, nickname in NICKNAMES.items()}
_IMAGE = "struct<c0:string,c1:string,c2:string>"
_CHANGES = (
    "rowguid string, deleted boolean, tombstone_type int, generation bigint, partchangegen bigint, "
    "born_generation bigint, "
    f"lineage {LINEAGE_TYPE}, colv1 {COLV1_TYPE}, priority double, row {_IMAGE}"
)


@dataclass(frozen=True)
class Setting:
    """What the article and the session say of a case: one call of a step has one of them."""

    tracking: str = "row"
    resolution: str = "row"
    floor: int = 0
    upload: bool = True
    download: bool = True
    client: bool = False
    start: int = 0
    unpublished: str | None = None
    whole_rows: bool = False


ROW_TRACKED = Setting()
COLUMN_TRACKED = Setting(tracking="column")
BY_COLUMNS = Setting(tracking="column", resolution="columns")


class Change(NamedTuple):
    """What a side has of a row: "hq 2, north 1" is its lineage, "a: hq 2" its colv1.

    `row` has the values of a and b, "-" for NULL; None says that the row is deleted. `born` is the generation of an
    insert that nobody can have heard of.
    """

    row: str | None
    lineage: str
    colv: str = ""
    priority: float = 0.0
    generation: int = 1
    born: int | None = None
    last: str = "x y"


class Pair(NamedTuple):
    """A row as the two sides have changed it; None is a side with no change to send."""

    hq: Change | None
    north: Change | None
    setting: Setting = ROW_TRACKED


class Sent(NamedTuple):
    """What the destination does with a row that one side has changed, and how it records it."""

    at: str
    action: str
    generation: int | None
    priority: float


class Resolved(NamedTuple):
    """The final state of a row that both sides have changed, what each does, and the loser of a conflict."""

    row: str | None
    lineage: str
    colv: str | None
    priority: float
    hq: str | None
    north: str | None
    conflict: int | None = None
    loser: str | None = None


class Captured(NamedTuple):
    """A user's change as contents or tombstone rows have it."""

    row: str | None
    lineage: str
    colv: str | None
    born: int | None = None


class Net(NamedTuple):
    """A net change of a row: its values before and after, and what was known of it (None: nothing)."""

    before: str | None
    after: str | None
    known: Change | None = None
    setting: Setting = ROW_TRACKED


class Current(NamedTuple):
    """The generation of a row's last change, the watermark of the destination and the generations that it has beyond."""

    generation: int
    watermark: int
    known: tuple[int, ...] = ()


ORIGIN = Origin(nickname=NICKNAMES["north"], priority=75.0, generation=4)
"""Who makes the changes of `Net`."""


def verdicts(spark: SparkSession, cases: Mapping[str, Pair]) -> dict[str, str]:
    """Return what get_metadata says of each row."""
    found = _by_setting(cases, lambda setting, some: _pairs(spark, setting, some).select(ROWGUID, VERDICT))
    return {row[ROWGUID]: row[VERDICT] for row in found.collect()}


def sent(spark: SparkSession, cases: Mapping[str, Pair], renumbered: Mapping[int, int]) -> dict[str, Sent]:
    """Return what becomes of each row that only one side has news of; those that are not sent are missing."""
    found = _by_setting(
        cases,
        lambda setting, some: one_sided(_pairs(spark, setting, some), _terms(setting, renumbered)),
    )
    return {
        row[ROWGUID]: Sent(
            "hq" if row["publisher_action"] else "north",
            row["publisher_action"] or row["subscriber_action"],
            row["publisher_generation"] if row["publisher_action"] else row["subscriber_generation"],
            row["priority"],
        )
        for row in found.collect()
    }


def detected(spark: SparkSession, cases: Mapping[str, Pair]) -> dict[str, tuple[str, list[str]]]:
    """Return the verdict and the columns in conflict of each row that both sides have changed."""
    found = _by_setting(cases, lambda setting, some: _detected(spark, setting, some))
    return {row[ROWGUID]: (row[VERDICT], row["conflict_columns"]) for row in found.collect()}


def resolved(spark: SparkSession, cases: Mapping[str, Pair]) -> dict[str, Resolved]:
    """Return the outcome of each row that both sides have changed."""

    def step(setting: Setting, some: Mapping[str, Pair]) -> DataFrame:
        rows, terms = _detected(spark, setting, some), _terms(setting, {})
        return with_actions(
            final_states(rows, _article(setting), terms, whole_rows=setting.whole_rows), terms
        )

    return {
        row[ROWGUID]: Resolved(
            None if row["deleted"] else _values(row["row"]),
            _lineage_words(row["lineage"]),
            _colv_words(row["colv1"]),
            row["priority"],
            row["publisher_action"],
            row["subscriber_action"],
            row["conflict_type"],
            row["loser"] and ("deleted" if row["loser"]["deleted"] else _values(row["loser"]["row"])),
        )
        for row in _by_setting(cases, step).collect()
    }


def winners(spark: SparkSession, name: str, cases: Mapping[str, tuple[float, float]]) -> dict[str, str]:
    """Return who wins with a resolver, by the priorities of the publisher's and of the subscriber's change."""
    types = "rowguid string, publisher struct<priority:double>, subscriber struct<priority:double>"
    rows = [(rule, (one,), (other,)) for rule, (one, other) in cases.items()]
    publisher_wins = resolver(name, article="orders")()
    found = spark.createDataFrame(rows, types).select(ROWGUID, publisher_wins.alias("wins"))
    return {row[ROWGUID]: "hq" if row["wins"] else "north" for row in found.collect()}


def enumerated(spark: SparkSession, cases: Mapping[str, Current]) -> set[str]:
    """Return the rows that are sent."""
    parts = [
        enum_changes(
            _changes(spark, ROW_TRACKED, {rule: Change("x y", "", generation=case.generation)}),
            from_generation_exclusive=case.watermark,
            known_generations=case.known,
        ).select(ROWGUID)
        for rule, case in cases.items()
    ]
    return {row[ROWGUID] for row in reduce(DataFrame.unionByName, parts).collect()}


def captured(spark: SparkSession, cases: Mapping[str, Net]) -> dict[str, Captured]:
    """Return what the triggers record of each net change."""

    def step(setting: Setting, some: Mapping[str, Net]) -> DataFrame:
        rows = [
            (
                rule,
                net.before is not None,
                _image(rule, net.before or net.after),
                net.after is not None,
                _image(rule, net.after or net.before),
            )
            for rule, net in some.items()
        ]
        types = f"rowguid string, existed boolean, before {_IMAGE}, exists boolean, after {_IMAGE}"
        known = _changes(spark, setting, {rule: net.known for rule, net in some.items() if net.known})
        net_rows = spark.createDataFrame(rows, types)
        return tracked_rows(net_rows, known and known.select(*KNOWN_COLUMNS), _article(setting), ORIGIN)

    found = _by_setting(cases, step).collect()
    for row in found:
        assert (row["generation"], row["priority"]) == (ORIGIN.generation, ORIGIN.priority), row
        assert row["tombstone_type"] == (1 if row["deleted"] else None), row
    return {
        row[ROWGUID]: Captured(
            None if row["deleted"] else _values(row["row"]),
            _lineage_words(row["lineage"]),
            _colv_words(row["colv1"]),
            row["born_generation"],
        )
        for row in found
    }


_Case = TypeVar("_Case", Pair, Net)


def _by_setting(
    cases: Mapping[str, _Case], step: Callable[[Setting, Mapping[str, _Case]], DataFrame]
) -> DataFrame:
    """Return the rows of all cases, each of them from a call with its setting."""
    settings = dict.fromkeys(case.setting for case in cases.values())
    return reduce(
        DataFrame.unionByName,
        (
            step(setting, {rule: case for rule, case in cases.items() if case.setting == setting})
            for setting in settings
        ),
    )


def _pairs(spark: SparkSession, setting: Setting, cases: Mapping[str, Pair]) -> DataFrame:
    at = {side: {rule: getattr(case, side) for rule, case in cases.items()} for side in ("hq", "north")}
    hq, north = (
        _changes(spark, setting, {rule: change for rule, change in changes.items() if change})
        for changes in at.values()
    )
    return get_metadata(hq, north, floor=setting.floor)


def _detected(spark: SparkSession, setting: Setting, cases: Mapping[str, Pair]) -> DataFrame:
    candidates = _pairs(spark, setting, cases).where(F.col(VERDICT) == Verdict.CANDIDATE.value)
    article = _article(setting)
    return detect(compared(candidates, article), article, whole_rows=setting.whole_rows)


def _terms(setting: Setting, renumbered: Mapping[int, int]) -> SessionTerms:
    return SessionTerms(
        upload=setting.upload,
        download=setting.download,
        resolver_nickname=NICKNAMES["hq"],
        client_subscription=setting.client,
        publisher_generations=dict(renumbered),
        subscriber_generations=dict(renumbered),
        resolved_at_publisher=8,
        resolved_at_subscriber=9,
        upload_start=setting.start,
        download_start=setting.start,
        unpublished=setting.unpublished,
    )


def _article(setting: Setting) -> PublishedArticle:
    return PublishedArticle(
        publication="sales",
        pubid="p",
        name="orders",
        artid="a",
        nickname=1,
        table="orders",
        identity=("id",),
        columns=("id", "a", "b"),
        types=("string",) * 3,
        column_tracking=setting.tracking == "column",
        resolution=setting.resolution,
        resolver="priority",
        conflict_table="c",
        vertical=False,
        maxversion_at_cleanup=setting.floor,
    )


def _changes(spark: SparkSession, setting: Setting, changes: Mapping[str, Change]) -> DataFrame | None:
    # Neither a row of a row-tracked article nor a deleted one has versions of columns.
    is_by_column = setting.tracking == "column"
    rows = [
        (
            rule,
            change.row is None,
            1 if change.row is None else None,
            change.generation,
            None,
            change.born,
            _lineage(change.lineage),
            _colv(change.colv) if is_by_column and change.row is not None else None,
            change.priority,
            _image(rule, change.row or change.last),
        )
        for rule, change in changes.items()
    ]
    return spark.createDataFrame(rows, _CHANGES).select(*CHANGE_COLUMNS) if rows else None


def _image(key: str, values: str | None) -> tuple[str | None, ...]:
    assert values is not None
    return (key, *(None if value == "-" else value for value in values.split(" ", 1)))


def _values(image: Any) -> str:
    return " ".join("-" if value is None else value for value in tuple(image)[1:])


def _lineage(words: str) -> dict[int, int]:
    pairs = [each.split() for each in words.split(", ") if each]
    return {NICKNAMES[name]: int(version) for name, version in pairs}


def _lineage_words(lineage: Mapping[int, int]) -> str:
    return ", ".join(f"{_NAMES[nickname]} {version}" for nickname, version in sorted(lineage.items()))


def _colv(words: str) -> dict[str, tuple[int, int]]:
    pairs = [each.split(": ") for each in words.split(", ") if each]
    return {name: next(iter(_lineage(version).items())) for name, version in pairs}


def _colv_words(colv: Mapping[str, Any] | None) -> str | None:
    if colv is None:
        return None
    return ", ".join(
        f"{name}: {_NAMES[entry['nickname']]} {entry['version']}" for name, entry in sorted(colv.items())
    )
