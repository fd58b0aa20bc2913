"""Validation errors of pydantic as messages for the reader of the configuration file."""

import re
from collections.abc import Mapping

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mergerepl.config.schema import ArticleKeys, JoinKeys, PublicationKeys, ResolverKeys, SubscriptionKeys
from mergerepl.config.strict_yaml import Document
from mergerepl.config.wording import dotted, kind, known, place, shown
from mergerepl.errors import ConfigurationError
from mergerepl.model.later import instead_of

MOST_PROBLEMS_SHOWN = 10


def refusal(
    error: ValidationError,
    document: Document,
    name: str,
    models: Mapping[str, type[BaseModel]] | None = None,
    *,
    type_: str = "merge",
) -> ConfigurationError:
    """Return one error for all findings of pydantic; `models` are those of each place, by default a merge file's.

    `type_` is the file's.
    """
    problems = []
    for found in error.errors(include_url=False):
        path = found["loc"]
        problems.append(
            (
                document.line(path) or 0,
                f"{dotted(path)} {_problem(found, models or MODELS, type_)}",
                dotted(path),
            )
        )
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


def _problem(found: ErrorDetails, models: Mapping[str, type[BaseModel]], type_: str) -> str:
    """Describe one invalid value in the terms of the configuration file."""
    value, context = found["input"], found.get("ctx", {})
    match found["type"]:
        case "extra_forbidden" if instead := instead_of(type_, str(found["loc"][-1])):
            return f"is a key of a later version. {instead.rstrip('.')}"
        case "extra_forbidden":
            keys = _keys_at(found["loc"][:-1], models)
            return f"is not a known key; {known(str(found['loc'][-1]), keys, 'the keys here are')}"
        case "missing":
            return "is missing"
        case "literal_error" if instead := instead_of(type_, str(found["loc"][-1]), value):
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
            return f"is {shown(value)}; it must be between 0.00 and 99.99"
    wanted = _WANTED.get(found["type"], f"valid: {found['msg']}")
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
    "bool_type": "true or false",
    "list_type": "a list, such as `[order_id]`",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
    "dict_type": "a mapping of keys",
}


MODELS: dict[str, type[BaseModel]] = {
    "": PublicationKeys,
    "articles": ArticleKeys,
    "joins": JoinKeys,
    "subscriptions": SubscriptionKeys,
    "resolver": ResolverKeys,
}


def _keys_at(location: tuple[int | str, ...], models: Mapping[str, type[BaseModel]]) -> tuple[str, ...]:
    model = models[""]
    for step in location:
        model = models.get(str(step), model)
    return tuple(model.model_fields)
