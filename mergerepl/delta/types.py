"""Column types as a Delta log states them (JSON) and as Spark DDL, translated without a session."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from mergerepl.delta.metadata import CHAR_VARCHAR
from mergerepl.rows.sql import quote

Json = Any
"""A type of a Delta schema: a name, or an object for struct, array, map and Spark's user-defined types."""

Field = dict[str, Any]
"""A field of a Delta schema: name, type, nullable, metadata."""

INVARIANTS = "delta.invariants"
"""The property of a field with an invariant, as JSON."""

USER_DEFINED = "udt"
"""The type name of all user-defined types, such as the vectors of Spark ML."""

_PADDED = re.compile(r"(?<!var)char\(\d+\)")
_DDL_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
_JSON_NAMES = {ddl: json for json, ddl in _DDL_NAMES.items()}
_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}
"""The decimal digits of whole numbers, narrow ones first."""

_EXACT_DIGITS = {"float": 5, "double": 10}
"""The most digits of whole numbers that each type holds exactly: those of short and integer."""

_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def ddl_of(data_type: Json) -> str:
    """Return a type of a Delta schema as Spark DDL (char and varchar are already strings there)."""
    if isinstance(data_type, str):
        return _DDL_NAMES.get(data_type, data_type)
    if data_type["type"] == "array":
        return f"array<{ddl_of(data_type['elementType'])}>"
    if data_type["type"] == "map":
        return f"map<{ddl_of(data_type['keyType'])},{ddl_of(data_type['valueType'])}>"
    if data_type["type"] == USER_DEFINED:
        return USER_DEFINED
    fields = (
        f"{quote(name) if not _PLAIN_NAME.match(name := field['name']) else name}:{ddl_of(field['type'])}"
        for field in data_type["fields"]
    )
    return f"struct<{','.join(fields)}>"


def json_of(ddl: str) -> Json:
    """Return the Delta schema type of a DDL type of the system tables; names that need quotes are not supported."""
    head, _, rest = ddl.strip().partition("<")
    if not rest:
        return _JSON_NAMES.get(head, head)
    parts = split_parts(rest[:-1])
    if head == "array":
        return {"type": "array", "elementType": json_of(parts[0]), "containsNull": True}
    if head == "map":
        key, value = (json_of(part) for part in parts)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    named = (part.partition(":") for part in parts)
    return {"type": "struct", "fields": [field(name.strip(), json_of(type_)) for name, _, type_ in named]}


