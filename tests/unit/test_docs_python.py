"""docs/python.md has every public object with its methods, and every value with its fields, as the code has them."""

import inspect
import re
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import mergerepl
from mergerepl import cdc, tracking, transactional
from mergerepl.cdc import tsql
from mergerepl.model import tasks
from mergerepl.replicas import Partitions, Schema

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^##+ ([^\n]+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
PUBLIC = {
    f"{place}{name}": getattr(package, name)
    for place, package in (("", mergerepl), ("cdc.", cdc), ("tracking.", tracking), ("tr.", transactional))
    for name in package.__all__
}
OF_METHODS = {"tracking.Consumer", "tracking.Window", "tr.Call"}
"""Dataclasses that are objects."""
DATA = {
    name: [field.name for field in fields(each)] if is_dataclass(each) else list(each._fields)
    for name, each in [*PUBLIC.items(), *inspect.getmembers(tasks, inspect.isclass)]
    if (is_dataclass(each) or hasattr(each, "_fields"))
    and (name in PUBLIC or each.__module__ == tasks.__name__)
    and name not in OF_METHODS
    and name != "cdc.Lsn"
}
OBJECTS = {
    name.rpartition(".")[2]: each
    for name, each in PUBLIC.items()
    if inspect.isclass(each)
    and not issubclass(each, Exception | Enum)
    and name not in {*DATA, "tracking.SqlCeChangeTracking"}
} | {"Partitions": Partitions, "Schema": Schema}


def cells(section: str) -> dict[str, tuple[str, str]]:
    """The rows of a table: name -> what stands behind it in the first cell, and the second cell."""
    rows = re.findall(r"^\| `([\w.]+)(\(.*?\))?` \| `(.+?)` \|", SECTIONS[section], re.MULTILINE)
    return {name: (parameters, second) for name, parameters, second in rows}


def default_of(parameter: inspect.Parameter) -> str:
    default = parameter.default
    if isinstance(default, Enum):
        return f"{type(default).__name__}.{default.name}"
    return f'"{default}"' if isinstance(default, str) else str(default)


def signature_of(function: Any) -> tuple[str, str]:
    """The parameters, without `self` and types, and the type of the result."""
    found = inspect.signature(function)
    given = [each for each in found.parameters.values() if each.name not in ("self", "cls")]
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    shown = [
        stars.get(each.kind, "") + each.name + ("" if each.default is each.empty else f"={default_of(each)}")
        for each in given
    ]
    first = next((i for i, each in enumerate(given) if each.kind is each.KEYWORD_ONLY), None)
    if first is not None and not any(each.kind is each.VAR_POSITIONAL for each in given):
        shown.insert(first, "*")
    result = inspect.formatannotation(found.return_annotation).strip("'")
    return f"({', '.join(shown)})", re.sub(r"[\w.]+\.(?=\w)", "", result).replace("|", r"\|")


def methods(kind: type) -> dict[str, tuple[str, str]]:
    """The public methods and properties of a class: name -> parameters (none of a property), result."""
    found = {}
    for name, each in vars(kind).items():
        if name.startswith("_") or name in getattr(kind, "__dataclass_fields__", {}):
            continue
        if isinstance(each, property):
            found[name] = ("", signature_of(each.fget)[1])
        elif callable(function := getattr(each, "__func__", each)):
            found[name] = signature_of(function)
    return found


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_has_its_methods(name: str) -> None:
    assert cells(name) == methods(OBJECTS[name])


def test_functions_have_their_signatures() -> None:
    functions = {name: each for name, each in PUBLIC.items() if inspect.isfunction(each)}
    assert cells("Functions") == {name: signature_of(each) for name, each in functions.items()}


def test_values_have_their_fields() -> None:
    stated = {name: named.split(", ") for name, (_, named) in cells("Values").items()}
    # docs/cli-json.md has those of the other packages.
    assert stated == {name: each for name, each in DATA.items() if "." not in name or name == "cdc.Snapshot"}


def test_the_originals_names_are_all_there() -> None:
    named = set(re.findall(r"\w+", SECTIONS["Names of the original"]))
    ours = {name for name in vars(tsql) if name.startswith(("sp_", "fn_", "dm_"))}
    ours |= {name for name in vars(tracking.SqlCeChangeTracking) if name[0].isupper()}
    assert ours - named == set()
