"""Frames in this process: rows as tuples of physical values (`values`), computed at once."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from mergerepl.frames import NotInProcessError
from mergerepl.frames.columns import Column, ColumnOrName, Field, Of, Scope, Typed, col
from mergerepl.frames.values import (
    equal_key,
    from_arrow,
    order_key,
    physical_value,
    python_value,
    struct_of,
    to_arrow,
    wider,
)

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[Any, ...]


def frame_of(rows: "pa.Table", schema: T.StructType | None = None) -> "DataFrame":
    """Return Arrow rows as a frame."""
    if schema is None:
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    known = struct_of(schema)
    columns = [from_arrow(rows.column(i), each.dataType) for i, each in enumerate(known)]
    values = list(zip(*columns, strict=True)) if columns else [()] * rows.num_rows
    return DataFrame([Field(each.name, each.dataType) for each in known], values)


def frame_of_tuples(rows: Iterable[Sequence[Any]], schema: T.StructType | str) -> "DataFrame":
    """Return tuples of Python's values as a frame."""
    known = struct_of(schema)
    physical = physical_value(known)
    return DataFrame([Field(each.name, each.dataType) for each in known], [physical(row) for row in rows])


def collected(frame: "DataFrame") -> "pa.Table":
    """Return the rows in Arrow, with the types of Spark's."""
    import pyarrow as pa

    arrays = [to_arrow([row[i] for row in frame.rows], field.type) for i, field in enumerate(frame.fields)]
    fields = [pa.field(field.name, array.type) for field, array in zip(frame.fields, arrays, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


class DataFrame:
    """PySpark's DataFrame without a JVM."""

    def __init__(self, fields: Sequence[Field], rows: list[Row]) -> None:
        self.fields = tuple(fields)
        self.rows = rows

    @property
    def columns(self) -> list[str]:
        """As PySpark's."""
        return [field.name for field in self.fields]

    @property
    def schema(self) -> T.StructType:
        """As PySpark's; every column may be NULL."""
        return T.StructType([T.StructField(field.name, field.type) for field in self.fields])

    def __getitem__(self, item: str) -> Column:
        return col(item)

    def select(self, *cols: Any) -> "DataFrame":
        """As PySpark's."""
        scope = Scope(self.fields)
        fields: list[Field] = []
        values: list[Of] = []
        exploded = None
        for each in _flat(cols):
            if isinstance(each, str) and each.endswith("*"):
                for field, value in self._star(each, scope):
                    fields.append(field)
                    values.append(value)
                continue
            column = col(each) if isinstance(each, str) else each
            typed = column.typed(scope)
            if column.is_explode:
                exploded = len(fields)
            fields.append(Field(column.result_name or "value", typed.type))
            values.append(typed.of)
        rows = _rows(values, self.rows)
        if exploded is not None:
            i = exploded
            rows = [(*row[:i], item, *row[i + 1 :]) for row in rows for item in row[i] or ()]
        return DataFrame(fields, rows)

    def _star(self, text: str, scope: Scope) -> list[tuple[Field, Of]]:
        owner = text[:-2]
        chosen: list[tuple[Field, Of]] = [
            (field, operator.itemgetter(i))
            for i, field in enumerate(self.fields)
            if text == "*" or field.alias == owner
        ]
        if chosen or text == "*":
            return chosen
        data_type = scope.field(owner).type
        assert isinstance(data_type, T.StructType)
        parts = [(each.name, scope.field(f"{owner}.`{each.name}`")) for each in data_type]
        return [(Field(name, part.type), part.of) for name, part in parts]

    def withColumn(self, colName: str, col: Column) -> "DataFrame":
        """As PySpark's."""
        return self.withColumns({colName: col})

    def withColumns(self, *colsMap: Mapping[str, Column]) -> "DataFrame":
        """As PySpark's."""
        (added,) = colsMap
        by_name = {name.lower(): column.alias(name) for name, column in added.items()}
        kept = [
            by_name.pop(field.name.lower()).alias(field.name)
            if field.name.lower() in by_name
            else _place(i, field)
            for i, field in enumerate(self.fields)
        ]
        return self.select(*kept, *by_name.values())

    def withColumnRenamed(self, existing: str, new: str) -> "DataFrame":
        """As PySpark's."""
        return DataFrame(
            [field._replace(name=new) if field.name == existing else field for field in self.fields],
            self.rows,
        )

    def where(self, condition: ColumnOrName) -> "DataFrame":
        """As PySpark's; a text names a column."""
        test = (col(condition) if isinstance(condition, str) else condition).typed(Scope(self.fields)).of
        return DataFrame(self.fields, [row for row in self.rows if test(row)])

    filter = where

    def alias(self, alias: str) -> "DataFrame":
        """As PySpark's."""
        return DataFrame([field._replace(alias=alias) for field in self.fields], self.rows)

    def drop(self, *cols: str) -> "DataFrame":
        """As PySpark's."""
        gone = {each.lower() for each in cols}
        return self.select(*(_place(i, f) for i, f in enumerate(self.fields) if f.name.lower() not in gone))

    def join(self, other: "DataFrame", on: Any = None, how: str = "inner") -> "DataFrame":
        """As PySpark's: on names, or on a condition."""
        if not isinstance(other, DataFrame):
            raise TypeError("a frame of Spark cannot be joined in this process")
        names = [on] if isinstance(on, str) else on if isinstance(on, list | tuple) else None
        kind = how.replace("_", "").replace("outer", "")
        if names is None:
            keys, rest = _terms(on, self.fields, other.fields)
            both = [*self.fields, *other.fields]
        else:
            keys = [_key_pair(Scope(self.fields).field(n), Scope(other.fields).field(n)) for n in names]
            rest = []
            both = []
        residual = [each.typed(Scope(both)).of for each in rest]
        found, unmatched = self._matches(other, keys, residual)
        if kind in ("leftsemi", "semi", "leftanti", "anti"):
            wanted = kind.endswith("semi")
            return DataFrame(self.fields, [row for row, matches in found if bool(matches) is wanted])
        if kind not in ("inner", "left", "full"):
            raise NotInProcessError(f"a {how} join")
        nothing = (None,) * len(other.fields)
        rows = [
            (*row, *match)
            for row, matches in found
            for match in (matches or ([] if kind == "inner" else [nothing]))
        ]
        if kind == "full":
            rows += [(*(None,) * len(self.fields), *row) for row in unmatched]
        joined = DataFrame([*self.fields, *other.fields], rows)
        return (
            joined
            if names is None
            else joined._with_keys_first(names, len(self.fields), is_full=kind == "full")
        )

    def _matches(
        self, other: "DataFrame", keys: Sequence[tuple[Of, Of, bool]], residual: Sequence[Of]
    ) -> tuple[list[tuple[Row, list[Row]]], list[Row]]:
        """Return each row with the other frame's rows that match it, and that frame's rows that match none."""
        by_key: dict[Any, list[int]] = {}
        for place, row in enumerate(other.rows):
            key = tuple([right(row) for _, right, _ in keys])
            if not any(value is None and not safe for value, (_, _, safe) in zip(key, keys, strict=True)):
                by_key.setdefault(key, []).append(place)
        used: set[int] = set()
        found = []
        for row in self.rows:
            key = tuple([left(row) for left, _, _ in keys])
            places = by_key.get(key, [])
            if residual:
                places = [i for i in places if all(test((*row, *other.rows[i])) for test in residual)]
            used.update(places)
            found.append((row, [other.rows[i] for i in places]))
        return found, [row for place, row in enumerate(other.rows) if place not in used]

    def _with_keys_first(self, names: Sequence[str], width: int, *, is_full: bool) -> "DataFrame":
        """Return rows joined on names: each of these once, before the other columns."""
        left, right = Scope(self.fields[:width]), Scope(self.fields[width:])
        fields, values, gone = [], [], set()
        for name in names:
            (i,), (j,) = left.places[name.lower()], right.places[name.lower()]
            gone |= {i, width + j}
            field = self.fields[i]
            if is_full:
                field = field._replace(type=wider(field.type, self.fields[width + j].type))
            fields.append(field)
            values.append(_either(i, width + j) if is_full else operator.itemgetter(i))
        for i, field in enumerate(self.fields):
            if i not in gone:
                fields.append(field)
                values.append(operator.itemgetter(i))
        return DataFrame(fields, _rows(values, self.rows))

    def groupBy(self, *cols: Any) -> "Grouped":
        """As PySpark's."""
        return Grouped(self, self.select(*cols))

    def agg(self, *exprs: Column) -> "DataFrame":
        """As PySpark's."""
        return self.groupBy().agg(*exprs)

    def unionByName(self, other: "DataFrame", allowMissingColumns: bool = False) -> "DataFrame":
        """As PySpark's."""
        if not isinstance(other, DataFrame):
            raise TypeError("a frame of Spark cannot be joined to one in this process")
        mine, theirs = ({f.name.lower(): f for f in each.fields} for each in (self, other))
        if not allowMissingColumns and mine.keys() != theirs.keys():
            raise ValueError(f"columns {self.columns} beside {other.columns}")
        fields = [
            Field(field.name, wider(field.type, theirs[name].type) if name in theirs else field.type)
            for name, field in mine.items()
        ]
        fields += [Field(field.name, field.type) for name, field in theirs.items() if name not in mine]
        return DataFrame(fields, [*self._with_types(fields), *other._with_types(fields)])

    def _with_types(self, fields: Sequence[Field]) -> list[Row]:
        scope = Scope(self.fields)
        values: list[Of] = [
            Typed(self.fields[places[0]].type, operator.itemgetter(places[0])).cast(field.type)
            if (places := scope.places.get(field.name.lower()))
            else lambda _: None
            for field in fields
        ]
        return _rows(values, self.rows)

    def dropDuplicates(self, subset: Sequence[str] | None = None) -> "DataFrame":
        """As PySpark's."""
        keys = [_keyed(Scope(self.fields).field(name)) for name in subset or self.columns]
        first: dict[Any, Row] = {}
        for row in self.rows:
            first.setdefault(tuple([key(row) for key in keys]), row)
        return DataFrame(self.fields, list(first.values()))

    distinct = dropDuplicates

    def orderBy(self, *cols: ColumnOrName) -> "DataFrame":
        """As PySpark's, ascending."""
        scope = Scope(self.fields)
        typed = [(col(each) if isinstance(each, str) else each).typed(scope) for each in cols]
        keys = [(each.of, order_key(each.type)) for each in typed]
        return DataFrame(self.fields, sorted(self.rows, key=lambda row: [key(of(row)) for of, key in keys]))

    def limit(self, num: int) -> "DataFrame":
        """As PySpark's."""
        return DataFrame(self.fields, self.rows[:num])

    def coalesce(self, numPartitions: int) -> "DataFrame":
        """Return this frame, as `hint` and `repartition` do: it has no partitions."""
        return self

    def hint(self, name: str, *parameters: Any) -> "DataFrame":
        """Return this frame."""
        return self

    def repartition(self, numPartitions: Any, *cols: Any) -> "DataFrame":
        """Return this frame."""
        return self

    def count(self) -> int:
        """As PySpark's."""
        return len(self.rows)

    def isEmpty(self) -> bool:
        """As PySpark's."""
        return not self.rows

    def collect(self) -> list[T.Row]:
        """As PySpark's; times are in UTC."""
        values: Callable[[Any], T.Row] = python_value(self.schema)
        return [values(row) for row in self.rows]


class Grouped:
    """PySpark's GroupedData."""

    def __init__(self, frame: DataFrame, keys: DataFrame) -> None:
        self.frame, self.keys = frame, keys

    def agg(self, *exprs: Column) -> DataFrame:
        """As PySpark's."""
        keys = [equal_key(field.type) for field in self.keys.fields]
        groups: dict[Any, tuple[Row, list[Row]]] = {}
        if not keys:
            groups[()] = ((), self.frame.rows)
        for named, row in zip(self.keys.rows, self.frame.rows if keys else [], strict=bool(keys)):
            key = tuple([v if k is None else k(v) for k, v in zip(keys, named, strict=True)])
            groups.setdefault(key, (named, []))[1].append(row)
        scope = Scope((), Scope(self.frame.fields))
        typed = [each.typed(scope) for each in exprs]
        fields = [Field(c.result_name or "value", each.type) for c, each in zip(exprs, typed, strict=True)]
        rows = [(*named, *(each.of(group) for each in typed)) for named, group in groups.values()]
        return DataFrame([*self.keys.fields, *fields], rows)


def _flat(cols: Sequence[Any]) -> list[Any]:
    return [each for part in cols for each in (part if isinstance(part, list | tuple) else [part])]


def _place(place: int, field: Field) -> Column:
    return Column(lambda _: Typed(field.type, operator.itemgetter(place)), field.name)


def _either(one: int, other: int) -> Of:
    return lambda row: row[other] if row[one] is None else row[one]


def _rows(values: Sequence[Of], rows: Sequence[Row]) -> list[Row]:
    return [tuple([value(row) for value in values]) for row in rows]


def _keyed(typed: Typed) -> Of:
    key, of = equal_key(typed.type), typed.of
    return of if key is None else lambda row: key(of(row))


def _key_pair(one: Typed, other: Typed, *, is_null_safe: bool = False) -> tuple[Of, Of, bool]:
    both = wider(one.type, other.type)
    left, right = (_keyed(Typed(both, each.cast(both))) for each in (one, other))
    if equal_key(both) is not None:
        # The key of NULL is no NULL.
        left, right = (
            (lambda row, of=each.of, key=key: None if of(row) is None else key(row))
            for each, key in ((one, left), (other, right))
        )
    return left, right, is_null_safe


def _terms(
    condition: Column, left: Sequence[Field], right: Sequence[Field]
) -> tuple[list[tuple[Of, Of, bool]], list[Column]]:
    """Return the keys of a condition, each a function of a row of either frame, and the rest of it."""
    keys, rest, todo = [], [], [condition]
    while todo:
        column = todo.pop()
        if column.term is not None and column.term[0] == "&":
            todo += column.term[1:]
            continue
        pair = None
        if column.term is not None and column.term[0] in ("==", "<=>"):
            sign, one, other = column.term
            for a, b in ((one, other), (other, one)):
                try:
                    sides = a.typed(Scope(left)), b.typed(Scope(right))
                except ValueError:
                    continue
                pair = _key_pair(*sides, is_null_safe=sign == "<=>")
                break
        if pair is None:
            rest.append(column)
        else:
            keys.append(pair)
    return keys, rest
