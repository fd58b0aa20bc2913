"""The page of `conflicts report` in a browser: filters work, and what a row holds is text."""

from collections.abc import Iterator

import pytest

from mergerepl.conflicts.html_page import conflict_page
from tests.browser import CHROMIUM, HOSTILE, Browser
from tests.pictures import RECORDS


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed, in which the page is opened")
    folder = tmp_path_factory.mktemp("browser")
    page = folder / "lost.html"
    page.write_text(conflict_page("<b>hq</b>", RECORDS, total=11), encoding="utf-8")
    opened = Browser(page, folder / "profile")
    yield opened
    opened.close()


@pytest.mark.timeout(120)
def test_the_filters_of_the_page_work_and_values_are_text(browser: Browser) -> None:
    assert browser.run("document.getElementById('count').textContent") == "9 of 9 shown"
    assert "newest 9 of 11" in browser.run("document.body.textContent")
    # What rows, keys and names hold is text: no element came of it, and nothing of it ran.
    assert browser.run("document.title") == "Conflicts"
    assert browser.run("document.querySelectorAll('script, img, svg, b').length") == 2
    shown = browser.choose("text", "")
    assert len(shown) == 9
    assert all(any(text in heading for text in HOSTILE) for heading in shown)
    cells = browser.run("[...document.querySelectorAll('td')].map(each => each.textContent)")
    assert {"NULL", "(deleted)", "1", *HOSTILE} <= set(cells)
    # How conflicts were settled, and what the colours mean.
    said = browser.run("document.getElementById('list').textContent")
    assert f"settled: what lost was written, by ann@hq, 2026-11-25 12:00:00Z: {HOSTILE[0]}" in said
    assert "settled: the refused change waits no more" in said
    legend = browser.run("[...document.querySelectorAll('.legend span')].map(each => each.className)")
    assert legend == ["conflict", "differs", "made"]
    # Filters.
    assert len(browser.choose("article", "orders")) == 8
    assert len(browser.choose("article", HOSTILE[0])) == 1
    assert browser.run("document.querySelector('tr.conflict th').textContent") == HOSTILE[1]
    browser.choose("article", "")
    assert len(browser.choose("type", "9")) == 1
    assert browser.run("[...document.querySelectorAll('thead th')].map(each => each.textContent)") == [
        "column",
        "refused row",
    ]
    browser.choose("type", "")
    assert len(browser.choose("column", "n")) == 7
    browser.choose("column", "")
    assert len(browser.choose("since", "2026-11-22")) == 4
    assert len(browser.choose("until", "2026-11-24")) == 3
    assert len(browser.choose("text", "SVG ONLOAD")) == 1
    assert browser.run("document.getElementById('count').textContent") == "1 of 9 shown"
    assert browser.choose("text", "nowhere") == []
    # A link from the dashboard chooses.
    browser.run("location.hash = '#article=orders&column=n&text=<b>'")
    browser.run("location.reload()")
    while browser.run("document.readyState") != "complete" or browser.run(
        "!document.getElementById('count')"
    ):
        pass
    assert browser.run("document.getElementById('count').textContent") == "6 of 9 shown"
