"""Write docs/api.md from the docstrings of the public names; with `--check`, only say whether it is up to date."""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import mergerepl
from mergerepl import cdc, tracking, transactional
from mergerepl.model import tasks
from mergerepl.replicas import Partitions, Schema

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
HEAD = """# Python reference

<!-- Written by scripts/api_reference.py from the docstrings. Do not edit. -->

The public names with their docstrings. [python.md](python.md) has what they share, and examples;
[errors.md](errors.md) has the errors. Signatures are shown without types; strings stand for members of enumerations.
"""
PRODUCTS = (transactional, cdc, tracking)
HIDDEN = "SqlCeChangeTracking"
"""Its members are those of the original: docs/python.md lists them."""
RESULTS = [
    each
    for name, each in inspect.getmembers(tasks, is_dataclass)
    if each.__module__ == tasks.__name__ and not any(name in package.__all__ for package in PRODUCTS)
]
"""Classes that methods return and no package names."""
MORE = {"mergerepl": [Partitions, Schema, *RESULTS]}
_MARKUP = re.compile(r"(`[^`]*`)|([*_<>|\[\]])")
_SECTION = re.compile(r"^(Args|Raises|Returns|Attributes): *", re.MULTILINE)


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    of_products = {id(getattr(package, each)) for package in PRODUCTS for each in package.__all__}
    for package in (mergerepl, *PRODUCTS):
        name = package.__name__
        public = {each: getattr(package, each) for each in sorted(package.__all__) if each != HIDDEN}
        if package is mergerepl:
            public = {key: each for key, each in public.items() if id(each) not in of_products}
        classes = [each for each in public.values() if inspect.isclass(each)]
        classes = [each for each in classes if not issubclass(each, Exception)] + MORE.get(name, [])
        objects = [each for each in classes if is_object(each)]
        functions = [(key, each) for key, each in public.items() if inspect.isfunction(each)]
        values = [each for each in classes if each not in objects]
        parts.append(f"## {name}\n")
        for kind in sorted(objects, key=_name):
            parts += [f"### {kind.__name__}\n", prose(kind), *_methods(kind)]
        if functions:
            parts += [f"### Functions of {name}\n", *(entry(key, each) for key, each in functions)]
        parts += [f"### Values of {name}\n", *map(_value, sorted(values, key=_name)), ""]
    return "\n".join(parts)


def _name(kind: type) -> str:
    return kind.__name__


def is_object(kind: type) -> bool:
    """Whether a class is listed with its methods; values have fields alone, or a property or two."""
    own = [
        name for name in public_members(kind) if not isinstance(inspect.getattr_static(kind, name), property)
    ]
    return bool(own) and not issubclass(kind, Enum) and kind not in RESULTS


def public_members(kind: type) -> dict[str, Any]:
    """Return the public methods and properties that a class states itself."""
    stated = getattr(kind, "__dataclass_fields__", {})
    found = {
        name: each for name, each in vars(kind).items() if not name.startswith("_") and name not in stated
    }
    return {
        name: each
        for name, each in found.items()
        if isinstance(each, property) or callable(getattr(each, "__func__", each))
    }


def _methods(kind: type) -> Iterator[str]:
    for name, each in public_members(kind).items():
        yield entry(
            name,
            each.fget if isinstance(each, property) else getattr(each, "__func__", each),
            is_property=isinstance(each, property),
        )


def entry(name: str, function: Any, *, is_property: bool = False) -> str:
    """Return a method with its signature and docstring."""
    parameters, result = signature_of(function)
    return f"**`{name}{'' if is_property else parameters}`** → `{result}`\n\n{prose(function)}"


def signature_of(function: Any) -> tuple[str, str]:
    """Return the parameters, without `self` and types, and the type of the result."""
    found = inspect.signature(function)
    given = [each for each in found.parameters.values() if each.name not in ("self", "cls")]
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    shown = [
        stars.get(each.kind, "")
        + each.name
        + ("" if each.default is each.empty else f"={_default(each.default)}")
        for each in given
    ]
    first = next((i for i, each in enumerate(given) if each.kind is each.KEYWORD_ONLY), None)
    if first is not None and not any(each.kind is each.VAR_POSITIONAL for each in given):
        shown.insert(first, "*")
    result = inspect.formatannotation(found.return_annotation).strip("'")
    return f"({', '.join(shown)})", re.sub(r"[\w.]+\.(?=\w)", "", result)


def _default(default: object) -> str:
    if isinstance(default, Enum):
        return f'"{default.value}"'
    return f'"{default}"' if isinstance(default, str) else str(default)


def _value(kind: type) -> str:
    """Return a value on one line: its first sentence, and its fields or members."""
    if issubclass(kind, Enum):
        names = [each.value if isinstance(each.value, str) else each.name for each in kind]
    else:
        names = (
            [each.name for each in fields(kind)] if is_dataclass(kind) else [*getattr(kind, "_fields", ())]
        )
        names += public_members(kind)
    listed = ", ".join(f"`{each}`" for each in names)
    text = escaped((inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " "))
    return f"- **{kind.__name__}**: {text} {listed}"


def escaped(text: str) -> str:
    """Return text that Markdown shows as it stands; code stays code."""
    return _MARKUP.sub(lambda each: each[1] or f"\\{each[2]}", text)


def prose(documented: Any) -> str:
    """Return a docstring as Markdown: sections as lists."""
    text = inspect.getdoc(documented) or ""
    head, *sections = _SECTION.split(text)
    parts = [escaped(head.strip())] if head.strip() else []
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        said, _, after = body.partition("\n\n")
        items = re.split(r"\n +(?=\*{0,2}\w+: )", f"\n{said}") if title in ("Args", "Attributes") else []
        if items[1:]:
            parts.append("\n".join(_items(items[1:])))
        else:
            parts.append(f"{title}: {escaped(' '.join(said.split()))}")
        if after.strip():
            parts.append(escaped(inspect.cleandoc(after)))
    return "\n\n".join(parts) + "\n"


def _items(items: Iterable[str]) -> Iterator[str]:
    for item in items:
        name, _, text = item.partition(": ")
        yield f"- `{name.strip()}`: {escaped(' '.join(text.split()))}"


def main() -> int:
    """Write the page, or check it; return the exit code."""
    text = page()
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
