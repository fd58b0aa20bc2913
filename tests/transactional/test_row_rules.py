"""Rows that a subscriber's table would refuse stop the agent as missing rows do; `skip` goes past one transaction."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mergerepl import transactional as tr
from mergerepl.cli.main import main
from mergerepl.store import redo
from mergerepl.transactional.refusals import TransactionalUsageError
from tests.cdc.databases import add, delete, merge, update
from tests.transactional.publications import (
    THERE,
    dies,
    named,
    new_table,
    publication_file,
    rows,
    run,
    runs,
    stops,
    warnings,
    works,
)

pytestmark = pytest.mark.spark

ROWS = {1: ("a", 1), 2: ("b", 2), 3: ("c", 3)}


def change(hq: Path, name: str, bad: dict[str, str]) -> None:
    """Change a published table by four transactions; the third one is bad at the subscriber."""
    update(hq / name, "id = 1", qty="10")
    add(hq / name, {4: ("d", 4)})
    update(hq / name, "id = 2", **bad)
    update(hq / name, "id = 3", qty="30")


def stopped(file: Path, hq: Path, number: int, *said: str) -> str:
    """Let a sync stop; check its message and its traces. Return the message."""
    message = str(run("sync", "-f", file, code=1)["error"]["message"])
    for each in said:
        assert each in message
    assert stops(hq, said[0], number) == message
    assert message.startswith(f"{number}: ")
    return message


def skipped(message: str) -> Any:
    """Run the command that a message names, first as a dry run, then twice."""
    words = named(message, "skip")
    assert run(*words, "--dry-run")["is_done"] is False
    done = run(*words)
    assert done["is_done"]
    assert run(*words)["is_done"] is False
    return done


@pytest.mark.slow
def test_a_row_that_breaks_a_rule_stops_the_agent_before_its_transaction(
    spark: SparkSession, replica_dir: Path
) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    for name in ("items", "others"):
        new_table(hq, name, ROWS)
        new_table(north, name, ROWS)
    DeltaTable(str(north / "items")).alter.add_constraint({"small": "qty < 50 or note = 'large'"})
    articles = [{"name": name, "key": ["id"]} for name in ("items", "others")]
    file = publication_file(replica_dir, articles, subscribers=THERE)
    run("apply", "-f", file)
    change(hq, "items", {"qty": "99"})
    update(hq / "others", "id = 3", qty="33")
    message = stopped(
        file,
        hq,
        547,
        "breaks the CHECK constraint 'small' (qty < 50 OR note = 'large')",
        "id = 2",
        "note = b, qty = 99",
        "Article 'items'",
        "{CALL [sp_MSupd_dboitems] (,,99,2,0x04)}",
    )
    # Exactly what lies before it was applied, also to the other article.
    assert rows(north / "items") == [(1, "a", 10), (2, "b", 2), (3, "c", 3), (4, "d", 4)]
    assert rows(north / "others")[2] == (3, "c", 3)
    met = runs(hq, "--failed", "--limit", 1)[0]
    assert met["xact_seqno"] in message
    # Other transactions are refused by name.
    for words, why in {
        ("0x00000000000000000001",): "passed already",
        ("0xffffffffffffffffffff",): f"is not waiting; the next one is {met['xact_seqno']}",
        ("seven",): "is no LSN",
        (met["xact_seqno"], "--at", "nowhere"): "no replica 'nowhere'",
    }.items():
        refused = CliRunner().invoke(main, ["transactional", "skip", "-f", str(hq), *words])
        assert refused.exit_code == 2
        assert why in refused.stderr
    last = str(run("transactional", "browse", "-f", hq)[-1]["xact_seqno"])
    with pytest.raises(TransactionalUsageError, match="is not the next one"):
        tr.Distributor(hq).skip(last)
    done = skipped(message)
    assert done["commands"] == {"items": 1}
    works(hq, code=1)
    found = warnings(hq, code=1)
    assert ["not known to be equal" in each["text"] for each in found].count(True) == 1
    run("sync", "-f", file)
    assert rows(north / "items") == [(1, "a", 10), (2, "b", 2), (3, "c", 30), (4, "d", 4)]
    assert rows(north / "others")[2] == (3, "c", 33)
    log = [each for each in runs(hq, "--failed") if each["skipped"]]
    assert [each["xact_seqno"] for each in log] == [met["xact_seqno"]]
    told = [each["comments"] for each in runs(hq)]
    assert told[1] == f"Transaction {met['xact_seqno']} was skipped by hand (commands: items 1)."
    assert told[2] == message


RULES = {
    # article -> table at the subscriber, what breaks it, number, what is said
    "nulls": (
        "id bigint, note string not null, qty int",
        {"note": "NULL"},
        515,
        "the NOT NULL of column 'note'",
    ),
    "texts": (
        "id bigint, note varchar(2), qty int",
        {"note": "'long'"},
        2628,
        "type varchar(2) of column 'note'",
    ),
    "chars": (
        "id bigint, note string, qty int, more int, n bigint generated always as identity",
        {"qty": "-1"},
        547,
        "CHECK constraint 'more'",
    ),
    "computed": (
        "id bigint, note string, qty int, half int generated always as (qty - 40)",
        {"qty": "90"},
        547,
        "CHECK constraint 'half'",
    ),
    "kept": ("id bigint, note string, qty int", {"qty": "7"}, 547, "append-only table"),
    "empties": ("id bigint, note string, qty int", {"note": "''"}, 547, "rule of partition column 'note'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["SCALL", "CALL", "MCALL"])
def test_all_rules_that_delta_enforces(spark: SparkSession, replica_dir: Path, method: str) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    for name, (columns, _, _, _) in RULES.items():
        new_table(hq, name, ROWS)
        partitioned = "partitioned by (note)" if name == "empties" else ""
        spark.sql(f"create table delta.`{north / name}` ({columns}) using delta {partitioned}")
        listed = ", ".join(f"({key}, '{note}', {qty})" for key, (note, qty) in ROWS.items())
        spark.sql(f"insert into delta.`{north / name}` (id, note, qty) values {listed}")
    spark.sql(f"alter table delta.`{north / 'chars'}` add constraint more check (more is null and qty >= 0)")
    spark.sql(f"alter table delta.`{north / 'computed'}` add constraint half check (half < 50)")
    spark.sql(f"alter table delta.`{north / 'kept'}` set tblproperties ('delta.appendOnly' = 'true')")
    articles = [{"name": name, "key": ["id"], "upd_cmd": method} for name in RULES]
    file = publication_file(replica_dir, articles, subscribers=THERE)
    run("apply", "-f", file)
    for name, (_, bad, number, said) in RULES.items():
        if name == "kept":
            add(hq / name, {4: ("d", 4)})
            update(hq / name, "id = 2", **bad)
            add(hq / name, {5: ("e", 5)})
        else:
            change(hq, name, bad)
        message = stopped(file, hq, number, said, "id = 2", f"Article '{name}'")
        skipped(message)
        run("sync", "-f", file)
        works(hq, code=1)
        there = {row[0]: row[1:3] for row in rows(north / name)}
        expected = {row[0]: row[1:] for row in rows(hq / name)} | {2: ("b", 2)}
        assert there == expected, name


@pytest.mark.slow
def test_rules_are_judged_after_each_command_and_over_changed_keys(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    items = new_table(hq, "items", ROWS)
    new_table(north, "items", ROWS)
    DeltaTable(str(north / "items")).alter.add_constraint({"small": "qty < 50 or note = 'large'"})
    file = publication_file(replica_dir, subscribers=THERE)
    run("apply", "-f", file)
    # The note and the quantity come by two commands, over a key that changes: no row breaks the rule.
    update(items, "id = 1", note="'large'")
    update(items, "id = 1", qty="60")
    spark.sql(f"update delta.`{items}` set id = 11 where id = 1")
    update(items, "id = 11", qty="70")
    delete(items, "id = 2")
    add(items, {2: ("large", 80)})
    run("sync", "-f", file)
    assert rows(north / "items") == rows(items)
    # The key changes, then its row breaks the rule.
    spark.sql(f"update delta.`{items}` set id = 12 where id = 11")
    update(items, "id = 12", note="'x'")
    merge(items, {3: ("c", 31), 9: ("large", 90)})
    message = stopped(file, hq, 547, "'small'", "id = 12", "note = x, qty = 70")
    skipped(message)
    run("sync", "-f", file)
    assert [row for row in rows(north / "items") if row[0] != 12] == [
        row for row in rows(items) if row[0] != 12
    ]
    assert (12, "large", 70) in rows(north / "items")
    # A rule that comes between judging and MERGE: nothing is written. The next run judges again and can skip.
    update(items, "id = 3", qty="-3")

    def lifts_none(name: str) -> None:
        if name == "distribute.after_plan":
            DeltaTable(str(north / "items")).alter.add_constraint({"whole": "qty > 0"})

    with monkeypatch.context() as patch:
        patch.setattr(redo, "failpoint", lifts_none)
        stopped(file, hq, 547, "CHECK constraint 'whole'", "The rule is newer than the batch")
    skipped(stopped(file, hq, 547, "CHECK constraint 'whole'", "id = 3"))
    works(hq, code=1)


@pytest.mark.slow
def test_a_skip_that_dies_is_made_up_for(spark: SparkSession, replica_dir: Path) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    items = new_table(hq, "items", ROWS)
    file = publication_file(replica_dir, subscribers=[{"subscriber": "./north"}, {"subscriber": "./south"}])
    run("apply", "-f", file)
    for point in ("transactional.before_skip", "transactional.after_skip"):
        delete(north / "items", "id = 1")
        update(items, "id = 1", qty="qty + 1")
        add(items, {len(rows(items)) + 1: ("new", 1)})
        run("capture", "-f", hq)
        words = named(run("sync", "-f", hq, code=1)["error"]["message"], "skip")
        refused = CliRunner().invoke(main, words[:-2])
        assert refused.exit_code == 2
        assert "`--at`" in refused.stderr
        dies(point, *words)
        run(*words)
        log = [each for each in runs(hq, "--failed") if each["skipped"]]
        assert [each["xact_seqno"] for each in log].count(words[2]) == 1
        run("sync", "-f", file)
        assert rows(north / "items") == [row for row in rows(items) if row[0] != 1]
        assert rows(replica_dir / "south" / "items") == rows(items)
        spark.sql(f"insert into delta.`{north / 'items'}` select * from delta.`{items}` where id = 1")
