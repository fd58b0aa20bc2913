"""Every command over small networks prints what it printed before, as text and as JSON: one file for each product.

Left out: `demo` (tests/scenarios/test_demo.py runs it), `doctor` (it prints the machine), `agent run` (a process of its
own: tests/agent, tests/cdc/test_jobs.py), `abort` (tests/faults), `completion` (tests/unit/test_cli.py), `init`
(tests/publish/test_new_project.py).
"""

import re
from pathlib import Path

import click
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.cli.main import main
from tests.cdc.databases import add, delete, new_table, update
from tests.golden.transcript import FILES, Transcript
from tests.networks import publish
from tests.transactional.publications import publication_file

LEFT_OUT = {"abort", "cdc cleanup", "agent run", "completion", "demo", "doctor", "init", "touch"}


@pytest.fixture
def transcript(replica_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Transcript:
    return Transcript(replica_dir, monkeypatch)


@pytest.mark.spark
def test_merge(spark: SparkSession, transcript: Transcript) -> None:
    folder, run = transcript.folder, transcript.run
    _publish_sales(folder)
    run("apply -f sales.yml --dry-run")
    run("apply -f sales.yml --quiet")
    run("status -f hq")
    run("sync -f sales.yml --quiet")
    for replica, note in (("hq", "'central'"), ("north", "'local'")):
        _update(folder, replica, "customers", "id = 1", note=note)
    run("pending -f hq")
    run("pending -f north")
    run("capture -f north --quiet")
    run("sync north -f hq --quiet")
    # The conflicts of one session have one time, and no order.
    _update(folder, "hq", "items", "id = 1", qty="20")
    delete(folder / "north" / "items", "id = 1")
    for replica, name in (("hq", "'tea'"), ("south", "'coffee'")):
        _update(folder, replica, "items", "id = 2", name=name)
    run("sync -f sales.yml --quiet")
    found = run("conflicts list -f hq")["conflicts"]
    run("conflicts list -f hq --table customers --limit 1")
    run("conflicts show -f hq --table customers")
    run("conflicts show -f hq --table items --limit 1")
    run("conflicts list --count-by day,table,type,resolver -f hq")
    run("conflicts resolvers")
    ids = {each["article"]: each["conflict_id"] for each in found}
    transcript.name(ids["customers"], "CUSTOMER")
    run("conflicts resolve CUSTOMER -f hq --loser --dry-run --quiet")
    run("conflicts resolve CUSTOMER -f hq --set note=agreed --message 'by phone' --quiet")
    run("conflicts list -f hq --status settled")
    run("conflicts retry -f hq")
    run("conflicts export -f hq -o lost --format csv")
    run("conflicts report -f hq -o conflicts.html")
    run("dashboard -f hq -o page.html")
    run("conflicts drop -f hq --older-than 1d --dry-run")
    run("row customers -f hq --key id=1")
    run("validate north -f sales.yml")
    run("sync -f north --quiet")
    run("validate north -f hq --level rowcount")
    run("history -f hq")
    run("history south -f hq --limit 1")
    run("status -f north")
    run("tune -f hq --dry-run --quiet")
    run("reinit north -f hq --discard-local --dry-run")
    run("status -f elsewhere", code=2)
    run("schema list -f hq")
    run("schema alter customers -f hq --ddl 'ADD COLUMN remark STRING' --dry-run")
    run("schema skip 1 -f hq --at north", code=2)
    _publish_regions(folder)
    run("apply -f regions.yml --dry-run")
    run("apply -f regions.yml --quiet")
    run("status -f west")
    run("row customers -f west --key id=1")
    run("partitions list -f west")
    run("partitions add -f west --host-name East")
    run("partitions drop 2 -f west --yes")
    transcript.compare("merge")


def _publish_sales(folder: Path) -> None:
    """Publish without a filter: what is printed is the same, and these sessions take no Spark."""
    customers = {"id": [1, 2, 3], "region": ["North", "South", "North"], "note": ["", "", ""]}
    items = {"id": [1, 2], "name": ["water", "beer"], "qty": [5, 7]}
    for name, rows in (("customers", customers), ("items", items)):
        write_deltalake(str(folder / "hq" / name), pa.table(rows))
    articles = [{"name": "customers", "key": ["id"]}, {"name": "items", "key": ["id"], "tracking": "column"}]
    subscriptions = [{"subscriber": f"./{name}"} for name in ("north", "south")]
    publish(folder, "sales", articles, subscriptions, is_applied=False)


def _publish_regions(folder: Path) -> None:
    rows = {"id": [1, 2], "region": ["North", "South"]}
    write_deltalake(str(folder / "west" / "customers"), pa.table(rows))
    articles = [{"name": "customers", "key": ["id"], "filter": "region = HOST_NAME()"}]
    subscriptions = [{"subscriber": "./store", "host_name": "North"}]
    publish(folder, "regions", articles, subscriptions, is_applied=False, publisher="west")


def _update(folder: Path, replica: str, article: str, where: str, **values: str) -> None:
    update(folder / replica / article, where, **values)


@pytest.mark.spark
def test_cdc(spark: SparkSession, transcript: Transcript) -> None:
    folder, run = transcript.folder, transcript.run
    items = new_table(folder / "shop", "items", {1: ("a", 1), 2: ("b", 2)})
    run("cdc enable items -f shop --key id --name first")
    run("cdc enable items -f shop --name second --columns id,note --no-net")
    run("cdc load first -f shop --consumer lake --into lake/items")
    add(items, {3: ("c", 3)})
    update(items, "id = 1", qty="10")
    delete(items, "id = 2")
    run("status -f shop")
    run("status -f shop --check")
    run("capture -f shop")
    run("capture -f shop")
    run("cdc list -f shop")
    run("cdc show first -f shop")
    run("status -f shop")
    run("cdc lsn -f shop")
    run("cdc changes first -f shop --row-filter all-update-old --limit 3")
    run("cdc changes --net first -f shop --row-filter all-with-mask")
    run("cdc load first -f shop --consumer lake --into lake/items")
    run("history -f shop")
    run("history --failed -f shop")
    run("resume first -f shop --compare")
    run("cdc relocate -f shop")
    run("cleanup -f shop")
    run("vacuum items -f shop")
    run("cdc jobs list -f shop")
    run("cdc jobs change capture -f shop --pollinginterval 60")
    run("cdc jobs stop capture -f shop")
    run("cdc jobs start capture -f shop")
    run("cdc jobs drop cleanup -f shop")
    run("cdc jobs add cleanup -f shop --retention 10080 --no-start")
    run("agent status -f shop")
    run("agent stop -f shop")
    run("status -f shop")
    run("cdc disable items -f shop --name second --yes")
    run("cdc disable --all -f shop --yes")
    run("status -f shop", code=2)
    transcript.compare("cdc")


@pytest.mark.slow
@pytest.mark.spark
def test_tracking(spark: SparkSession, transcript: Transcript) -> None:
    folder, run = transcript.folder, transcript.run
    branch = folder / "branch"
    orders = new_table(branch, "orders", {1: ("a", 1), 2: ("b", 2)})
    run("tracking enable orders -f branch --key id")
    run("tracking enumerate hq -f branch")
    database = mergerepl.ChangeTracking(branch)
    with database.transaction() as tx:
        tx.update("orders", {"note": "'new'"}, where="id = 1")
        tx.delete("orders", where="id = 2")
    open_ = database.begin()
    update(orders, "id = 1", note="'foreign'")
    run("status -f branch")
    run("tracking adopt -f branch")
    run(f"tracking abort {open_.current_transaction_bsn} -f branch --yes")
    run("history -f branch")
    run("tracking recover -f branch")
    run("tracking enumerate hq -f branch --output window --table orders")
    run("tracking acknowledge hq -f branch --window window/window.json")
    run("tracking purge orders -f branch --to 9 --dry-run")
    run("tracking purge -f branch --to 9 --yes")
    run("status -f branch")
    run("tracking forget hq -f branch --yes")
    run("tracking disable orders -f branch --keep-columns --yes")
    run("status -f branch")
    transcript.compare("tracking")


@pytest.mark.slow
@pytest.mark.spark
def test_transactional(spark: SparkSession, transcript: Transcript) -> None:
    folder, run = transcript.folder, transcript.run
    items = new_table(folder / "hq", "items", {1: ("a", 1), 2: ("b", 2)})
    publication_file(folder, [{"name": "items", "key": ["id"]}])
    run("apply -f feed.yml --quiet")
    run("sync -f feed.yml --quiet")
    update(items, "id = 1", qty="10")
    add(items, {3: ("c", 3)})
    run("pending -f feed.yml")
    run("sync -f feed.yml --dry-run --quiet")
    run("capture -f hq")
    run("capture -f hq")
    run("sync -f feed.yml --dry-run --quiet")
    run("pending -f hq")
    run("transactional browse -f hq --limit 1")
    run("sync -f hq")
    run("transactional script -f hq --operation update")
    run("transactional read items -f north")
    delete(folder / "north" / "items", "id = 2")
    run("validate -f feed.yml", code=1)
    delete(items, "id = 2")
    run("capture -f hq")
    run("sync -f hq", code=1)
    run("status -f feed.yml")
    run("status -f feed.yml --check", code=2)
    stopped = run("history --failed -f hq")
    transcript.name(stopped["runs"][0]["details"]["xact_seqno"], "XACT")
    run("transactional skip XACT -f hq --dry-run")
    run("transactional skip XACT -f hq")
    run("validate -f hq")
    run("repair -f hq --dry-run")
    run("history -f feed.yml")
    run("history -f hq --limit 2")
    run("resume items -f hq")
    run("cleanup -f hq")
    run("reinit north -f hq --yes")
    transcript.compare("transactional")


def test_every_command_is_run() -> None:
    run = "".join(file.read_text(encoding="utf-8") for file in FILES.glob("*.txt"))
    missing = {words for words, _ in _commands(main) if not re.search(rf"\$ mergerepl {words}\s", run)}
    assert missing == LEFT_OUT


def test_commands_take_the_arguments_and_options_that_they_took(transcript: Transcript) -> None:
    for words, command in _commands(main):
        transcript.note(f"mergerepl {words}", [_stated(each) for each in command.params])
    transcript.compare("options")


def _stated(parameter: click.Parameter) -> str:
    kind = parameter.type
    choices = f" {'|'.join(kind.choices)}" if isinstance(kind, click.Choice) else ""
    names = "/".join((*parameter.opts, *parameter.secondary_opts))
    if isinstance(parameter, click.Argument):
        return f"{parameter.make_metavar(click.Context(main))}{choices}"
    is_flag = isinstance(parameter, click.Option) and parameter.is_flag
    metavar = "" if is_flag or choices else f" {parameter.make_metavar(click.Context(main))}"
    is_given = isinstance(parameter.default, str | int | float) and not is_flag
    more = [f"default {parameter.default}"] if is_given else []
    more += ["required"] if parameter.required else []
    more += ["repeated"] if parameter.multiple else []
    return f"{names}{choices}{metavar}" + (f" ({', '.join(more)})" if more else "")


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, click.Command]]:
    found = []
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                found += _commands(command, (*path, name))
            else:
                found.append((" ".join((*path, name)), command))
    return found
