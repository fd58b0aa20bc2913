"""Write docs/dashboard.png: the page of `mergerepl dashboard` about an invented place, in a headless Chromium."""

import tempfile
from datetime import UTC, datetime
from pathlib import Path

from mergerepl.dashboard.page import dashboard_page
from tests.browser import Browser
from tests.pictures import NAMES, picture

PICTURE = Path(__file__).parents[1] / "docs" / "dashboard.png"


def main() -> None:
    """Write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        page = dashboard_page(picture(datetime.now(UTC)), title="sales, feed", names=NAMES, interval_s=60)
        page.write(file)
        browser = Browser(file, Path(folder) / "profile")
        try:
            browser.emulate(width=1240, height=1330)
            # The page is laid out again.
            browser.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            PICTURE.write_bytes(browser.screenshot())
        finally:
            browser.close()


if __name__ == "__main__":
    main()
