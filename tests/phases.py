"""The pure steps of a session, called with cases in words: of the case tables, only this knows how they are called.

A case speaks of one row of an article with a key and the value columns a and b, at the publisher `hq` and the subscriber
`north`; `south` is another replica. All cases of a table go through a step in one Spark job.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.types import StringType, StructField, StructType

from conflict.ancestor import ancestors, versions
from conflict.detect import detect
from conflict.merge_columns import PUBLISHER_ROW, SUBSCRIBER_ROW, resolved_rows
from conflict.resolve import acted_on, resolve
from conflict.resolvers.registry import resolver_of
from enumeration.enum_changes import enum_changes
from enumeration.get_metadata import get_metadata, one_sided
from mergerepl.changes import (
    CHANGE_COLUMNS,
    FIELDS,
    PUBLISHER_WINS,
    ROW,
    ROWGUID,
    TABLENICK,
    VERDICT,
    Verdict,
)
from mergerepl.frames import DataFrame, F
from mergerepl.merge.stage.decision import Changed, decided, encoded
from mergerepl.merge.stage.decision import resolved as resolved_of
from mergerepl.model.article import PublishedArticle
from mergerepl.model.resolvers import RESOLVERS, ResolverInfo
from mergerepl.model.session_terms import NEVER, SessionTerms, terms_of
from mergerepl.rows.nested import INTERPRETED, Fields
from mergerepl.spark.in_memory import Kept, keep_in_memory
from mergerepl.systables.contents import COLV1_TYPE, LINEAGE_TYPE
from tests.executors import computed_by_spark, frame_of_values, sql_values, struct_of
from triggers.tracked_rows import KNOWN_COLUMNS, Origin, tracked_rows

NICKNAMES = {"published": 0, "hq": 1, "north": 2, "south": 3}
_NAMES = {nickname: name for name, nickname in NICKNAMES.items()}
_IMAGE = "struct<c0:string,c1:string,c2:string>"
_COLUMNS = ("id", "a", "b")
_CONTESTED = ("id", "v", "a")
"""The columns of the articles of cases, in the order of their fields."""

WRITTEN_OUT = Fields.of_many(StructType([StructField(name, StringType()) for name in ("c0", "c1", "c2")]))
"""How the fields of the cases' rows are gone through where there are many."""

for_few_and_many = pytest.mark.parametrize(
    ("spark", "fields"),
    [
        # By default, the contests of resolvers (conflict/test_rules.py) are what goes through few fields on Spark.
        pytest.param("on_spark", INTERPRETED, id="few-on_spark", marks=pytest.mark.slow),
        pytest.param("on_spark", WRITTEN_OUT, id="many-on_spark"),
        pytest.param("in_process", INTERPRETED, id="few-in_process"),
        pytest.param("in_process", WRITTEN_OUT, id="many-in_process"),
    ],
    indirect=["spark"],
    scope="module",
)
"""Runs a test's cases on both executors, with the fields of few rows and with those of many."""

T = TypeVar("T")


def asked(request: pytest.FixtureRequest, spark: object, cases: Mapping[str, T]) -> dict[str, T]:
    """Return those cases, by their `rule`, that a test of this run asks of a fixture on its executor."""
    place = "on_spark" if isinstance(spark, SparkSession) else "in_process"
    calls = [
        item.callspec.params  # type: ignore[attr-defined]
        for item in request.session.items
        if item.path == request.path and request.fixturename in item.fixturenames  # type: ignore[attr-defined]
    ]
    rules = {each["rule"] for each in calls if each["spark"] == place}
    return {rule: case for rule, case in cases.items() if rule in rules}


