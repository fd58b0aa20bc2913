"""How messages show keys, values and places of a configuration: short, on one line, without credentials. Variables."""

import re
from collections.abc import Iterable
from typing import Any

from mergerepl import roots
from mergerepl.config.strict_yaml import KeyPath
from mergerepl.model.words import nearest_name
from mergerepl.settings import variable

_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KINDS = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a mapping",
}


def known(given: str, known: Iterable[str], introduction: str) -> str:
    """Return the nearest known name as a question, and all known names."""
    names = tuple(known)
    nearest = nearest_name(given, names)
    all_of_them = f"{introduction} {', '.join(f'`{name}`' for name in names)}"
    return f"did you mean `{nearest}`? ({all_of_them})" if nearest else all_of_them


def dotted(path: KeyPath) -> str:
    """Return a key path as text: articles[0].tracking."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{clean(step)}" for step in path)
    return text.removeprefix(".") or "the file"


def place(name: str, line: int | None) -> str:
    """Return the beginning of a message: file, and line if known."""
    return f"{name}, line {line}: " if line else f"{name}: "


def kind(value: Any) -> str:
    """Describe a value by its kind, with the value itself if it is short."""
    if isinstance(value, list | dict):
        return _KINDS[type(value)]
    return f"{_KINDS.get(type(value), 'a ' + type(value).__name__)} ({shown(value)})"


def shown(value: object) -> str:
    """Return a value for a message: short, on one line, without credentials."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    text = repr(value) if isinstance(value, str) else str(value)
    return clean(text)


def clean(text: str) -> str:
    """Return text without credentials and control characters, cut to 80 characters."""
    safe = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in roots.masked(text))
    return safe if len(safe) <= 80 else f"{safe[:77]}…"


def with_variables(stated: object) -> object:
    """Replace `${NAME}` and `${NAME:-default}` in a text by the environment's values; `$${` stands for `${`.

    Raises: ValueError saying what is wrong with a variable.
    """
    if not isinstance(stated, str):
        return stated

    def value(found: re.Match[str]) -> str:
        if found[1] is None:
            return "${"
        name, has_default, default = found[1].partition(":-")
        if not found[2] or _VARIABLE_NAME.fullmatch(name) is None:
            raise ValueError(
                f"holds {shown(found[0])}; write a variable as `${{NAME}}` or `${{NAME:-default}}`, and the text `${{` "
                "as `$${`"
            )
        given = variable(name)
        if has_default and not given:
            return default
        if not given:
            # Without its first part, `${LAKE}/north` would be a folder below `/`.
            state = "is not set" if given is None else "is empty"
            raise ValueError(
                f"needs the environment variable {name}, which {state}: set it, or state a default, as in "
                f"`${{{name}:-default}}`"
            )
        return given

    return _VARIABLE.sub(value, stated)


def without_variables(text: str) -> str:
    """Return a text that is the same in every environment.

    Raises: ValueError if it names a variable, which would stay as it is written: a filter would find no row.
    """
    if "${" in text:
        raise ValueError(
            f"is {shown(text)}; variables stand only in folders, `host_name`, `suser_sname` and durations, so that names, "
            "columns and filters are the same in every environment"
        )
    return text
