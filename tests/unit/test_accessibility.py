"""Both pages pass axe, the usual checker of accessibility, in light and dark, on a telephone, a tablet and a screen."""

import json
import shutil
import subprocess
import tarfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mergerepl.conflicts.html_page import conflict_page
from mergerepl.dashboard.page import dashboard_page
from tests.browser import CHROMIUM, Browser
from tests.pictures import NAMES, RECORDS, picture

AXE = "axe-core@4.10.3"
UNSURE = {"color-contrast"}
"""axe leaves texts in a drawing to people: it does not see their ground. They are dark on light, or light on dark."""


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The checker's script, as npm has it."""
    npm = shutil.which("npm")
    if CHROMIUM is None or npm is None:
        pytest.skip("Chromium or npm is missing")
    folder = tmp_path_factory.mktemp("axe")
    fetched = subprocess.run(
        [npm, "pack", "--silent", AXE], cwd=folder, capture_output=True, text=True, timeout=120
    )
    if fetched.returncode:
        pytest.skip(f"npm cannot fetch {AXE}: {fetched.stderr[-200:]}")
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        file = archive.extractfile("package/axe.min.js")
        assert file is not None
        return file.read().decode()


def pages() -> dict[str, str]:
    return {
        "dashboard": dashboard_page(picture(datetime.now(UTC)), title="sales", names=NAMES).html,
        "conflicts": conflict_page("hq", RECORDS, total=11),
    }


def findings(browser: Browser) -> tuple[list[str], set[str]]:
    """Return what axe finds, and the rules that it leaves to people."""
    browser.run(
        "window.found = ''; axe.run().then(r => found = JSON.stringify(r), e => found = `\"${e}\"`), 0"
    )
    until = time.monotonic() + 60
    while not (text := browser.run("found")):
        assert time.monotonic() < until, "axe does not end"
        time.sleep(0.05)
    found: dict[str, Any] = json.loads(text)
    assert len(found["passes"]) > 15
    broken = [f"{each['id']}: {node['html'][:120]}" for each in found["violations"] for node in each["nodes"]]
    return broken, {each["id"] for each in found["incomplete"]}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["dashboard", "conflicts"])
def test_a_page_is_accessible(axe: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(pages()[name], encoding="utf-8")
    browser = Browser(tmp_path / "page.html", tmp_path / "profile")
    try:
        browser.run(axe)
        for is_dark in (False, True):
            for width in (390, 768, 1280):
                browser.emulate(is_dark=is_dark, width=width)
                broken, unsure = findings(browser)
                assert (broken, unsure - UNSURE) == ([], set()), (is_dark, width)
        # It finds what is wrong.
        browser.run("document.querySelector('main').append(document.createElement('img')), 0")
        assert "image-alt" in str(findings(browser)[0])
    finally:
        browser.close()