_CHANGES = (
    "rowguid string, deleted boolean, tombstone_type int, generation bigint, partchangegen bigint, "
    "born_generation bigint, "
    f"lineage {LINEAGE_TYPE}, colv1 {COLV1_TYPE}, priority double, unknown array<string>, row {_IMAGE}"
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
    fresh_after: int = NEVER
    anew_through: int = 0


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


ORIGIN = Origin(nickname=NICKNAMES["north"], priority=75.0, generation=4, clock=0)
"""Who makes the changes of `Net`."""


def verdicts(spark: SparkSession, cases: Mapping[str, Pair]) -> dict[str, str]:
    """Return what get_metadata says of each row."""
    found = _by_terms(cases, lambda session: session.pairs(spark, FIELDS).select(ROWGUID, VERDICT))
    return {row[ROWGUID]: row[VERDICT] for row in found.collect()}


def sent(spark: SparkSession, cases: Mapping[str, Pair], renumbered: Mapping[int, int]) -> dict[str, Sent]:
    """Return what becomes of each row that only one side has news of; those that are not sent are missing.

    The decision of all articles says the same as an article's typed rows that go over as they are.
    """
    outcome = (
        ROWGUID,
        "publisher_action",
        "publisher_generation",
        "subscriber_action",
        "subscriber_generation",
    )
    found = [
        _by_terms(
            cases, lambda session, step=step: step(session).select(*outcome, "priority"), renumbered
        ).collect()
        for step in (
            lambda session: one_sided(session.pairs(spark, ROW)),
            lambda session: session.decided(spark).where(F.col(VERDICT).isin("upload", "download")),
        )
    ]
    as_they_are, as_decided = (
        {
            row[ROWGUID]: Sent(
                "hq" if row["publisher_action"] else "north",
                row["publisher_action"] or row["subscriber_action"],
                row["publisher_generation"] if row["publisher_action"] else row["subscriber_generation"],
                row["priority"],
            )
            for row in rows
        }
        for rows in found
    )
    assert as_they_are == as_decided
    return as_decided


def detected(
    spark: SparkSession, cases: Mapping[str, Pair], fields: Fields
) -> dict[str, tuple[str, list[str]]]:
    """Return the verdict and the columns in conflict of each row that both sides have changed."""
    found = _by_terms(
        cases, lambda session: session.detected(spark, fields).select(ROWGUID, VERDICT, "conflict_columns")
    )
    return {row[ROWGUID]: (row[VERDICT], row["conflict_columns"]) for row in found.collect()}


def resolved(spark: SparkSession, cases: Mapping[str, Pair], fields: Fields) -> dict[str, Resolved]:
    """Return the outcome of each row that both sides have changed."""
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
        for row in _by_terms(cases, lambda session: session.resolved(spark, fields)).collect()
    }


def winners(spark: SparkSession, name: str, cases: Mapping[str, tuple[float, float]]) -> dict[str, str]:
    """Return who wins with a resolver, by the priorities of the publisher's and of the subscriber's change."""
    types = (
        "rowguid string, verdict string, article struct<resolver:string,update_delete:string>, "
        "publisher struct<priority:double,deleted:boolean>, subscriber struct<priority:double,deleted:boolean>"
    )
    conflict = Verdict.CONFLICT.value
    rows = [
        (rule, conflict, (name, name), (one, False), (other, False)) for rule, (one, other) in cases.items()
    ]
    article = replace(_article(ROW_TRACKED), resolver=name)
    decide = resolver_of([(article, terms_of(article))])
    found = decide(spark.createDataFrame(rows, types)).select(ROWGUID, PUBLISHER_WINS)
    return {row[ROWGUID]: "hq" if row[PUBLISHER_WINS] else "north" for row in found.collect()}


class Contest(NamedTuple):
    """A row (id, v, a) that is live at both sides, and the resolver that is given v: what each side has changed it to.

    `hq` and `north` are SQL values of v, of this type; None says that the side deleted the row. `only` is the one side that
    changed v, where it is one; a was changed at both sides, to 'p' and 's'. `base` is v before, None if nobody knows.
    """

    resolver: str
    type: str
    hq: str | None
    north: str | None
    only: str | None = None
    priority: float = 100.0
    delimiter: str | None = None
    update_delete: str = "priority"
    resolution: str = "row"
    same_a: bool = False
    base: str | None = None


NO_ROW = "(null)"
"""The base of a row that was not there."""


