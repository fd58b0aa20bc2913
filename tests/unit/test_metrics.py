"""Metrics: what is unknown is absent, totals outlive history and process, and the examples name metrics that exist."""

import json
import re
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from mergerepl.agents.agent import address
from mergerepl.cli.main import main
from mergerepl.dashboard.metrics import (
    COUNTERS,
    DURATION,
    GAUGES,
    Metrics,
    labels_of,
    read_metrics,
    serve,
    write_metrics,
)
from mergerepl.errors import ConfigurationError
from mergerepl.model.listing import Listing
from mergerepl.model.snapshot import Snapshot
from tests.networks import FILE, Network
from tests.pictures import CITIES, NAMES, picture

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
KNOWN = {*GAUGES, *(f"{name}_total" for name in COUNTERS), f"{DURATION}_bucket", f"{DURATION}_count"}


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Name and label values -> value."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.text())
        for sample in family.samples
    }


def later(found: Snapshot, minutes: int, failed: int) -> Snapshot:
    """The same place some minutes later: three more sessions with bergen, of which some failed."""
    time = found.time + timedelta(minutes=minutes)
    first = next(run for run in found.runs if run.subscriber.endswith(CITIES[0]) and run.changes > 50)
    more = [
        replace(first, time=time - timedelta(seconds=60 + n), status="failed" if n < failed else "succeeded")
        for n in range(3)
    ]
    return replace(found, time=time, runs=Listing([*more, *found.runs]))


def test_totals_count_what_ended_since_the_last_reading_and_go_on_in_a_file(tmp_path: Path) -> None:
    first = picture(NOW)
    metrics = Metrics()
    metrics.take(first, NAMES)
    assert metrics.durations == {}, "what was before the first reading does not count"
    second = later(first, 10, failed=2)
    for _ in range(2):
        # A run counts once.
        metrics.take(second, NAMES)
    of = ("bergen", "sales")
    found = samples(metrics)
    assert found["mergerepl_failures_total", "unknown", *reversed(of)] == 2
    assert found[f"{DURATION}_count", "sales", "bergen"] == 3
    file = tmp_path / "m.prom"
    write_metrics(metrics, file)
    # Another process; the history was purged, a conflict was logged and others were dropped.
    again = read_metrics(file)
    (one,) = second.conflicts
    counts = (replace(one.counts[0], conflicts=332), replace(one.counts[1], conflict_type=5, conflicts=1))
    third = replace(later(second, 10, failed=0), runs=Listing(later(second, 10, failed=0).runs[:3]))
    again.take(replace(third, conflicts=Listing([replace(one, counts=Listing(counts))])), NAMES)
    after = samples(again)
    assert after[f"{DURATION}_count", "sales", "bergen"] == 6
    assert after["mergerepl_failures_total", "unknown", *reversed(of)] == 2
    # 412 were logged of type 2, now 332: a purge. One of type 5 is new.
    assert after["mergerepl_conflicts_total", "hq", "2"] == 0
    assert after["mergerepl_conflicts_total", "hq", "5"] == 1
    totals = [name for name in found if name[0].endswith(("_total", "_count", "_bucket"))]
    assert all(after[name] >= found[name] for name in totals)


def test_what_is_unknown_is_absent_and_every_subscription_has_its_series() -> None:
    metrics = Metrics()
    metrics.take(picture(NOW), NAMES, is_engine_up=False)
    found = samples(metrics)
    assert found["mergerepl_reachable", "sales", "oslo"] == 0
    assert ("mergerepl_pending_changes", "upload", "sales", "oslo") not in found
    assert found["mergerepl_pending_changes", "download", "sales", "cadiz"] == 1874
    assert found["mergerepl_retention_used_ratio", "sales", "cadiz"] == 0.83
    assert found["mergerepl_diverged", "sales", "york"] == 1
    assert found["mergerepl_engine_up",] == 0
    for name in ("mergerepl_last_success_timestamp_seconds", "mergerepl_reachable"):
        assert sum(each[0] == name for each in found) == 9
    assert "/" not in re.sub(r"^#.*$", "", metrics.text(), flags=re.MULTILINE)


def test_of_two_subscribers_of_one_name_the_later_one_has_another_label() -> None:
    found = picture(NOW)
    merge = found.statuses[0]
    twin = replace(merge.details.subscriptions[0], subscriber="/elsewhere/bergen")
    details = replace(merge.details, subscriptions=(*merge.details.subscriptions, twin))
    both = replace(found, statuses=Listing([replace(merge, details=details), *found.statuses[1:]]))
    labels = labels_of(both, NAMES)
    assert labels["sales", "/lake/bergen"] == ("sales", "bergen")
    assert re.fullmatch("bergen-[0-9a-f]{6}", labels["sales", "/elsewhere/bergen"][1])


def test_metrics_are_served_and_written(tmp_path: Path) -> None:
    metrics = Metrics()
    metrics.take(picture(NOW), NAMES)
    server = serve(metrics, "127.0.0.1", 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
            assert b"mergerepl_problems{" in answer.read()
    finally:
        server.shutdown()
        server.server_close()
    network = Network(tmp_path)
    network.add_rows("hq", 9)
    file = tmp_path / "m.prom"
    arguments = ["status", "-f", str(tmp_path / FILE), "--metrics-file", str(file)]
    for _ in range(2):
        assert CliRunner().invoke(main, arguments).exit_code == 0
    assert 'mergerepl_pending_commits{article="orders",publication="sales"} 1.0' in file.read_text()
    # A sync writes the file when its sessions have ended; a dry run and an unreadable file are refused first.
    file.unlink()
    sync = ["sync", "-f", str(tmp_path / FILE), "--no-agent", "--metrics-file", str(file)]
    assert "writes no --metrics-file" in CliRunner().invoke(main, [*sync, "--dry-run"]).output
    assert not file.exists()
    done = CliRunner().invoke(main, sync)
    assert done.exit_code == 0, done.output
    assert "mergerepl_last_success_timestamp_seconds{" in file.read_text()
    file.write_text("{nonsense")
    assert "cannot be continued" in CliRunner().invoke(main, sync).output
    assert "cannot be continued" in CliRunner().invoke(main, arguments).output


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("9464", ("127.0.0.1", 9464)),
        ("[::1]:1", ("::1", 1)),
    ],
)
def test_without_a_host_only_this_machine_reads(text: str, meant: tuple[str, int]) -> None:
    assert address(text) == meant


@pytest.mark.parametrize("text", ["", "host", "host:", "host:0", "host:70000"])
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is no address"):
        address(text)


def test_the_examples_name_metrics_that_exist_and_the_page_names_all() -> None:
    rules = yaml.safe_load((ROOT / "examples/monitoring/rules.yml").read_text())
    asked = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    board = json.loads((ROOT / "examples/monitoring/grafana.json").read_text())
    asked += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    named = {name for expr in asked for name in re.findall(r"\bmergerepl_\w+", expr)}
    assert len(asked) > 15
    assert named <= KNOWN
    page = (ROOT / "docs/monitoring.md").read_text()
    described = set(re.findall(r"`(mergerepl_\w+)`", page))
    assert described == {*GAUGES, *(f"{name}_total" for name in COUNTERS), DURATION}
