"""The dashboard: one self-contained HTML page about the publications and databases of a place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

from mergerepl.dashboard import sections, tables
from mergerepl.dashboard.html import View, badge, when
from mergerepl.dashboard.states import state_of_problems
from mergerepl.dashboard.style import SCRIPT, STYLE
from mergerepl.errors import ConfigurationError
from mergerepl.model.html_document import html_document
from mergerepl.model.snapshot import Snapshot
from mergerepl.store.location import Location
from mergerepl.store.storage import storage

_SECTIONS = (
    ("problems", "Problems", sections.problems),
    ("topology", "Topology", sections.topology),
    ("subscriptions", "Subscriptions", sections.subscriptions),
    ("sessions", "Sessions", sections.sessions),
    ("conflicts", "Conflicts", tables.conflicts),
    ("metadata", "Metadata", tables.metadata),
    ("tables", "Tables", tables.tables),
)


@dataclass(frozen=True)
class Page:
    """A page, and the reports that it links to: file name to HTML. A notebook shows the title alone."""

    title: str
    html: str
    reports: Mapping[str, str] = field(default_factory=dict)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file and its reports beside it; a reader finds the whole old page or the whole new one.

        Raises: ConfigurationError if a file cannot be written.
        """
        at = Location.of(os.path.abspath(os.fspath(path)))
        try:
            for name, text in self.reports.items():
                storage(at.parent).put(at.parent / name, text.encode())
            storage(at.parent).put(at, self.html.encode())
        except OSError as error:
            raise ConfigurationError(
                f"The page cannot be written to '{path}': {error.strerror}. Name another file.",
                path=str(path),
            ) from error

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.title)}: {len(self.html):,} characters</p>"


def dashboard_page(
    found: Snapshot,
    *,
    title: str,
    names: Mapping[str, str],
    reports: Mapping[str, tuple[str, str]] | None = None,
    interval_s: float | None = None,
) -> Page:
    """Return the page of a snapshot.

    Args:
        found: What it shows.
        title: The name of the place.
        names: Folder to the name by which commands call it.
        reports: Folder to the file name and the HTML of its conflict report, which the page then links to.
        interval_s: Seconds until it is written again: after three of them it turns grey. None: it does not.
    """
    given = reports or {}
    view = View(found, names, {root: name for root, (name, _) in given.items()})
    parts = {id_: make(view) for id_, _, make in _SECTIONS}
    links = "".join(f'<a href="#{id_}">{escape(words)}</a>' for id_, words, _ in _SECTIONS if parts[id_])
    made = when(found.time)
    state = state_of_problems(found.problems)
    body = f"""<a class="skip" href="#main">Skip to the problems</a>
<header>
<h1>{escape(title)} {badge(state)}</h1>
<p>Made {made}{"" if interval_s is None else f", every {interval_s:g} seconds"} by <code>mergerepl dashboard</code>.</p>
<p class="stale-note" role="status">This page is old: nothing has written it for three intervals. Look at the agent with \
<code>mergerepl agent status</code>.</p>
<nav aria-label="Sections">{links}</nav>
</header>
<main id="main">
{sections.tiles(view)}
{"".join(parts.values())}
</main>
<footer><p>Values of rows are not on this page. Times are in UTC where no age is shown.</p></footer>"""
    facts = {"made": found.time.isoformat(timespec="seconds"), "interval": interval_s}
    html = html_document(title, style=STYLE, script=SCRIPT, body=body, data=("facts", facts))
    return Page(title, html, dict(given.values()))
