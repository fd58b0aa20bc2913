"""Conflicts are decided again where both replicas are in buckets: by Spark."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mergerepl.cli.main import main
from mergerepl.store.location import Location
from tests.store.killed import Site
from tests.store.order_tables import edit, rows_of, write_orders
from tests.store.proxy import Proxy

pytestmark = pytest.mark.slow


def run(folder: Path, *commands: str) -> list[Any]:
    """Run commands one after another, which may start an engine; return what each reports, or its exit code."""
    os.chdir(folder)
    done = [CliRunner().invoke(main, [*each.split(), "--json"]) for each in commands]
    return [
        json.loads(each.stdout) if each.exit_code == 0 else (each.exit_code, each.stdout) for each in done
    ]


@pytest.fixture
def site(tmp_path: Path, bucket: str, proxy: Proxy) -> Site:
    """A table in a bucket. All else is done in processes of their own: the server is in this one."""
    made = Site(tmp_path, Location.of(f"s3://{bucket}/hq"), Location.of(f"s3://{bucket}/north"), proxy)
    made.call(write_orders, made.hq)
    return made


def state(site: Site, article: str, subscriptions: str) -> None:
    (site.folder / "mergerepl.yml").write_text(
        f"publication: sales\npublisher: {site.hq}\narticles:\n  - {{name: orders, key: [id]{article}}}\n"
        f"subscriptions:\n{subscriptions}"
    )


def test_conflicts_are_decided_again(site: Site) -> None:
    state(site, "", f"  - {{subscriber: {site.north}, name: north}}\n")
    site.run("apply")
    site.call(edit, site.hq, ("item='hq'", "id < 3"), ("delete", "id = 3"))
    site.call(edit, site.north, ("item='north'", "id < 4"))
    site.run("sync")
    (listed,) = site.call(run, site.folder, "conflicts list")
    found = {each["key"]["id"]: each["conflict_id"] for each in listed["conflicts"]}
    assert sorted(found) == ["0", "1", "2", "3"]
    done = site.call(
        run,
        site.folder,
        f"conflicts resolve {found['0']} {found['3']} --loser",
        f"conflicts resolve {found['1']} --set item=both",
        f"conflicts resolve {found['2']} --winner",
        "sync",
        "conflicts list --status open",
    )
    assert all(isinstance(each, dict) for each in done), done
    assert not done[-1]["conflicts"]
    ends = [site.call(rows_of, root) for root in (site.hq, site.north)]
    assert ends[0] == ends[1]
    items = {row[0]: row[1] for row in ends[0]}
    assert [items.get(number) for number in range(4)] == ["north", "both", "hq", "north"]
