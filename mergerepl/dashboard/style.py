"""The style and the script of the dashboard."""

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #f6f7f9; --card: #ffffff; --ink: #17202e; --faint: #5b6675; --line: #e0e4ea; --soft: #eef1f5;
  --ok: #126a3c; --ok-soft: #def3e6; --warning: #8a5000; --warning-soft: #fdeecb; --critical: #b3261e;
  --critical-soft: #fbe1de; --unknown: #59636f; --unknown-soft: #e6e9ee; --accent: #2f5fd0; --bar: #7c9df0;
  --shadow: 0 1px 2px rgb(20 30 50 / .06), 0 4px 16px rgb(20 30 50 / .05);
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #10151d; --card: #18202b; --ink: #e6ebf2; --faint: #9aa7b8; --line: #2b3645; --soft: #212b39;
    --ok: #5fd195; --ok-soft: #17382a; --warning: #f0b95a; --warning-soft: #3d2f12; --critical: #ff8f86;
    --critical-soft: #47201f; --unknown: #a9b4c2; --unknown-soft: #2b3542; --accent: #8db0ff; --bar: #5d82dd;
    --shadow: 0 1px 2px rgb(0 0 0 / .4);
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: 1rem; background: var(--card); padding: .5rem 1rem; z-index: 2; }
header, main, footer { max-width: 78rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .35rem; letter-spacing: -.01em; overflow-wrap: anywhere; }
h1 .badge { font-size: .85rem; letter-spacing: 0; vertical-align: middle; margin-left: .5rem; }
h2, h3 { overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 0 0 .25rem; }
h3 { font-size: .95rem; margin: 1.25rem 0 .25rem; }
p { margin: .25rem 0; }
.faint, .note, header p, footer { color: var(--faint); }
nav { display: flex; flex-wrap: wrap; gap: .25rem .35rem; margin: 1rem 0 0; }
nav a { color: var(--faint); text-decoration: none; padding: .15rem .6rem; border-radius: 1rem; font-size: .9rem; }
nav a:hover { background: var(--soft); color: var(--ink); }
a { color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: .25rem; }
.stale-note { display: none; margin: 1rem 0 0; padding: .6rem 1rem; border-radius: .6rem; background: var(--warning-soft);
  color: var(--warning); font-weight: 600; }
.stale .stale-note { display: block; }
.stale main { filter: grayscale(1); opacity: .55; }
.tiles { list-style: none; display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem;
  padding: 0; margin: 1.25rem 0; }
.tiles li { background: var(--card); border-radius: .8rem; padding: .8rem 1rem; box-shadow: var(--shadow);
  border-top: 3px solid var(--line); }