class Ruling(NamedTuple):
    """What a contest comes to: the values of v and a as text, who won (None: no conflict), what was made, and the note."""

    v: str | None
    a: str | None
    winner: str | None
    made: tuple[str, ...] = ()
    note: str | None = None
    colv: str | None = None
    acts: tuple[str | None, str | None] = (None, None)


def setting_of(contest: Contest) -> tuple[Any, ...]:
    """Return the resolver, type and settings of an article with a contest."""
    return contest[:2] + contest[6:9]


def ruled(spark: SparkSession, contests: Mapping[str, Contest]) -> dict[str, Ruling]:
    """Return what each contest comes to: those of one resolver, type and settings are an article, all are in one plan."""
    settings = list(dict.fromkeys(map(setting_of, contests.values())))
    texts = {
        (part or "null", each.type) for each in contests.values() for part in (each.hq, each.north, each.base)
    }
    values = sql_values(spark, sorted(texts))
    changed = []
    for nickname, setting in enumerate(settings, 1):
        name, type_, delimiter, update_delete, resolution = setting
        resolver = RESOLVERS[name]
        info = ResolverInfo(("v",) if resolver.reads else (), delimiter, update_delete)
        article = replace(
            _article(Setting(tracking="column", resolution=resolution), nickname),
            columns=("id", "v", "a"),
            types=("string", type_, "string"),
            resolver=name,
            resolver_info=info.stored,
        )
        own = {rule: each for rule, each in contests.items() if setting_of(each) == setting}
        sides = (_contestants(spark, own, side, values) for side in ("hq", "north"))
        bases = _ancestors(spark, own, values) if resolver.needs_base else None
        changed.append(Changed(article, terms_of(article), *sides, len(contests), bases))
    terms = _terms(ROW_TRACKED, {})
    kept = Kept()
    decision = decided(changed, terms, kept)
    found = {
        row[ROWGUID]: Ruling(
            row["v"],
            None if row["deleted"] else row["c2"],
            row[PUBLISHER_WINS] if row[PUBLISHER_WINS] is None else "hq" if row[PUBLISHER_WINS] else "north",
            tuple(row["made_columns"] or ()),
            row["note"],
            _colv_words(row["colv1"], _CONTESTED),
            (row["publisher_action"], row["subscriber_action"]),
        )
        for row in computed_by_spark(
            spark, [resolved_of(each, decision, terms) for each in changed], _with_texts
        )
    }
    kept.release()
    return found


def _with_texts(parts: Sequence[DataFrame]) -> list[Row]:
    text = F.when(~F.col("deleted"), F.col("row.c1").cast("string")).alias("v")
    texts = [rows.select("*", text, "row.c2").drop("row", "winner", "loser") for rows in parts]
    return reduce(DataFrame.unionByName, texts).collect()


Versions = Mapping[str, tuple[list[tuple[str, str | None]], str | None]]
"""By row: its versions at a side, oldest first, as (lineage, value of a), and the published value if the side keeps it."""


def ancestor_values(spark: SparkSession, at_hq: Versions, at_north: Versions) -> dict[str, str | None]:
    """Return by row the value of its common ancestor, "deleted", or None."""

    def recorded(side: Versions) -> DataFrame:
        types = f"rowguid string, number int, deleted boolean, lineage {LINEAGE_TYPE}, row {_IMAGE}, base {_IMAGE}"
        rows = [
            (
                rule,
                number,
                value is None,
                _lineage(lineage),
                _image(rule, f"{value} -"),
                _image(rule, f"{base} -") if base and not number else None,
            )
            for rule, (versions_of_row, base) in side.items()
            for number, (lineage, value) in enumerate(versions_of_row)
        ]
        return spark.createDataFrame(rows, types)

    def changes(side: Versions) -> DataFrame:
        rows = [(rule, _lineage(versions_of_row[-1][0])) for rule, (versions_of_row, _) in side.items()]
        return spark.createDataFrame(rows, f"rowguid string, lineage {LINEAGE_TYPE}")

    found = ancestors(
        changes(at_hq),
        changes(at_north),
        *(versions(recorded(side), "number") for side in (at_hq, at_north)),
        floor=0,
    )
    values = {
        row[ROWGUID]: row["ancestor"]
        and ("deleted" if row["ancestor"]["deleted"] else row["ancestor"]["row"]["c1"])
        for row in found.collect()
    }
    return {rule: values.get(rule) for rule in at_hq}


