"""docs/python.md has every public name, with the signature that it has."""

import __future__

import inspect
import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mergerepl
from mergerepl.model import conflicts, listing, publication, results, tasks, tracking

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
BARE = {"Article", "Subscription", "ApplyResult", "SyncResult", "SessionResult"}
"""Names that other examples use."""


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", SECTIONS[name], re.DOTALL)


def stated(name: str) -> Any:
    """The signature on the page, as an object; where the code's annotations are text, its are too."""
    code = inspect.getmodule(getattr(mergerepl, name))
    is_text = getattr(code, "annotations", None) is __future__.annotations
    flags = __future__.annotations.compiler_flag if is_text else 0
    known = {
        **vars(publication),
        **vars(results),
        **vars(tracking),
        **vars(conflicts),
        **vars(tasks),
        **vars(listing),
    }
    known |= {
        "dataclass": dataclass,
        "field": field,
        "datetime": datetime,
        "timedelta": timedelta,
        "Any": Any,
    }
    exec(compile(blocks(name)[0], name, "exec", flags=flags, dont_inherit=True), known)
    return known[name]


def members(kind: type) -> dict[str, Any]:
    """What a class has of its own besides its fields: the signatures of methods and properties, the values of constants."""
    fields = getattr(kind, "__dataclass_fields__", {})
    own = {
        name: getattr(each, "fget", getattr(each, "__func__", each))
        for name, each in vars(kind).items()
        if name not in fields
    }
    public = {name: each for name, each in own.items() if not name.startswith("_")}
    return {name: inspect.signature(each) if callable(each) else each for name, each in public.items()}


def test_the_page_has_every_public_name_and_no_other():
    assert sorted(SECTIONS) == sorted(mergerepl.__all__)


@pytest.mark.parametrize("name", mergerepl.__all__)
def test_the_signature_is_that_of_the_code(name):
    ours, real = stated(name), getattr(mergerepl, name)
    assert inspect.signature(ours) == inspect.signature(real)
    if isinstance(real, type):
        assert members(ours) == members(real)


@pytest.mark.parametrize("name", sorted(set(mergerepl.__all__) - BARE))
def test_the_main_names_have_an_example_that_uses_them(name):
    assert any(
        re.search(rf"\b{name if name != 'Project' else 'project'}\b", block) for block in blocks(name)[1:]
    )
