"""SQL text: identifiers and literals. Pure; everything else is DataFrame code."""

from collections.abc import Iterable, Mapping


def quote(name: str) -> str:
    """Return a name as a Spark SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Return a text as a Spark SQL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def struct_type(types: Mapping[str, str]) -> str:
    """Return the DDL type of a row image; `types`: image field -> type."""
    return "struct<" + ",".join(f"{field}:{type_}" for field, type_ in types.items()) + ">"


def free_name(name: str, taken: Iterable[str]) -> str:
    """Return a variant of a name that is not taken by a user's column, whatever its case."""
    others = {other.lower() for other in taken}
    while name.lower() in others:
        name += "_"
    return name


def table_text(path: str) -> str:
    """Return a table as SQL names it."""
    return f"delta.{quote(path)}"