Values = Mapping[tuple[str, str], "pa.Array"]
"""By SQL and type: the one value."""


def _ancestors(spark: SparkSession, contests: Mapping[str, Contest], values: Values) -> DataFrame:
    known = {rule: each for rule, each in contests.items() if each.base is not None}
    rows = _images(
        known, {rule: each.base for rule, each in known.items()}, dict.fromkeys(known, "x"), values
    )
    gone = pa.array([each.base == NO_ROW for each in known.values()], pa.bool_())
    ancestor = pa.StructArray.from_arrays([gone, rows], names=["deleted", "row"])
    return frame_of_values(spark, pa.table({ROWGUID: pa.array(known, pa.string()), "ancestor": ancestor}))


def _contestants(
    spark: SparkSession, contests: Mapping[str, Contest], side: str, values: Values
) -> DataFrame:
    """Return one side's CHANGES of the contests of an article."""
    number = NICKNAMES[side]
    rows, letters = [], {}
    for rule, each in contests.items():
        is_deleted = getattr(each, side) is None
        changed = [
            name
            for name, is_changed in (("v", each.only in (None, side)), ("a", not each.same_a))
            if is_changed and not is_deleted
        ]
        colv = {f"c{_CONTESTED.index(name)}": Row(nickname=number, version=1) for name in changed}
        priority = each.priority if side == "hq" else 75.0
        letters[rule] = "p" if side == "hq" or each.same_a else "s"
        rows.append((rule, is_deleted, None, 1, None, None, {0: 1, number: 1}, colv, priority, None))
    metadata = LocalDataToArrowConversion.convert(rows, StructType(struct_of(_CHANGES).fields[:-1]), False)
    images = _images(
        contests, {rule: getattr(each, side) for rule, each in contests.items()}, letters, values
    )
    return frame_of_values(spark, metadata.append_column(ROW, images)).select(*CHANGE_COLUMNS)


def _images(
    contests: Mapping[str, Contest], v: Mapping[str, str | None], a: Mapping[str, str], values: Values
) -> "pa.Array":
    found = [values[v[rule] or "null", each.type] for rule, each in contests.items()]
    parts = [pa.array(contests, pa.string()), pa.concat_arrays(found), pa.array(a.values(), pa.string())]
    return pa.StructArray.from_arrays(parts, names=["c0", "c1", "c2"])


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
        origin = replace(ORIGIN, clock=setting.floor, anew_through=setting.anew_through)
        return tracked_rows(net_rows, known and known.select(*KNOWN_COLUMNS), _article(setting), origin)

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


