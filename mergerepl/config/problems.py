"""Validation errors of pydantic as messages for the reader of the project file."""

import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mergerepl.config.strict_yaml import Document
from mergerepl.config.wording import dotted, kind, known, place, shown
from mergerepl.errors import ConfigurationError
from mergerepl.model.later import GONE, instead_of

MOST_PROBLEMS_SHOWN = 10


def refusal(
    error: ValidationError, document: Document, name: str, model: type[BaseModel], type_: str
) -> ConfigurationError:
    """Return one error for all findings of pydantic in a document of this model and `type`."""
    problems = []
    for found in error.errors(include_url=False):
        path = found["loc"]
        problem = f"{dotted(path)} {_problem(found, model, type_)}"
        problems.append((document.line(path) or 0, problem, dotted(path)))
    problems.sort()
    if len(problems) == 1:
        line, problem, key = problems[0]
        return ConfigurationError(f"{place(name, line)}{problem}.", file=name, key=key)
    shown = [f"  line {line}: {problem}" for line, problem, _ in problems[:MOST_PROBLEMS_SHOWN]]
    more = [f"  and {len(problems) - len(shown)} more"] if len(problems) > len(shown) else []
    return ConfigurationError(
        "\n".join([f"{name} has {len(problems)} problems:", *shown, *more]),
        file=name,
        key=", ".join(key for _, _, key in problems[:MOST_PROBLEMS_SHOWN]),
    )


def _problem(found: ErrorDetails, model: type[BaseModel], type_: str) -> str:
    """Describe one invalid value in the terms of the project file."""
    value, context, key = found["input"], found.get("ctx", {}), str(found["loc"][-1] if found["loc"] else "")
    match found["type"]:
        case "extra_forbidden" if instead := instead_of(type_, key):
            return f"is a key of a later version. {instead.rstrip('.')}"
        case "extra_forbidden" if now := GONE.get(type_, {}).get(key):
            return f"is not a key any more: write {now}"
        case "extra_forbidden":
            keys = tuple(_model_at(found["loc"][:-1], model).model_fields)
            return f"is not a known key; {known(key, keys, 'the keys here are')}"
        case "missing":
            return "is missing"
        case "literal_error" if instead := instead_of(type_, key, value):
            return f"is {shown(value)}, a value of a later version. {instead.rstrip('.')}"
        case "literal_error":
            choices = re.findall(r"[\w-]+(?='|,|$| or )", str(context["expected"]))
            return f"is {shown(value)}; {known(str(value), choices, 'it may be')}"
        case "value_error":
            return str(context["error"])
        case "too_short" | "string_too_short":
            return "is empty"
        case "string_too_long":
            return f"is longer than {context['max_length']} characters"
        case "greater_than_equal" | "less_than_equal" | "finite_number":
            return f"is {shown(value)}; it must be {_range(found['loc'], model)}"
    wanted = _WANTED.get(found["type"], f"valid: {found['msg']}")
    if found["type"] == "list_type" and (item := models_in(model).get(key)) is not None:
        first = next(name for name, each in item.model_fields.items() if each.is_required())
        wanted = f"a list of mappings, such as `- {{{first}: …}}`"
    if value is None:
        return f"has no value; it must be {wanted}, or leave the key out"
    quote = (
        ' (put it in quotes: "…")'
        if found["type"] == "string_type" and not isinstance(value, dict | list)
        else ""
    )
    return f"is {kind(value)}; it must be {wanted}{quote}"


_WANTED = {
    "string_type": "text",
    "float_type": "a number",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list, such as `[order_id]`",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
    "dict_type": "a mapping of keys",
}


def models_in(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return the models of the places of a document by key; the document itself is ``""``."""
    found = {"": model}
    for name, field in model.model_fields.items():
        for inner in _models_of(field.annotation):
            found |= {key or name: each for key, each in models_in(inner).items()}
    return found


def _models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_of(inner)


def _model_at(location: tuple[int | str, ...], model: type[BaseModel]) -> type[BaseModel]:
    models, found = models_in(model), model
    for step in location:
        found = models.get(str(step), found)
    return found


def _range(location: tuple[int | str, ...], model: type[BaseModel]) -> str:
    """Describe the numbers that a key may have."""
    field = _model_at(location[:-1], model).model_fields[str(location[-1])]
    bounds = {
        name: getattr(each, name) for each in field.metadata for name in ("ge", "le") if hasattr(each, name)
    }
    return f"between {bounds['ge']} and {bounds['le']}" if len(bounds) == 2 else f"at least {bounds['ge']}"
