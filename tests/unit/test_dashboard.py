"""The dashboard in a browser: what is named in a replica is text; it can be read in light and dark, on a telephone."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mergerepl.cli.main import main
from mergerepl.dashboard.page import dashboard_page
from mergerepl.dashboard.states import State, state_of
from mergerepl.dashboard.topology import Edge, Node, drawn
from mergerepl.model.listing import Listing
from mergerepl.model.snapshot import Snapshot
from mergerepl.model.tasks import StatusWarning
from tests.browser import CHROMIUM, HOSTILE, Browser
from tests.networks import FILE, Network
from tests.pictures import CITIES, HQ, NAMES, picture

NOW = datetime.now(UTC)

UNREADABLE = """
(() => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const found = [];
  for (const each of document.querySelectorAll("body *")) {
    const own = [...each.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    const box = each.getBoundingClientRect();
    if (!own || each.closest("svg, script") || !box.width || box.right < 0) continue;
    let behind = each, ground = [0, 0, 0, 0];
    while (behind) {
      ground = numbers(getComputedStyle(behind).backgroundColor);
      if (ground.length === 3 || ground[3] === 1) break;
      behind = behind.parentElement;
    }
    const [a, b] = [light(numbers(getComputedStyle(each).color)), light(ground)];
    const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (contrast < 4.5) found.push(each.textContent.slice(0, 30) + " " + contrast.toFixed(2));
  }
  return found;
})()
"""
"""Texts with less contrast than WCAG AA asks for (4.5 to 1)."""


def page(found: Snapshot, **terms: Any) -> str:
    return dashboard_page(found, title="sales", names=NAMES, **terms).html


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed, in which the page is opened")
    folder = tmp_path_factory.mktemp("browser")
    name, now = "".join(HOSTILE), datetime.now(UTC)
    found = dashboard_page(
        picture(NOW, name=name), title=name, names=NAMES, reports={HQ: ("conflicts-1-hq.html", "<p>")}
    )
    (folder / "page.html").write_text(found.html, encoding="utf-8")
    (folder / "well.html").write_text(page(picture(now), interval_s=60), encoding="utf-8")
    (folder / "old.html").write_text(
        page(picture(now - timedelta(minutes=4)), interval_s=60), encoding="utf-8"
    )
    opened = Browser(folder / "page.html", folder / "profile")
    yield opened
    opened.close()


@pytest.mark.timeout(120)
def test_the_page_can_be_read_and_names_are_text(browser: Browser, tmp_path: Path) -> None:
    assert browser.run("document.title").startswith(HOSTILE[0])
    # The data and the script: nothing that is named in a replica became an element or ran.
    assert browser.run("document.querySelectorAll('script').length") == 2
    assert (
        browser.run("document.querySelectorAll('img, iframe, [onload], [onerror], [style], link').length")
        == 0
    )
    assert browser.run("performance.getEntriesByType('resource').length") == 0
    assert browser.run("[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.hash))")
    assert browser.run("document.querySelectorAll('main section').length") == 7
    links = browser.run("[...document.querySelectorAll('#conflicts a')].map(a => a.getAttribute('href'))")
    assert len(links) == 5
    assert all(each.startswith("conflicts-1-hq.html#article=") and "<" not in each for each in links)
    # Every graphic says what it shows; tables have captions and headings.
    assert browser.run(
        "[...document.querySelectorAll('svg[role=img]')].every(s => s.getAttribute('aria-label'))"
    )
    assert browser.run(
        "[...document.querySelectorAll('table')].every(t => t.caption && t.querySelector('th[scope]'))"
    )
    assert browser.run("document.querySelectorAll('svg.graph').length") == 2
    for is_dark in (False, True):
        browser.emulate(is_dark=is_dark)
        assert browser.run(UNREADABLE) == [], is_dark
    # On a telephone nothing is wider than the window.
    browser.emulate(width=390)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    browser.emulate()
    # With a keyboard: the first stop skips to the problems.
    assert browser.run("document.querySelector('a, button').className") == "skip"
    browser.run("document.querySelector('.copy').click()")


@pytest.mark.timeout(120)
def test_a_page_that_nobody_writes_any_more_turns_grey(browser: Browser) -> None:
    for name, is_stale in (("well", False), ("old", True)):
        browser.run(f"location.href = '{name}.html'")
        while not browser.run(
            f"location.pathname.endsWith('{name}.html') && document.readyState === 'complete'"
        ):
            pass
        assert browser.run("document.body.classList.contains('stale')") == is_stale
    assert "4 minutes ago" in browser.run("document.querySelector('header').textContent")


def test_the_worst_comes_first_with_the_command_that_mends_it() -> None:
    shown = page(picture(NOW)).split('id="problems"')[1].split("</section>")[0]
    assert shown.index("critical") < shown.index("warning")
    assert ">1 critical, 2 warnings<" in page(picture(NOW))
    assert f'data-copy="mergerepl sync {CITIES[1]}"' in shown
    alone = replace(picture(NOW), statuses=Listing())
    assert "All is well" in page(alone).split('id="problems"')[1].split("</section>")[0]


def test_replicas_that_publish_to_each_other_are_drawn() -> None:
    nodes = [Node(name, name, "", State("ok", "in step")) for name in "abcs"]
    edges = [Edge(start, end, State("ok", "")) for start, end in ("ab", "ba", "bc", "sc")]
    assert drawn(nodes, edges, label="").count("<rect") == 4


def test_what_is_unknown_is_a_dash() -> None:
    found = picture(NOW)
    unknown = next(each for _, each in found.relations if not each.is_reachable)
    assert state_of(unknown).words == "out of reach"
    row = next(
        part
        for part in page(found).split("<tr>")
        if "Subscr" not in part and ">oslo<" in part and "badge" in part
    )
    assert row.count("–") == 2


def test_a_command_without_a_place_to_start_names_the_doctor() -> None:
    found = picture(NOW)
    bare = (StatusWarning(HQ, "critical", "A table is gone."),)
    shown = page(replace(found, statuses=Listing(replace(each, warnings=bare) for each in found.statuses)))
    assert shown.count('data-copy="mergerepl doctor"') == 1


def test_the_command_writes_the_page_and_with_values_the_reports(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.add_rows("hq", 9)
    out = tmp_path / "out" / "page.html"
    arguments = ["dashboard", "-f", str(tmp_path / FILE), "-o", str(out)]
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, done.output) == (0, f"{out} is written.\n")
    text = out.read_text(encoding="utf-8")
    assert "default-src &#x27;none&#x27;" not in text
    assert "default-src 'none'" in text
    assert all(f">{name}<" in text for name in ("hq", "north", "south", "orders"))
    assert CliRunner().invoke(main, [*arguments, "--with-values"]).exit_code == 0
    assert sorted(each.name for each in out.parent.iterdir()) == ["conflicts-1-hq.html", "page.html"]
