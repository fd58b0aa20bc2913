"""YAML as a configuration language: safe, bounded, without duplicate keys, and every value knows its line."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from mergerepl.errors import ConfigurationError

KeyPath = tuple[str | int, ...]

MOST_NODES = 100_000
_TEXT = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True)
class Document:
    """A parsed file: plain Python values, and the line of each key path."""

    value: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def line(self, path: KeyPath) -> int | None:
        """Return the line of a key path, or of its nearest parent."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None


class _UntaggedLoader(yaml.SafeLoader):
    """Resolves values by their form alone: a tag of the file's own (`!!int ""`) would bypass the checks."""

    def __init__(self, text: str, *, name: str) -> None:
        """Load a text; `name` is the file's name in messages."""
        super().__init__(text)
        self.file_name = name

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next node.

        Raises: ConfigurationError if it has a tag.
        """
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if tag := getattr(event, "tag", None):
            shown = tag.replace("tag:yaml.org,2002:", "!!")[:80]
            raise ConfigurationError(
                f"{self.file_name}, line {event.start_mark.line + 1}: the tag {shown!r} is not allowed: only plain "
                "text, numbers, lists and mappings are.",
                file=self.file_name,
            )
        return super().compose_node(parent, index)


def parse(text: str, *, name: str) -> list[Document]:
    """Return the documents of a YAML text; `name` is the file's name in messages.

    Raises: ConfigurationError: A syntax error, a tag, a key twice, endless aliases.
    """
    documents = []
    values = 0
    try:
        loader = _UntaggedLoader(text, name=name)
        while loader.check_node():
            node = loader.get_node()
            assert node is not None
            lines = {}
            for path, part in _walk(node, name=name, most=MOST_NODES - values):
                lines[path] = part.start_mark.line + 1
            values += len(lines)
            documents.append(Document(loader.construct_document(node), lines))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigurationError(f"{name}{place}: not valid YAML: {_problem(error)}.", file=name) from error
    except RecursionError as error:
        raise ConfigurationError(f"{name}: nested too deeply to be a configuration.", file=name) from error
    except (ValueError, OverflowError) as error:
        # From the constructors of numbers and dates: 2026-13-45, an integer of 5,000 digits.
        raise ConfigurationError(
            f"{name}: holds a value that is no number or date: {error}.", file=name
        ) from error
    return documents


def _walk(root: yaml.Node, *, name: str, most: int) -> Iterator[tuple[KeyPath, yaml.Node]]:
    """Yield every node with its key path, aliases followed; refuse invalid nodes, and more than `most`."""
    waiting: list[tuple[KeyPath, yaml.Node, frozenset[int]]] = [((), root, frozenset())]
    seen = 0
    while waiting:
        path, node, parents = waiting.pop()
        seen += 1
        if seen > most or id(node) in parents:
            raise ConfigurationError(
                f"{name}, line {node.start_mark.line + 1}: aliases (`*name`) make this file endless or "
                f"larger than {MOST_NODES:,} values: write the values out.",
                file=name,
            )
        yield path, node
        waiting += [
            (child_path, child, parents | {id(node)}) for child_path, child in _children(path, node, name)
        ]


def _children(path: KeyPath, node: yaml.Node, name: str) -> list[tuple[KeyPath, yaml.Node]]:
    """Return the parts of a list or mapping; a mapping's keys are text, each once."""
    if isinstance(node, yaml.SequenceNode):
        return [((*path, index), child) for index, child in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return []
    first_lines: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigurationError(f"{name}, line {line}: a key must be plain text.", file=name)
        if key.value in first_lines:
            raise ConfigurationError(
                f"{name}, line {line}: the key {key.value[:80]!r} stands twice (first on line "
                f"{first_lines[key.value]}): remove one.",
                file=name,
            )
        first_lines[key.value] = line
        if key.tag != _MERGE:
            # YAML 1.1 resolves `on`, `yes` and `1` to other types; as keys they are text here.
            key.tag = _TEXT
    # A merged mapping (`<<: *base`) is walked for its size; its keys have no path of their own.
    return [((*path, key.value), child) for key, child in node.value]


def _problem(error: yaml.YAMLError) -> str:
    """Return the parser's description, without the file's text, which may hold a secret."""
    if isinstance(error, yaml.reader.ReaderError):
        found = error.character
        return f"the character {chr(found)!r} is not allowed" if isinstance(found, int) else error.reason
    parts = (getattr(error, "context", None), getattr(error, "problem", None))
    return ", ".join(part for part in parts if part) or "it cannot be parsed"
