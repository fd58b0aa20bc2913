"""The elements of the dashboard's sections. All names, texts and numbers of a replica pass `escape`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from mergerepl.dashboard.charts import share_bar
from mergerepl.dashboard.states import OK, State
from mergerepl.model.snapshot import Snapshot
from mergerepl.model.tasks import WARNING
from mergerepl.model.words import moment_text

FAINT = '<span class="faint">–</span>'


@dataclass(frozen=True)
class View:
    """A snapshot with the names by which commands call its folders, and the files of conflict reports by folder."""

    found: Snapshot
    names: Mapping[str, str]
    reports: Mapping[str, str]

    def name(self, root: str) -> str:
        """Return the name of a folder."""
        return self.names.get(root) or root.rstrip("/").rpartition("/")[2] or root


def badge(state: State) -> str:
    """Return a state as a coloured dot and words."""
    return f'<span class="badge {state.level}">{escape(state.words or state.level)}</span>'


def when(moment: datetime | None, *, missing: str = "never") -> str:
    """Return a time; the page shows how long ago it was."""
    if moment is None:
        return f'<span class="faint">{escape(missing)}</span>'
    at = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return f'<time datetime="{at.astimezone(UTC).isoformat(timespec="seconds")}">{moment_text(at)}</time>'


def number(value: int | None) -> str:
    """Return a number; a dash if it is unknown."""
    return FAINT if value is None else f"{value:,}"


def size(value: int | None) -> str:
    """Return bytes in the largest whole unit."""
    if value is None:
        return FAINT
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if value >= 1024**power:
            return f"{value / 1024**power:,.1f} {unit}"
    return f"{value} B"


def table(
    caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]], *, is_only: bool = False
) -> str:
    """Return a table of HTML cells; a heading that begins with `>` is one of numbers. On a telephone each row is a card.

    The caption of the only table of a section is for screen readers: the section's heading says the same.
    """
    hidden = ' class="hidden"' if is_only else ""
    marks = [' class="n"' if heading.startswith(">") else "" for heading in headings]
    named = [heading.lstrip(">") for heading in headings]
    head = "".join(
        f'<th scope="col"{mark}>{escape(name)}</th>' for name, mark in zip(named, marks, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-label="{escape(name)}"{mark}><div>{cell}</div></td>'
            for name, mark, cell in zip(named, marks, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return scrolled(
        f"<table><caption{hidden}>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>",
        caption,
    )


def scrolled(content: str, label: str, *, kind: str = "scroll") -> str:
    """Return a table or a graph in a part of the page that scrolls by itself, with the keys too."""
    return f'<div class="{kind}" role="group" tabindex="0" aria-label="{escape(label)}">{content}</div>'


def section(id_: str, title: str, *parts: str, note: str = "") -> str:
    """Return a section with its heading; empty without parts."""
    shown = [part for part in parts if part]
    if not shown:
        return ""
    said = f'<p class="note">{note}</p>' if note else ""
    heading = f'<h2 id="h-{id_}">{escape(title)}</h2>'
    return f'<section id="{id_}" aria-labelledby="h-{id_}">{heading}{said}{"".join(shown)}</section>'


def sentence(text: str, *, without: str = "") -> str:
    """Return a text on one line, its commands in a font of their own, without a last sentence that names one command."""
    plain = " ".join(text.split())
    plain = re.sub(rf"\s*(?:Run|See) `{re.escape(without)}`\.$", "", plain) if without else plain
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(plain))


def command(text: str) -> str:
    """Return a command to copy."""
    return (
        f'<div class="command"><code>{escape(text)}</code>'
        f'<button type="button" class="copy" data-copy="{escape(text)}">Copy</button></div>'
    )


def lag(part: float | None, label: str) -> str:
    """Return a bar for the part of a retention that something has waited; from half on it stands out."""
    return share_bar(part, level=WARNING if (part or 0) >= _HALF else OK, label=label)


_HALF = 0.5
