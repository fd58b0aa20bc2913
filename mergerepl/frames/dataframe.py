"""Frames in this process: rows as tuples of physical values (`values`), computed at once."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from mergerepl.frames import NotInProcessError
from mergerepl.frames.trees import Column, Field, Of, Scope, Typed, col, place_of, turned
from mergerepl.frames.values import equal_key, from_arrow, order_key, to_arrow, type_of, wider

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[Any, ...]


def frame_of(rows: "pa.Table", schema: T.StructType | None = None) -> "DataFrame":
    """Return Arrow rows as a frame."""
    if schema is None:
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    fields = [Field(each.name, type_of(each.dataType)) for each in schema]
    columns = [from_arrow(rows.column(i), field.type) for i, field in enumerate(fields)]
    return DataFrame(fields, list(zip(*columns, strict=True)))


def frame_of_tuples(rows: Iterable[Sequence[Any]], schema: T.StructType) -> "DataFrame":
    """Return tuples of Python's values as a frame."""
    from pyspark.sql.conversion import LocalDataToArrowConversion

    values = list(rows)
    if not values:
        return DataFrame([Field(each.name, type_of(each.dataType)) for each in schema], [])
    return frame_of(LocalDataToArrowConversion.convert(values, schema, False), schema)


def collected(frame: "DataFrame") -> "pa.Table":
    """Return the rows in Arrow, with the types of Spark's."""
    import pyarrow as pa

    columns = list(zip(*frame.rows, strict=True)) or [()] * len(frame.fields)
    arrays = [to_arrow(values, field.type) for values, field in zip(columns, frame.fields, strict=True)]
    return pa.Table.from_arrays(arrays, names=frame.columns)


