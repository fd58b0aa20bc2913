"""Computation for each field of a row.

Spark interprets array functions, and looks up its settings for each value of the array: two thirds of the time of the
merge rules over many rows (measured). So if many rows have the same number of fields, the expression is written out
field by field, which Spark compiles. For few rows, writing and compiling takes longer. (decisions/0024)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

Structs = Column | Mapping[str, Column]
"""An array of structs, or one array for each of their fields. Without structs, the last of these is NULL."""

Struct = Column | Mapping[str, Column]
"""One struct of `Structs`."""

MOST_WRITTEN_OUT = 20
"""With more fields, compiling takes longer than interpreting 20,000 rows (measured)."""


@dataclass(frozen=True)
class Fields:
    """The fields to write out, for typed rows; None: array functions over encoded fields are used."""

    written: StructType | None = None

    @classmethod
    def of_many(cls, written: StructType) -> "Fields":
        """Return the mode for many rows with these fields."""
        return cls(written if len(written) <= MOST_WRITTEN_OUT else None)

    @property
    def is_written_out(self) -> bool:
        """Whether the fields are written out."""
        return self.written is not None

    def each(self, array: Column, value: Callable[[Column, Column | int], Column]) -> Column:
        """Return the array of a value computed from each element and its index; NULL for NULL."""
        if self.written is None:
            return F.transform(array, value)
        values = (value(F.get(array, F.lit(i)), i) for i in range(len(self.written)))
        return F.when(array.isNotNull(), F.array(*values))

    def each_struct(self, structs: Structs, value: Callable[[Struct], Column]) -> Column:
        """Return the array of a value computed from each struct; NULL without structs."""
        if self.written is None:
            assert isinstance(structs, Column)
            return F.transform(structs, value)
        values = [value(_struct(structs, i)) for i in range(len(self.written))]
        last = structs if isinstance(structs, Column) else [*structs.values()][-1]
        return F.when(last.isNotNull(), F.array(*values))

    def any_struct(
        self, structs: Structs, beside: Column, test: Callable[[Struct, Column], Column]
    ) -> Column:
        """Return whether a test holds for any struct and the element of another array at the same index."""
        if self.written is None:
            assert isinstance(structs, Column)
            both = F.arrays_zip(structs.alias("struct"), beside.alias("beside"))
            return F.exists(both, lambda each: test(each["struct"], each["beside"]))
        found = [test(_struct(structs, i), F.get(beside, F.lit(i))) for i in range(len(self.written))]
        return reduce(Column.__or__, found)

    def present(self, structs: Structs, value: Callable[[Struct], Column]) -> Column:
        """Return `each_struct` without NULLs. The values must be distinct."""
        found = self.each_struct(structs, value)
        if self.written is None:
            return F.filter(found, lambda each: each.isNotNull())
        nothing = F.when(F.lit(False), F.get(found, F.lit(0)))
        return F.array_except(found, F.array(nothing))


def _struct(structs: Structs, number: int) -> Struct:
    if isinstance(structs, Column):
        return F.get(structs, F.lit(number))
    return {name: F.get(values, F.lit(number)) for name, values in structs.items()}


INTERPRETED = Fields()
