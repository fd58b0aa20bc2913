"""Build the documentation site from docs/ into build/site, and check every link within it. Called by scripts/site."""

import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
SITE = BUILD / "site"


class Page(HTMLParser):
    """The places of a page, and the links in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what other pages can lead to, and where this one leads."""
        named = dict(attrs)
        if anchor := named.get("id"):
            self.anchors.add(anchor)
        target = named.get("href" if tag == "a" else "src") or ""
        if target and ":" not in target and not target.startswith("//"):
            self.links.append(target)


def write_sources() -> None:
    """Copy docs/, with a list of the decisions."""
    shutil.rmtree(BUILD / "docs", ignore_errors=True)
    shutil.copytree(ROOT / "docs", BUILD / "docs")
    shutil.copy(ROOT / "zensical.toml", BUILD)
    decisions = BUILD / "docs" / "decisions"
    with (decisions / "index.md").open("a", encoding="utf-8") as index:
        for page in sorted(decisions.glob("[0-9]*.md")):
            title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            index.write(f"\n- [{title}]({page.name})")


def dead_links() -> list[str]:
    """Return the links of the built pages that lead nowhere."""
    pages = {path: Page(path) for path in SITE.rglob("*.html")}
    found = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for link in page.links:
            target, anchor = urldefrag(unquote(link))
            there = (path.parent / target).resolve() if target else path
            there = there / "index.html" if there.is_dir() else there
            is_known = not anchor or there not in pages or anchor in pages[there].anchors
            if not there.exists() or not is_known:
                found.append(f"{path.relative_to(SITE)} leads to {link}")
    return found


def main() -> int:
    """Build and check; return the exit code."""
    write_sources()
    program = shutil.which("zensical", path=str(Path(sys.executable).parent)) or "zensical"
    built = subprocess.run([program, "build", "--clean", "--strict", "-f", str(BUILD / "zensical.toml")])
    if built.returncode:
        return built.returncode
    for line in (dead := dead_links()):
        sys.stderr.write(f"{line}\n")
    return 1 if dead else 0


if __name__ == "__main__":
    sys.exit(main())