class DataFrame:
    """PySpark's DataFrame without a JVM."""

    def __init__(self, fields: Sequence[Field], rows: list[Row]) -> None:
        self.fields, self.rows = fields, rows

    @property
    def columns(self) -> list[str]:
        return [field.name for field in self.fields]

    @property
    def schema(self) -> T.StructType:
        return T.StructType([T.StructField(field.name, field.type) for field in self.fields])

    def __getitem__(self, item: str) -> Column:
        return col(item)

    def select(self, *cols: Any) -> "DataFrame":
        scope = Scope(self.fields)
        columns = [column for each in _flat(cols) for column in self._named(each, scope)]
        typed = [each.typed(scope) for each in columns]
        fields = [Field(c.result_name or "value", each.type) for c, each in zip(columns, typed, strict=True)]
        rows = _rows([each.of for each in typed], self.rows)
        for i, column in enumerate(columns):
            if column.is_explode:
                rows = [(*row[:i], item, *row[i + 1 :]) for row in rows for item in row[i] or ()]
        return DataFrame(fields, rows)

    def _named(self, name: Any, scope: Scope) -> list[Column]:
        if not isinstance(name, str) or not name.endswith("*"):
            return [col(name)]
        owner = name[:-2]
        chosen = [_place(i, f) for i, f in enumerate(self.fields) if name == "*" or f.alias == owner]
        if chosen or name == "*":
            return chosen
        kind = scope.column(owner).type
        assert isinstance(kind, T.StructType)
        return [col(owner)[part].alias(part) for part in kind.names]

    def withColumn(self, colName: str, col: Column) -> "DataFrame":
        return self.withColumns({colName: col})

    def withColumns(self, *colsMap: Mapping[str, Column]) -> "DataFrame":
        added = {name.lower(): column.alias(name) for name, column in colsMap[0].items()}
        kept = [added.pop(f.name.lower(), _place(i, f)).alias(f.name) for i, f in enumerate(self.fields)]
        return self.select(*kept, *added.values())

    def withColumnRenamed(self, existing: str, new: str) -> "DataFrame":
        return DataFrame([f._replace(name=new) if f.name == existing else f for f in self.fields], self.rows)

    def where(self, condition: Any) -> "DataFrame":
        test = col(condition).typed(Scope(self.fields)).of
        return DataFrame(self.fields, [row for row in self.rows if test(row)])

    def alias(self, alias: str) -> "DataFrame":
        return DataFrame([field._replace(alias=alias) for field in self.fields], self.rows)

    def drop(self, *cols: str) -> "DataFrame":
        gone = {each.lower() for each in cols}
        return self.select(*(_place(i, f) for i, f in enumerate(self.fields) if f.name.lower() not in gone))

    def join(self, other: "DataFrame", on: Any = None, how: str | None = None) -> "DataFrame":
        """As PySpark's: on names or a condition; inner, left, full_outer, left_semi or left_anti."""
        _require_frame(other)
        how = how or "inner"
        names = [on] if isinstance(on, str) else on if isinstance(on, list) else None
        fields = [*self.fields, *other.fields]
        if names is None:
            keys, rest = _terms(on, self.fields, other.fields)
        else:
            scopes = Scope(self.fields), Scope(other.fields)
            keys = [(*_pair(*(each.column(name) for each in scopes)), False) for name in names]
            rest = []
        tests = [each.typed(Scope(fields)).of for each in rest]
        found, others = _matches(self.rows, other.rows, keys, tests)
        if how in ("left_semi", "left_anti"):
            return DataFrame(
                self.fields, [row for row, there in found if bool(there) is (how == "left_semi")]
            )
        if how not in ("inner", "left", "full_outer"):
            raise NotInProcessError(f"a {how} join")
        missing = [] if how == "inner" else [(None,) * len(other.fields)]
        rows = [(*row, *match) for row, there in found for match in there or missing]
        if how == "full_outer":
            rows += [((None,) * len(self.fields) + row) for row in others]
        joined = DataFrame(fields, rows)
        return joined if names is None else joined._on_names(names, self.columns, other.columns)

    def _on_names(self, names: Sequence[str], left: Sequence[str], right: Sequence[str]) -> "DataFrame":
        """Return joined rows with the columns of these names once, before the others."""
        pairs = [(place_of(left, name), len(left) + place_of(right, name)) for name in names]
        fields = [
            self.fields[i]._replace(type=wider(self.fields[i].type, self.fields[j].type)) for i, j in pairs
        ]
        kept = [i for i in range(len(self.fields)) if not any(i in pair for pair in pairs)]
        values = [_either(*pair) for pair in pairs] + [operator.itemgetter(i) for i in kept]
        return DataFrame([*fields, *(self.fields[i] for i in kept)], _rows(values, self.rows))

    def groupBy(self, *cols: Any) -> "Grouped":
        return Grouped(self, self.select(*cols))

    def agg(self, *exprs: Column) -> "DataFrame":
        return Grouped(self, DataFrame((), [()] * len(self.rows))).agg(*exprs)

    def unionByName(self, other: "DataFrame", allowMissingColumns: bool = False) -> "DataFrame":
        _require_frame(other)
        mine, theirs = ({f.name.lower(): f for f in each.fields} for each in (self, other))
        if mine.keys() != theirs.keys() and not allowMissingColumns:
            raise ValueError(f"a union of columns {self.columns} and {other.columns}")
        fields = [
            Field(mine.get(name, field).name, wider(mine.get(name, field).type, field.type))
            for name, field in (mine | theirs).items()
        ]
        return DataFrame(fields, [*self._with_types(fields), *other._with_types(fields)])

    def _with_types(self, fields: Sequence[Field]) -> list[Row]:
        there = {
            field.name.lower(): Typed(field.type, operator.itemgetter(i))
            for i, field in enumerate(self.fields)
        }
        missing = Typed(T.NullType(), lambda _: None)
        return _rows([there.get(each.name.lower(), missing).cast(each.type) for each in fields], self.rows)

    def dropDuplicates(self, subset: Sequence[str] | None = None) -> "DataFrame":
        keys = [_keyed(Scope(self.fields).column(name)) for name in subset or self.columns]
        first: dict[Any, Row] = {}
        for row in self.rows:
            first.setdefault(tuple([key(row) for key in keys]), row)
        return DataFrame(self.fields, list(first.values()))

    def distinct(self) -> "DataFrame":
        return self.dropDuplicates()

    def orderBy(self, *cols: Any) -> "DataFrame":
        typed = [col(each).typed(Scope(self.fields)) for each in cols]
        keys = [(each.of, order_key(each.type)) for each in typed]
        return DataFrame(self.fields, sorted(self.rows, key=lambda row: [key(of(row)) for of, key in keys]))

    def limit(self, num: int) -> "DataFrame":
        return DataFrame(self.fields, self.rows[:num])

    def coalesce(self, numPartitions: int) -> "DataFrame":
        """Return this frame, as `hint` and `repartition` do: it has no partitions."""
        return self

    def hint(self, name: str, *parameters: Any) -> "DataFrame":
        return self

    def repartition(self, numPartitions: Any, *cols: Any) -> "DataFrame":
        return self

    def count(self) -> int:
        return len(self.rows)

    def isEmpty(self) -> bool:
        return not self.rows

    def take(self, num: int) -> list[T.Row]:
        return self.limit(num).collect()

    def collect(self) -> list[T.Row]:
        from pyspark.sql.conversion import ArrowTableToRowsConversion

        return list(ArrowTableToRowsConversion.convert(collected(self), self.schema))