def split_parts(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth, begin = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
    return [*parts, text[begin:]]


def field(name: str, data_type: Json) -> Field:
    """Return a nullable field."""
    return {"name": name, "type": data_type, "nullable": True, "metadata": {}}


def nullable(data_type: Json) -> Json:
    """Return a type without metadata whose parts, at every depth, may all be NULL."""
    if isinstance(data_type, str):
        return data_type
    if data_type["type"] == "array":
        return {"type": "array", "elementType": nullable(data_type["elementType"]), "containsNull": True}
    if data_type["type"] == "map":
        key, value = nullable(data_type["keyType"]), nullable(data_type["valueType"])
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    return {"type": "struct", "fields": [field(f["name"], nullable(f["type"])) for f in data_type["fields"]]}


def fits(value: Json, column: Json) -> bool:
    """Whether every value of a type can be stored unchanged in a column of another type.

    Nullability of parts is not compared.
    """
    if isinstance(value, str) and isinstance(column, str):
        return value == column or _is_widened(value, column)
    if isinstance(value, str) or isinstance(column, str) or value["type"] != column["type"]:
        return False
    if value["type"] == USER_DEFINED:
        return bool(bare(value) == bare(column))
    if value["type"] == "struct":
        named = [[field["name"].lower() for field in each["fields"]] for each in (value, column)]
        pairs = zip(value["fields"], column["fields"], strict=False)
        return named[0] == named[1] and all(fits(one["type"], other["type"]) for one, other in pairs)
    parts = ("elementType", "keyType", "valueType")
    return all(fits(value[part], column[part]) for part in parts if part in value)


def _is_widened(value: str, column: str) -> bool:
    if (digits := _DIGITS.get(value)) is not None:
        if column in _DIGITS:
            return digits < _DIGITS[column]
        if column in _EXACT_DIGITS:
            return digits <= _EXACT_DIGITS[column]
    found, wanted = _DECIMAL.fullmatch(value), _DECIMAL.fullmatch(column)
    if wanted is not None and (found is not None or digits is not None):
        precision, scale = (int(found[1]), int(found[2])) if found is not None else (digits or 0, 0)
        return int(wanted[2]) >= scale and int(wanted[1]) - int(wanted[2]) >= precision - scale
    return (value, column) in (("float", "double"), ("date", "timestamp_ntz"))


def is_widening(before: str, after: str) -> bool:
    """Whether Delta's type widening leads from one type (Spark DDL) to another one."""
    value, column = json_of(before), json_of(after)
    if (
        not isinstance(value, str)
        or not isinstance(column, str)
        or value == column
        or not fits(value, column)
    ):
        return False
    if (digits := _DIGITS.get(value)) is None:
        return True
    # A file holds each of them as a number of 32 or 64 bits, and Delta asks for a type that takes all of these.
    found = _DECIMAL.fullmatch(column)
    return column != "float" and (
        found is None or int(found[1]) - int(found[2]) >= (20 if digits > 10 else 10)
    )


def bare(data_type: Json) -> Json:
    """Return a type without the metadata of its fields; nullability of parts is kept."""
    if isinstance(data_type, list):
        return [bare(each) for each in data_type]
    if isinstance(data_type, dict):
        return {name: bare(value) for name, value in data_type.items() if name != "metadata"}
    return data_type


def padded_types(column: Field) -> list[str]:
    """Return the char types in a column, whose values Spark pads on writing and reading."""
    return _PADDED.findall(str(column["metadata"].get(CHAR_VARCHAR, "")))


def inner_types(data_type: Json) -> list[Json]:
    """Return the types of a type's fields, elements, keys and values; a user-defined one is not taken apart."""
    if isinstance(data_type, str) or data_type["type"] == USER_DEFINED:
        return []
    parts = [data_type[part] for part in ("elementType", "keyType", "valueType") if part in data_type]
    return [*(each["type"] for each in data_type.get("fields", ())), *parts]


def nested_names(data_type: Json) -> Iterator[str]:
    """Yield the names of all fields inside of a type."""
    if isinstance(data_type, dict):
        yield from (each["name"] for each in data_type.get("fields", ()))
    for inner in inner_types(data_type):
        yield from nested_names(inner)


def leaf_types(data_type: Json) -> set[str]:
    """Return the names of all primitive types in a type, and of user-defined ones."""
    inner = inner_types(data_type)
    if not inner:
        return {data_type if isinstance(data_type, str) else data_type["type"]}
    return set().union(*map(leaf_types, inner))


def invariants(fields: Iterable[Field], prefix: str = "") -> dict[str, str]:
    """Return the fields, also inside of structs, that have an invariant: dotted name -> SQL over the table's columns."""
    found: dict[str, str] = {}
    for field in fields:
        name = prefix + field["name"]
        if INVARIANTS in field["metadata"]:
            found[name] = invariant_text(field["metadata"])
        if isinstance(field["type"], dict) and field["type"]["type"] == "struct":
            found |= invariants(field["type"]["fields"], f"{name}.")
    return found


def invariant_text(metadata: Json) -> str:
    """Return the SQL text of the invariant in a field's metadata."""
    return str(json.loads(metadata[INVARIANTS])["expression"]["expression"])


def has_not_null_parts(data_type: Json) -> bool:
    """Whether a part of a type, at any depth, is NOT NULL."""
    stated = {} if isinstance(data_type, str) else data_type
    return (
        not stated.get("containsNull", True)
        or not stated.get("valueContainsNull", True)
        or any(not each["nullable"] for each in stated.get("fields", ()))
        or any(map(has_not_null_parts, inner_types(data_type)))
    )