.tiles li.warning { border-top-color: var(--warning); }
.tiles li.critical { border-top-color: var(--critical); }
.tiles li.unknown { border-top-color: var(--unknown); }
.tiles b { display: block; font-size: 1.45rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tiles b, .tiles span { overflow-wrap: anywhere; }
.tiles span { color: var(--faint); font-size: .85rem; }
section { background: var(--card); border-radius: .8rem; box-shadow: var(--shadow); padding: 1.1rem 1.25rem 1.25rem;
  margin: 0 0 1rem; }
.note { font-size: .88rem; margin: 0 0 .6rem; }
.badge { display: inline-flex; align-items: center; gap: .35rem; padding: .05rem .6rem; border-radius: 1rem;
  font-size: .82rem; font-weight: 600; white-space: nowrap; background: var(--ok-soft); color: var(--ok); }
.badge::before { content: ""; width: .5rem; height: .5rem; border-radius: 50%; background: currentColor; flex: none; }
.badge.warning { background: var(--warning-soft); color: var(--warning); }
.badge.critical { background: var(--critical-soft); color: var(--critical); }
.badge.unknown { background: var(--unknown-soft); color: var(--unknown); }
.badge.unknown::before { background: none; border: 2px solid currentColor; }
.well { font-weight: 600; color: var(--ok); }
.problems { list-style: none; margin: 0; padding: 0; }
.problems li { border-left: 4px solid var(--warning); padding: .35rem 0 .35rem .9rem; margin: .75rem 0 0; }
.problems li.critical { border-color: var(--critical); }
.problems li.unknown { border-color: var(--unknown); }
.problems p { overflow-wrap: anywhere; }
.command { display: flex; flex-wrap: wrap; align-items: center; gap: .5rem; margin-top: .35rem; }
code { font: .85rem/1.5 ui-monospace, "SF Mono", Consolas, monospace; background: var(--soft); padding: .15rem .5rem;
  border-radius: .35rem; overflow-wrap: anywhere; }
button { font: inherit; font-size: .8rem; color: var(--accent); background: none; border: 1px solid var(--line);
  border-radius: .4rem; padding: .1rem .6rem; cursor: pointer; }
button:hover { background: var(--soft); }
.scroll { overflow-x: auto; }
.graphs { padding: .25rem 0; }
svg.graph { display: block; max-width: 100%; height: auto; margin: 0 auto; }
.graph rect { fill: var(--card); stroke: var(--line); stroke-width: 1.5; }
.graph .warning rect { fill: var(--warning-soft); stroke: var(--warning); }
.graph .critical rect { fill: var(--critical-soft); stroke: var(--critical); }
.graph .unknown rect { fill: var(--unknown-soft); stroke: var(--unknown); stroke-dasharray: 5 4; }
.graph .dot { fill: var(--ok); }
.graph .warning .dot { fill: var(--warning); }
.graph .critical .dot { fill: var(--critical); }
.graph .unknown .dot { fill: var(--card); stroke: var(--unknown); stroke-width: 2; }
.graph .name { fill: var(--ink); font-size: 13.5px; font-weight: 600; }
.graph .note { fill: var(--faint); font-size: 11.5px; }
.edge path { fill: none; stroke: var(--ok); stroke-width: 1.75; opacity: .75; }
.edge circle { fill: var(--ok); }
.edge.warning path { stroke: var(--warning); }
.edge.warning circle { fill: var(--warning); }
.edge.critical path { stroke: var(--critical); stroke-width: 2.25; }
.edge.critical circle { fill: var(--critical); }
.edge.unknown path { stroke: var(--unknown); stroke-dasharray: 5 5; }
.edge.unknown circle { fill: var(--unknown); }
.legend { display: flex; flex-wrap: wrap; gap: .4rem .6rem; align-items: center; font-size: .85rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; margin-top: .35rem; }
caption.hidden { position: absolute; left: -99rem; }
time { white-space: nowrap; }
td:first-child { min-width: 7rem; }
caption { text-align: left; color: var(--faint); font-size: .82rem; padding: .5rem 0 .15rem; }
th { text-align: left; font-size: .78rem; font-weight: 600; color: var(--faint); padding: .35rem .75rem .35rem 0;
  border-bottom: 1px solid var(--line); white-space: nowrap; }
td { padding: .45rem .75rem .45rem 0; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; }
.n { text-align: right; white-space: nowrap; }
td strong { font-weight: 600; }
.problems strong { overflow-wrap: anywhere; }
td > div { min-width: 0; }
td small, td .faint { font-size: .8rem; color: var(--faint); }
.chart { display: block; max-width: 100%; height: 30px; }
.chart .bars { fill: var(--bar); }
.chart.conflicts .bars { fill: var(--warning); }
.chart .base { stroke: var(--line); }
.chart .failed { fill: var(--critical); }
.share { display: inline-flex; align-items: center; gap: .45rem; white-space: nowrap; font-size: .85rem; }
.level .whole { fill: var(--soft); stroke: var(--line); }
.level .part { fill: var(--bar); }
.level.warning .part { fill: var(--warning); }
footer { padding-bottom: 2.5rem; font-size: .85rem; }
@media (max-width: 44rem) {
  header { padding-top: 1.25rem; }
  .tiles { grid-template-columns: 1fr 1fr; gap: .5rem; }
  section { padding: .9rem; border-radius: .6rem; }
  svg.graph { max-width: none; }
  thead { position: absolute; left: -99rem; }
  tbody tr { display: block; border-bottom: 1px solid var(--line); padding: .5rem 0; }
  tbody tr:last-child { border-bottom: 0; }
  td, td.n { display: flex; justify-content: space-between; gap: 1rem; text-align: right; border: 0; padding: .15rem 0; }
  td::before { content: attr(data-label); color: var(--faint); font-size: .8rem; text-align: left; flex: none; }
  td:first-child { display: block; text-align: left; font-size: 1.02rem; }
  td:first-child::before { content: none; }
  td svg.chart { width: 9rem; height: 22px; }
}
@media print {
  :root { --ground: #fff; --shadow: none; }
  html { font-size: 11px; }
  body { font-size: 1rem; background: #fff; }
  header time::after { content: " (" attr(title) ")"; }
  .scroll { overflow: visible; }
  nav, .copy, .skip { display: none; }
  section { border: 1px solid #ccc; break-inside: avoid-page; }
  tr, li { break-inside: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
"""

SCRIPT = """
"use strict";
const facts = JSON.parse(document.getElementById("facts").textContent);
const made = new Date(facts.made);
const units = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]];
function ago(then) {
  const seconds = Math.round((Date.now() - then) / 1000);
  if (seconds < 0) return "just now";
  const [length, name] = units.find(each => seconds >= 2 * each[0]) || [1, "second"];
  const count = Math.floor(seconds / length);
  return count < 2 ? "just now" : count + " " + name + "s ago";
}
function refresh() {
  for (const each of document.querySelectorAll("time")) {
    each.title = each.title || each.textContent;
    each.textContent = ago(new Date(each.dateTime));
  }
  const age = (Date.now() - made) / 1000;
  document.body.classList.toggle("stale", facts.interval !== null && age > 3 * facts.interval);
}
for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const text = button.dataset.copy;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(button.previousElementSibling);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
for (const each of document.querySelectorAll(".graphs")) {
  each.scrollLeft = (each.scrollWidth - each.clientWidth) / 2;
}
refresh();
setInterval(refresh, 30000);
"""