class Grouped:
    """PySpark's GroupedData; `keys` has a row for each row of the frame."""

    def __init__(self, frame: DataFrame, keys: DataFrame) -> None:
        self.frame, self.keys = frame, keys

    def agg(self, *exprs: Column) -> DataFrame:
        key_of = [_keyed(Typed(f.type, operator.itemgetter(i))) for i, f in enumerate(self.keys.fields)]
        groups: dict[Any, tuple[Row, list[Row]]] = {} if key_of else {(): ((), [])}
        for named, row in zip(self.keys.rows, self.frame.rows, strict=True):
            groups.setdefault(tuple([key(named) for key in key_of]), (named, []))[1].append(row)
        typed = [each.typed(Scope((), Scope(self.frame.fields))) for each in exprs]
        fields = [Field(c.result_name or "value", each.type) for c, each in zip(exprs, typed, strict=True)]
        rows = [(*named, *(each.of(group) for each in typed)) for named, group in groups.values()]
        return DataFrame([*self.keys.fields, *fields], rows)


def _require_frame(other: object) -> None:
    if not isinstance(other, DataFrame):
        raise TypeError("a frame of Spark cannot be joined to one in this process")


def _flat(cols: Sequence[Any]) -> list[Any]:
    return [each for part in cols for each in (part if isinstance(part, list | tuple) else [part])]


def _place(place: int, field: Field) -> Column:
    return Column(lambda _: Typed(field.type, operator.itemgetter(place)), field.name)


def _either(one: int, other: int) -> Of:
    return lambda row: row[other] if row[one] is None else row[one]


def _rows(values: Sequence[Of], rows: Sequence[Row]) -> list[Row]:
    return [tuple([value(row) for value in values]) for row in rows]


def _keyed(typed: Typed) -> Of:
    return turned(typed.of, equal_key(typed.type))


def _pair(one: Typed, other: Typed) -> tuple[Of, Of]:
    both = wider(one.type, other.type)
    return _keyed(Typed(both, one.cast(both))), _keyed(Typed(both, other.cast(both)))


def _terms(
    condition: Column, left: Sequence[Field], right: Sequence[Field]
) -> tuple[list[tuple[Of, Of, bool]], list[Column]]:
    """Return the keys of a condition (of a row of either frame; whether NULL equals NULL), and the rest of it."""
    keys, rest, todo = [], [], [condition]
    while todo:
        column = todo.pop()
        sign, *sides = column.term or ("",)
        if sign == "&":
            todo += sides
        elif sign in ("==", "<=>") and (found := _sides(sides, left, right)):
            keys.append((*_pair(*found), sign == "<=>"))
        else:
            rest.append(column)
    return keys, rest


def _sides(
    sides: Sequence[Column], left: Sequence[Field], right: Sequence[Field]
) -> tuple[Typed, Typed] | None:
    """Return both sides of an equality that compares a value of one frame with one of the other."""
    for one, other in (sides, sides[::-1]):
        try:
            return one.typed(Scope(left)), other.typed(Scope(right))
        except ValueError:
            continue
    return None


def _matches(
    left: Sequence[Row], right: Sequence[Row], keys: Sequence[tuple[Of, Of, bool]], tests: Sequence[Of]
) -> tuple[list[tuple[Row, list[Row]]], list[Row]]:
    """Return each left row with the right rows that match it, and the right rows that match none."""
    by_key: dict[Any, list[int]] = {}
    strict = [place for place, (_, _, is_null_safe) in enumerate(keys) if not is_null_safe]
    for place, row in enumerate(right):
        key = tuple([of_right(row) for _, of_right, _ in keys])
        if not any(key[i] is None for i in strict):
            by_key.setdefault(key, []).append(place)
    found, used = [], set()
    for row in left:
        places = by_key.get(tuple([of_left(row) for of_left, _, _ in keys]), [])
        if tests:
            places = [i for i in places if all(test(row + right[i]) for test in tests)]
        used.update(places)
        found.append((row, [right[i] for i in places]))
    return found, [row for i, row in enumerate(right) if i not in used]
