"""Every command over small networks prints what it printed before, as text and as JSON: one file for each product.

Left out: `demo` (tests/scenarios/test_demo.py runs it), `doctor` (it prints the machine), `agent run` and `agent start`
(processes of their own: tests/agent, tests/cdc/test_jobs.py).
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

LEFT_OUT = {"demo", "doctor", "agent run", "agent start"}


@pytest.fixture
def transcript(replica_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Transcript:
    return Transcript(replica_dir, monkeypatch)


@pytest.mark.spark
def test_merge(spark: SparkSession, transcript: Transcript) -> None:
    folder, run = transcript.folder, transcript.run
    _publish_sales(folder)
    run("apply sales.yml --dry-run")
    run("apply sales.yml --quiet")
    run("status hq")
    run("sync sales.yml --quiet")
    for replica, note in (("hq", "'central'"), ("north", "'local'")):
        _update(folder, replica, "customers", "id = 1", note=note)
    run("pending hq")
    run("pending north")
    run("capture north --quiet")
    run("sync hq --subscriber north --quiet")
    # The conflicts of one session have one time, and no order.
    _update(folder, "hq", "items", "id = 1", qty="20")
    delete(folder / "north" / "items", "id = 1")
    for replica, name in (("hq", "'tea'"), ("south", "'coffee'")):
        _update(folder, replica, "items", "id = 2", name=name)
    run("sync sales.yml --quiet")
    found = run("conflicts list hq")["conflicts"]
    run("conflicts list hq --article customers --limit 1")
    run("conflicts show hq --article customers")
    run("conflicts show hq --article items --limit 1")
    run("conflicts summary hq")
    run("conflicts resolvers")
    ids = {each["article"]: each["conflict_id"] for each in found}
    transcript.name(ids["customers"], "CUSTOMER")
    run("conflicts resolve hq CUSTOMER --loser --dry-run --quiet")
    run("conflicts resolve hq CUSTOMER --set note=agreed --message 'by phone' --quiet")
    run("conflicts list hq --status settled")
    run("conflicts retry hq")
    run("conflicts export hq --to lost --format csv")
    run("conflicts report hq --to conflicts.html")
    run("conflicts purge hq --older-than 1d --dry-run")
    run("row hq --article customers --key id=1")
    run("validate sales.yml", code=1)
    run("sync north --quiet")
    run("validate hq --subscriber north --level rowcount")
    run("history hq")
    run("history hq --subscriber south --limit 1")
    run("status north")
    run("partition list hq")
    run("partition add hq --host-name East")
    run("partition drop hq 3")
    run("tune hq --dry-run --quiet")
    run("status elsewhere", code=2)
    transcript.compare("merge")


def _publish_sales(folder: Path) -> None:
    customers = {"id": [1, 2, 3], "region": ["North", "South", "North"], "note": ["", "", ""]}
    items = {"id": [1, 2], "name": ["water", "beer"], "qty": [5, 7]}
    for name, rows in (("customers", customers), ("items", items)):
        write_deltalake(str(folder / "hq" / name), pa.table(rows))
    articles = [
        {"name": "customers", "key": ["id"], "filter": "region = HOST_NAME()"},
        {"name": "items", "key": ["id"], "tracking": "column"},
    ]
    subscriptions = [{"subscriber": f"./{name.lower()}", "host_name": name} for name in ("North", "South")]
    publish(folder, "sales", articles, subscriptions, is_applied=False)


def _update(folder: Path, replica: str, article: str, where: str, **values: str) -> None:
    update(folder / replica / article, where, **values)


@pytest.mark.spark
def test_cdc(spark: SparkSession, transcript: Transcript) -> None:
    folder, run = transcript.folder, transcript.run
    items = new_table(folder / "shop", "items", {1: ("a", 1), 2: ("b", 2)})
    run("cdc enable-db shop")
    run("cdc enable-db shop")
    run("cdc enable-table shop items --index id --capture-instance first")
    run("cdc enable-table shop items --capture-instance second --columns id,note --no-net")
    run("cdc apply shop first lake/items --consumer lake")
    add(items, {3: ("c", 3)})
    update(items, "id = 1", qty="10")
    delete(items, "id = 2")
    run("cdc status shop")
    run("cdc status shop --check")
    run("cdc capture shop")
    run("cdc capture shop")
    run("cdc help shop")
    run("cdc columns shop first")
    run("cdc ddl-history shop first")
    run("cdc status shop")
    run("cdc lsn shop")
    run("cdc changes shop first --option all-update-old --limit 3")
    run("cdc net shop first --option all-with-mask")
    run("cdc apply shop first lake/items --consumer lake")
    run("cdc sessions shop")
    run("cdc errors shop")
    run("cdc resume shop first --compare")
    run("cdc adopt shop")
    run("cdc cleanup shop")
    run("cdc vacuum shop items")
    run("cdc jobs list shop")
    run("cdc jobs change shop capture --pollinginterval 60")
    run("cdc jobs stop shop")
    run("cdc jobs start shop")
    run("cdc jobs drop shop cleanup")
    run("cdc jobs add shop cleanup --retention 10080 --no-start")
    run("agent status shop")
    run("agent stop shop")
    run("status shop")
    run("cdc disable-table shop items --capture-instance second")
    run("cdc disable-db shop")
    run("cdc status shop", code=2)
    transcript.compare("cdc")


@pytest.mark.spark
def test_tracking(spark: SparkSession, transcript: Transcript) -> None:
    folder, run = transcript.folder, transcript.run
    branch = folder / "branch"
    orders = new_table(branch, "orders", {1: ("a", 1), 2: ("b", 2)})
    run("tracking enable branch orders --key id")
    run("tracking enumerate branch --consumer hq")
    database = mergerepl.ChangeTracking(branch)
    with database.transaction() as tx:
        tx.update("orders", {"note": "'new'"}, where="id = 1")
        tx.delete("orders", where="id = 2")
    open_ = database.begin()
    update(orders, "id = 1", note="'foreign'")
    run("tracking status branch")
    run("tracking adopt branch")
    run("tracking transactions branch --open")
    run(f"tracking abort branch {open_.current_transaction_bsn}")
    run("tracking transactions branch")
    run("tracking recover branch")
    run("tracking enumerate branch orders --consumer hq --output window")
    run("tracking acknowledge branch window/window.json --consumer hq")
    run("tracking key pack branch orders 1")
    run("tracking key unpack branch orders 01000000080000000100000000000000")
    run("tracking purge branch tombstones --table orders --csn 9 --dry-run")
    run("tracking purge branch sequence --csn 9")
    run("tracking status branch")
    run("tracking forget branch --consumer hq")
    run("tracking sql orders")
    run("tracking upgrade branch")
    run("tracking disable branch orders --keep-columns")
    run("tracking status branch")
    transcript.compare("tracking")


@pytest.mark.spark
def test_transactional(spark: SparkSession, transcript: Transcript) -> None:
    folder, run = transcript.folder, transcript.run
    items = new_table(folder / "hq", "items", {1: ("a", 1), 2: ("b", 2)})
    publication_file(folder, [{"name": "items", "key": ["id"]}])
    run("apply feed.yml --quiet")
    run("sync feed.yml --quiet")
    update(items, "id = 1", qty="10")
    add(items, {3: ("c", 3)})
    run("pending feed.yml")
    run("transactional logreader hq")
    run("transactional logreader hq")
    run("transactional pending hq")
    run("transactional browse hq --limit 1")
    run("transactional distribute hq")
    run("transactional script hq --operation update")
    run("transactional read north items")
    delete(folder / "north" / "items", "id = 2")
    run("validate feed.yml", code=1)
    delete(items, "id = 2")
    run("transactional logreader hq")
    run("transactional distribute hq", code=1)
    run("status feed.yml")
    run("status feed.yml --check", code=2)
    stopped = run("transactional errors hq")
    transcript.name(stopped[0]["xact_seqno"], "XACT")
    run("transactional skip hq XACT --dry-run")
    run("transactional skip hq XACT")
    run("transactional validate hq")
    run("transactional repair hq --dry-run")
    run("history feed.yml")
    run("transactional history hq --limit 2")
    run("transactional resume hq items")
    run("transactional cleanup hq")
    run("transactional reinit hq --subscriber north")
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
