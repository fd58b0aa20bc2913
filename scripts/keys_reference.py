"""Write docs/keys.md and docs/mergerepl.schema.json from the models of the project file; with `--check`, compare them."""

import json
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mergerepl.config.meanings import MEANINGS
from mergerepl.config.schema import MODELS, Keys, json_schema
from mergerepl.model.refused_pairs import REFUSED

DOCS = Path(__file__).parent.parent / "docs"
PAGE, SCHEMA = DOCS / "keys.md", DOCS / "mergerepl.schema.json"
HEAD = """# Keys of the project file

<!-- Written by scripts/keys_reference.py from the models of the file. Do not edit. -->

[configuration.md](configuration.md) has an example, and what happens when a file changes. The column *value* has the
default, or the words that a key may have. Editors show the same texts by the [JSON Schema](mergerepl.schema.json).
"""
TITLES = {
    "merge": "A merge publication",
    "transactional": "A transactional publication",
    "cdc": "A captured folder",
    "tracking": "A tracked folder",
}
PAIRS = """## Options that do not go together

Each of these pairs is refused by name, and nothing is changed: by `apply`, or by `sync` for an option of a session.

| this | and this | take instead |
|---|---|---|
"""


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for type_, model in MODELS.items():
        parts.append(
            f"## {TITLES[type_]}\n\nA document with `type: {type_}`{', or without `type`' if type_ == 'merge' else ''}.\n"
        )
        parts += _tables(model, "")
    pairs = "".join(f"| {pair.one} | {pair.other} | {pair.instead} |\n" for pair in REFUSED)
    return "\n".join([*parts, PAIRS + pairs])


def _tables(model: type[Keys], path: str) -> Iterator[str]:
    """Yield the table of a model, then those of the keys that hold models."""
    inner = {
        name: found for name, each in model.model_fields.items() if (found := _model_in(each.annotation))
    }
    rows = "".join(
        f"| `{name}` | {_value(each)} | {MEANINGS[model.__name__][name]} |\n"
        for name, each in model.model_fields.items()
        if name in MEANINGS[model.__name__]
    )
    meaning = "`status` warns if" if path == "alerts" else "meaning"
    yield (f"`{path}`:\n\n" if path else "") + f"| key | value | {meaning} |\n|---|---|---|\n{rows}"
    for name, found in inner.items():
        yield from _tables(found, f"{path}.{name}" if path else name)


def _model_in(annotation: Any) -> type[Keys] | None:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation if issubclass(annotation, BaseModel) else None
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)


def _value(field: FieldInfo) -> str:
    """Return the words that a key may have, or its default."""
    default = "" if field.is_required() else _stated(field.default)
    if chosen := _choices(field.annotation):
        return ", ".join(f"{each} (default)" if each == default else each for each in map(_stated, chosen))
    return "required" if field.is_required() else default


def _choices(annotation: Any) -> list[Any]:
    inner = get_args(annotation)
    return (
        [*inner] if get_origin(annotation) is Literal else [each for part in inner for each in _choices(part)]
    )


def _stated(value: Any) -> str:
    """Return a value as the file states it."""
    if value is None or isinstance(value, BaseModel) or value in ([], {}):
        return ""
    if isinstance(value, timedelta):
        return (
            f"`{value.days} days`"
            if value % timedelta(days=1) == timedelta(0)
            else f"`{value // timedelta(hours=1)}h`"
        )
    if isinstance(value, list):
        return f"`[{', '.join(value)}]`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def files() -> dict[Path, str]:
    """Return the files and what they should hold."""
    return {PAGE: page(), SCHEMA: json.dumps(json_schema(), indent=1) + "\n"}


if __name__ == "__main__":
    for file, text in files().items():
        if "--check" not in sys.argv[1:]:
            file.write_text(text, encoding="utf-8")
        elif file.read_text(encoding="utf-8") != text:
            sys.exit(f"{file} is not what the models say: run python scripts/keys_reference.py")
