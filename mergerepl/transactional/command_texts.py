"""Commands as text, in the form of the original's `sp_browsereplcmds`."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, BooleanType, DataType, NumericType, StructType

from mergerepl.logreader.lsn import Lsn
from mergerepl.rows.images import readable
from mergerepl.rows.sql import quote
from mergerepl.systables.transactional import ArticleRow
from mergerepl.transactional.call_syntax import Arguments, Method, Operation, call_text, statement_text
from mergerepl.transactional.catalog import shape_of


@dataclass(frozen=True)
class BrowsedCommand:
    """A command: its transaction (`0x…`), its number, its article and its text."""

    xact_seqno: str
    command_id: int
    article: str
    operation: str
    command: str


def command_texts(commands: DataFrame, article: ArticleRow, *, limit: int) -> list[BrowsedCommand]:
    """Return the first commands of a table of commands in their order, as text."""
    shape = shape_of(article)
    sides = ("old", "new", "pk")
    shown = commands.orderBy("xact_seqno", "command_id").limit(limit)
    types: dict[str, StructType] = {side: commands.schema[side].dataType for side in sides}  # type: ignore[misc]
    rows = shown.select(
        *("xact_seqno", "command_id", "operation", "bitmap"),
        *(
            F.array(*(_literal(F.col(f"{side}.{f.name}"), f.dataType) for f in types[side])).alias(side)
            for side in sides
        ),
    ).collect()
    found = []
    for row in sorted(rows, key=lambda row: (bytes(row["xact_seqno"]), row["command_id"])):
        operation = Operation(row["operation"])
        command = shape.command(operation)
        given = Arguments(
            old=_texts(row["old"]),
            new=_texts(row["new"]),
            pk=_texts(row["pk"]),
            bitmap=None if row["bitmap"] is None else bytes(row["bitmap"]),
        )
        if command.method is Method.SQL:
            columns, key = [quote(name) for name in shape.columns], [quote(name) for name in shape.key]
            text = statement_text(operation, shape.destination, columns, key, given)
        else:
            text = call_text(command, command.named(shape.procedure(operation)), given)
        seqno = str(Lsn(bytes(row["xact_seqno"])))
        found.append(BrowsedCommand(seqno, row["command_id"], article.article, operation.value, text))
    return found


def _literal(value: Column, data_type: DataType) -> Column:
    """Return a value as SQL has it: numbers, booleans and bytes bare, all else between quotes."""
    text = readable(value, data_type)
    if isinstance(data_type, NumericType | BooleanType | BinaryType):
        return text
    return F.concat(F.lit("'"), F.replace(text, F.lit("'"), F.lit("''")), F.lit("'"))


def _texts(values: Sequence[str | None]) -> list[str]:
    return ["NULL" if value is None else value for value in values]
