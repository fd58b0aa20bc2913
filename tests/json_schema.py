"""A checker of JSON values against the keywords of JSON Schema that the project file's schema uses."""

import re
from typing import Any

_TYPES = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": int | float,
    "array": list,
    "object": dict,
    "null": type(None),
}
_KNOWN = {
    "$defs", "$ref", "$schema", "additionalProperties", "anyOf", "const", "default", "description", "enum", "items",
    "maxLength", "maximum", "minItems", "minLength", "minimum", "oneOf", "pattern", "properties", "required", "title",
    "type",
}  # fmt: skip


def fits(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """Whether a value fits a schema inside of the schema `root`."""
    assert schema.keys() <= _KNOWN, schema.keys() - _KNOWN
    if "$ref" in schema and not fits(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root):
        return False
    if "oneOf" in schema and sum(fits(value, each, root) for each in schema["oneOf"]) != 1:
        return False
    if "anyOf" in schema and not any(fits(value, each, root) for each in schema["anyOf"]):
        return False
    if "type" in schema and not (
        isinstance(value, _TYPES[schema["type"]])
        and (not isinstance(value, bool) or schema["type"] == "boolean")
    ):
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if "enum" in schema and not any(value == each and type(value) is type(each) for each in schema["enum"]):
        return False
    if isinstance(value, str):
        length_fits = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
        return length_fits and re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return schema.get("minimum", value) <= value <= schema.get("maximum", value)
    if isinstance(value, list):
        return len(value) >= schema.get("minItems", 0) and all(
            fits(each, schema.get("items", {}), root) for each in value
        )
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        return set(schema.get("required", ())) <= value.keys() and all(
            fits(each, known[name], root)
            if name in known
            else others is not False and fits(each, others, root)
            for name, each in value.items()
        )
    return True
