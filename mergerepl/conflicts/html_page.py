"""Conflicts as one self-contained HTML page: no network, no other file, no code but its own.

Row values are data in a script element, shown as text only; the page's security policy runs only its own style and
script. So no value, name or key can become markup or code.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from mergerepl.model.conflicts import ConflictRecord
from mergerepl.model.html_document import html_document
from mergerepl.model.words import conflict_name, ends_without_winner, how_settled, stays_at_source, text_of

LONGEST_VALUE = 2000
"""Characters of a value that are shown."""

_STYLE = """
:root { color-scheme: light; }
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
body { background: #fff; color: #1c2430; }
h1 { font-size: 1.5rem; margin-bottom: 0; }
p { color: #556070; margin-top: .25rem; }
form { display: flex; flex-wrap: wrap; gap: .75rem; padding: .75rem; background: #f3f5f8; border-radius: .5rem; }
form label { display: grid; font-size: .8rem; color: #556070; }
input, select { font: inherit; padding: .2rem .4rem; border: 1px solid #c5ccd6; border-radius: .3rem; }
article { border: 1px solid #dde2e9; border-radius: .5rem; margin: 1rem 0; overflow: hidden; }
article h2 { font-size: 1rem; margin: 0; padding: .5rem .75rem; background: #f3f5f8; }
article div { padding: .25rem .75rem; color: #556070; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; }
th, td { text-align: left; padding: .25rem .75rem; border-top: 1px solid #eef1f5; vertical-align: top; }
th, td { overflow-wrap: anywhere; }
td { white-space: pre-wrap; font-family: ui-monospace, monospace; font-size: .85rem; }
.conflict { background: #fde8e6; }
.differs { background: #fff6dd; }
.made { background: #e4f5e8; }
.legend span { padding: .1rem .5rem; margin-right: .5rem; border-radius: .3rem; color: #1c2430; }
.null { color: #556070; font-style: italic; }
"""

_SCRIPT = """
"use strict";
const data = JSON.parse(document.getElementById("conflicts").textContent);
const list = document.getElementById("list");
const chosen = id => document.getElementById(id).value;
function add(parent, name, text, kind) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (kind) node.className = kind;
  parent.append(node);
  return node;
}
function cell(row, parts, column) {
  if (parts === null) return add(row, "td", "(deleted)", "null");
  const value = parts[column];
  return value === null || value === undefined ? add(row, "td", "NULL", "null") : add(row, "td", value);
}
function shown(each) {
  const text = chosen("text").toLowerCase();
  return (!chosen("article") || each.article === chosen("article"))
    && (!chosen("type") || String(each.type) === chosen("type"))
    && (!chosen("column") || each.columns.some(c => c.name === chosen("column") && c.mark))
    && (!chosen("since") || each.time.slice(0, 10) >= chosen("since"))
    && (!chosen("until") || each.time.slice(0, 10) <= chosen("until"))
    && (!text || each.text.toLowerCase().includes(text));
}
function draw() {
  list.replaceChildren();
  const found = data.filter(shown);
  document.getElementById("count").textContent = found.length + " of " + data.length + " shown";
  for (const each of found) {
    const box = add(list, "article");
    add(box, "h2", each.article + " " + each.key);
    add(box, "div", [each.time, each.meaning, each.ends[0] + each.winner, each.ends[1] + each.loser].join(" · "));
    const note = each.note ? " (" + each.note + ")" : "";
    const why = each.refused ? each.reason : "resolver " + each.resolver + note;
    add(box, "div", [why, each.settled || each.status, each.id].join(" · "));
    const table = add(box, "table");
    const head = add(add(table, "thead"), "tr");
    const rows = each.refused ? ["refused row"] : ["losing row", "winning row"];
    for (const name of ["column", ...rows]) add(head, "th", name);
    const body = add(table, "tbody");
    for (const column of each.columns) {
      const row = add(body, "tr", undefined, column.mark);
      add(row, "th", column.name);
      cell(row, each.losing, column.name);
      if (!each.refused) cell(row, each.winning, column.name);
    }
  }
}
function choices(id, values) {
  for (const [value, text] of values) {
    const option = add(document.getElementById(id), "option", text);
    option.value = value;
  }
}
const distinct = pairs => [...new Map(pairs)].sort((a, b) => a[1] < b[1] ? -1 : 1);
choices("article", distinct(data.map(each => [each.article, each.article])));
choices("type", distinct(data.map(each => [String(each.type), each.meaning])));
choices("column", distinct(data.flatMap(each => each.columns.filter(c => c.mark).map(c => [c.name, c.name]))));
// A link may choose: conflicts.html#article=orders&column=amount
for (const [id, value] of new URLSearchParams(location.hash.slice(1))) {
  if (["article", "type", "column"].includes(id)) document.getElementById(id).value = value;
}
document.querySelector("form").addEventListener("input", draw);
document.querySelector("form").addEventListener("submit", event => event.preventDefault());
draw();
"""


def conflict_page(replica: str, conflicts: Sequence[ConflictRecord], *, total: int) -> str:
    """Return the page of conflicts, given newest first with their rows; `total` counts all matching conflicts."""
    cut = f" The newest {len(conflicts):,} of {total:,} are shown." if len(conflicts) < total else ""
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    body = f"""<header><h1>Conflicts</h1>
<p>{escape(replica)}, {written}.{cut} <span id="count"></span></p>
<form>
<label>article<select id="article"><option value="">all</option></select></label>
<label>type<select id="type"><option value="">all</option></select></label>
<label>column<select id="column"><option value="">all</option></select></label>
<label>from<input id="since" type="date"></label>
<label>to<input id="until" type="date"></label>
<label>text<input id="text" type="search"></label>
</form>
<p class="legend">columns: <span class="conflict">in conflict</span><span class="differs">differs, not in \
conflict</span><span class="made">made by the resolver</span></p></header>
<main id="list"></main>"""
    facts = [_facts(each) for each in conflicts]
    return html_document("Conflicts", style=_STYLE, script=_SCRIPT, body=body, data=("conflicts", facts))


def _facts(each: ConflictRecord) -> dict[str, object]:
    losing, winning = _texts(each.losing_row), _texts(each.winning_row)
    without_winner = ends_without_winner(each)
    names = dict.fromkeys([*(winning or {}), *(losing or {})])
    key = ", ".join(f"{name}={text_of(value)}" for name, value in each.key.items())
    return {
        "id": each.conflict_id,
        "article": each.article,
        "key": key,
        "type": each.conflict_type,
        "meaning": conflict_name(each.conflict_type),
        "time": each.created.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "winner": each.winner,
        "loser": each.origin_datasource,
        "resolver": each.resolver or "",
        "note": each.note or "",
        "reason": each.reason_text,
        "refused": without_winner is not None,
        "ends": [f"{end} " for end in without_winner or ("won:", "lost:")],
        "status": each.status,
        "settled": how_settled(each),
        "losing": losing,
        "winning": winning,
        "columns": [{"name": name, "mark": _mark(each, losing, winning, name)} for name in names],
        "text": " ".join([key, *(text or "" for row in (losing, winning) for text in (row or {}).values())]),
    }


def _mark(
    each: ConflictRecord,
    losing: dict[str, str | None] | None,
    winning: dict[str, str | None] | None,
    name: str,
) -> str:
    if name in each.made_columns:
        return "made"
    if stays_at_source(each):
        return ""
    if name in each.conflict_columns:
        return "conflict"
    if losing is None or winning is None:
        return ""
    return "differs" if losing.get(name) != winning.get(name) else ""


def _texts(row: dict[str, object] | None) -> dict[str, str | None] | None:
    if row is None:
        return None
    return {name: _short(text_of(value)) for name, value in row.items()}


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"