@dataclass(frozen=True)
class _Session:
    """The cases of one call: those of a setting are the rows of an article."""

    cases: Mapping[str, Pair]
    terms: SessionTerms

    @property
    def settings(self) -> dict[Setting, int]:
        return {
            setting: number
            for number, setting in enumerate({pair.setting: 0 for pair in self.cases.values()}, 1)
        }

    def _side(
        self, spark: SparkSession, side: str, content: str, fields: Fields = INTERPRETED
    ) -> DataFrame | None:
        frames = []
        for setting, number in self.settings.items():
            cases = {
                rule: getattr(pair, side) for rule, pair in self.cases.items() if pair.setting == setting
            }
            rows = _changes(spark, setting, {rule: change for rule, change in cases.items() if change})
            if rows is not None and content == FIELDS:
                article = _article(setting, number)
                rows = encoded(rows, article, fields=fields, with_rows=fields.is_written_out)
            elif rows is not None:
                rows = rows.select(F.lit(number).alias(TABLENICK), "*")
            frames += [rows] if rows is not None else []
        return reduce(DataFrame.unionByName, frames) if frames else None

    def pairs(self, spark: SparkSession, content: str, fields: Fields = INTERPRETED) -> DataFrame:
        articles = [
            terms_of(
                _article(setting, number),
                resolved_at_publisher=8,
                resolved_at_subscriber=9,
                whole_rows=setting.whole_rows,
                floor=setting.floor,
                clock=setting.floor,
                subscriber_fresh_after=setting.fresh_after,
            )
            for setting, number in self.settings.items()
        ]
        return get_metadata(
            self._side(spark, "hq", content, fields),
            self._side(spark, "north", content, fields),
            articles,
            self.terms,
            is_written_out=fields.is_written_out,
            sends_rows=content == ROW,
        )

    def detected(self, spark: SparkSession, fields: Fields) -> DataFrame:
        return detect(self.pairs(spark, FIELDS, fields), fields)

    def decided(self, spark: SparkSession, fields: Fields = INTERPRETED) -> DataFrame:
        articles = [_article(setting, number) for setting, number in self.settings.items()]
        decide = resolver_of(
            (article, terms_of(article, whole_rows=setting.whole_rows))
            for article, setting in zip(articles, self.settings, strict=True)
        )
        return keep_in_memory(resolve(acted_on(self.detected(spark, fields)), decide, self.terms, fields))

    def resolved(self, spark: SparkSession, fields: Fields) -> DataFrame:
        rows = self.decided(spark, fields)
        sides = () if fields.is_written_out else (("hq", PUBLISHER_ROW), ("north", SUBSCRIBER_ROW))
        for side, name in sides:
            typed = self._side(spark, side, ROW)
            assert typed is not None
            rows = rows.join(
                typed.select(TABLENICK, ROWGUID, F.col(ROW).alias(name)), on=[TABLENICK, ROWGUID]
            )
        return reduce(
            DataFrame.unionByName,
            (
                resolved_rows(rows.where(F.col(TABLENICK) == number), _article(setting, number))
                for setting, number in self.settings.items()
            ),
        )


def _by_terms(
    cases: Mapping[str, Pair],
    step: Callable[[_Session], DataFrame],
    renumbered: Mapping[int, int] | None = None,
) -> DataFrame:
    """Return the rows of all cases: those whose sessions have agreed on the same go through one call."""
    sessions: dict[Setting, dict[str, Pair]] = {}
    for rule, pair in cases.items():
        of_session = replace(pair.setting, tracking="row", resolution="row", floor=0, whole_rows=False)
        sessions.setdefault(of_session, {})[rule] = pair
    return reduce(
        DataFrame.unionByName,
        (step(_Session(some, _terms(setting, renumbered or {}))) for setting, some in sessions.items()),
    )


def _by_setting(
    cases: Mapping[str, Net], step: Callable[[Setting, Mapping[str, Net]], DataFrame]
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


def _terms(setting: Setting, renumbered: Mapping[int, int]) -> SessionTerms:
    return SessionTerms(
        upload=setting.upload,
        download=setting.download,
        resolver_nickname=NICKNAMES["hq"],
        client_subscription=setting.client,
        publisher_generations=renumbered,
        subscriber_generations=renumbered,
        upload_start=setting.start,
        download_start=setting.start,
        unpublished=setting.unpublished,
    )


def _article(setting: Setting, nickname: int = 1) -> PublishedArticle:
    return PublishedArticle(
        publication="sales",
        pubid="p",
        name="orders",
        artid="a",
        nickname=nickname,
        table="orders",
        identity=("id",),
        columns=("id", "a", "b"),
        types=("string",) * 3,
        column_tracking=setting.tracking == "column",
        resolution=setting.resolution,
        resolver="priority",
        conflict_table="c",
        vertical=False,
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
            None,
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
    return {f"c{_COLUMNS.index(name)}": next(iter(_lineage(version).items())) for name, version in pairs}


def _colv_words(colv: Mapping[str, Any] | None, columns: Sequence[str] = _COLUMNS) -> str | None:
    if colv is None:
        return None
    named = {columns[int(field[1:])]: entry for field, entry in colv.items()}
    return ", ".join(
        f"{name}: {_NAMES[entry['nickname']]} {entry['version']}" for name, entry in sorted(named.items())
    )
