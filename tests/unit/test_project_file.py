"""The project file: documents of all types, variables, durations and the JSON Schema."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mergerepl.config import strict_yaml
from mergerepl.config.project_file import load_documents
from mergerepl.config.schema import json_schema
from mergerepl.errors import ConfigurationError
from mergerepl.model.folders import Capture, FolderTracking, TableCapture, TableTracking
from mergerepl.model.publication import Publication
from mergerepl.model.tracking_options import Foreign, TrackingOptions
from mergerepl.model.transactional import Publication as TransactionalPublication
from mergerepl.model.words import parse_duration
from tests.bad_inputs.bad_texts import BAD_TEXTS, MINIMAL, ORDERS
from tests.json_schema import fits

ROOT = Path(__file__).parents[2]

FEED = """
publication: feed
type: transactional
publisher: ./hq
min_retention: 1h
articles: [{name: orders, key: [id]}]
subscriptions: [{subscriber: ./north, streams: 4}]
"""
CAPTURED = """
type: cdc
root: ./hq
retention: 2d
interval: 30s
log_retention: 1w
jobs: {capture: {maxtrans: 50, continuous: true}, cleanup: {schedule: "03:00"}}
tables:
  - {table: orders, key: [order_id], net: true}
  - {table: bronze/lines, columns: [line, qty], name: lines_2, on_gap: stop}
"""
TRACKED = """
type: tracking
root: ./hq
foreign: refuse
tables:
  - {table: orders, key: [order_id], track: [insert, update]}
  - {table: notes, rowguid: id}
"""
ALL = "---".join((MINIMAL, FEED, CAPTURED, TRACKED))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "hq").mkdir()
    return tmp_path


def load(folder: Path, text: str) -> Any:
    (folder / "mergerepl.yml").write_text(text)
    return load_documents(folder / "mergerepl.yml")


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(ConfigurationError) as raised:
        load(folder, text)
    return raised.value.message


def test_a_file_states_documents_of_all_types(folder: Path) -> None:
    sales, feed, captured, tracked = load(folder, ALL)
    assert isinstance(sales, Publication)
    assert isinstance(feed, TransactionalPublication)
    assert (feed.max_retention, feed.min_retention) == (timedelta(hours=72), timedelta(hours=1))
    assert feed.subscriptions[0].streams == 4
    root = str(folder / "hq")
    assert captured == Capture(
        root,
        (
            TableCapture("orders", ("order_id",), net=True),
            TableCapture("bronze/lines", None, ("line", "qty"), "lines_2", None, "stop"),
        ),
        timedelta(days=7),
        {
            "capture": {"maxtrans": 50, "continuous": True, "pollinginterval": 30},
            "cleanup": {"schedule": "03:00", "retention": 2 * 24 * 60},
        },
    )
    some = TrackingOptions.INSERT | TrackingOptions.UPDATE
    assert tracked == FolderTracking(
        root,
        (TableTracking("orders", ("order_id",), options=some), TableTracking("notes", ("id",), is_guid=True)),
        Foreign.REFUSE,
    )


def test_what_a_folder_does_not_state_stays_open(folder: Path) -> None:
    (captured,) = load(folder, "type: cdc\nroot: ./hq\ntables: []\n")
    assert captured == Capture(str(folder / "hq"), ())


@pytest.mark.parametrize(
    ("text", "before", "after", "said"),
    [
        (CAPTURED, "root: ./hq", "root: ./gone", "line 3: root is './gone', and there is no folder"),
        (CAPTURED, "net: true", "nett: true", "tables[0].nett is not a known key; did you mean `net`?"),
        (CAPTURED, "retention: 2d", "retention: 90s", "retention is '90s'; write it in whole minutes"),
        (CAPTURED, "retention: 2d", "alerts: []", "alerts is a list; it must be a mapping of keys"),
        (CAPTURED, "maxtrans: 50", "maxtrans: 0", "jobs.capture.maxtrans is 0; it must be at least 1"),
        (CAPTURED, "maxtrans: 50", "threshold: 5", "jobs.capture.threshold is not a known key"),
        (
            CAPTURED,
            "name: lines_2",
            "name: DBO_orders",
            "is 'DBO_orders', and an instance 'dbo_orders' is there already",
        ),
        (CAPTURED, "on_gap: stop", "on_gap: halt", "it may be `compare`, `stop`"),
        (CAPTURED, "type: cdc", "type: cdd", "line 2: type is 'cdd'; did you mean `cdc`?"),
        (TRACKED, "table: notes", "table: orders", "is 'orders', and the table 'orders' is there already"),
        (TRACKED, "rowguid: id", "rowguid: id, key: [id]", "`key` exclude each other"),
        (TRACKED, ", rowguid: id", "", "tables[1] says neither `key` nor `rowguid`"),
        (TRACKED, "[insert, update]", "[inserts]", "tables[0].track holds 'inserts'; it may hold `insert`"),
        (TRACKED, "[insert, update]", "[]", "tables[0].track is empty"),
        (
            FEED,
            "streams: 4}",
            "name: n}, {subscriber: ./n}",
            "[1].name is 'n', and a subscriber 'n' is there already",
        ),
        (FEED, "streams: 4", "name: a/b", "subscriptions[0].name is 'a/b'; a name has letters"),
        (FEED, "streams: 4", "name: a.yml", "subscriptions[0].name is 'a.yml', which looks like a file"),
        (MINIMAL + "catalog: s\n", ": s\n", ": main.sales\n", "Tables that Unity Catalog manages are not"),
        (MINIMAL + "catalog: s\n", ": s\n", ": sales-1\n", "letters, digits and `_` only"),
        (MINIMAL + "streams: 3\n", "streams", "streams", "streams is a key of a later version"),
        (FEED, "min_retention: 1h", "distribution_retention: {min: 1 hour}", "write `retention` (was `max`)"),
    ],
)
def test_a_wrong_document_is_refused(folder: Path, text: str, before: str, after: str, said: str) -> None:
    assert before in text
    assert said in refusal(folder, text.replace(before, after))


@pytest.mark.parametrize("text", [MINIMAL, FEED, CAPTURED, TRACKED], ids=["merge", "feed", "cdc", "tracking"])
def test_a_document_stands_once(folder: Path, text: str) -> None:
    assert "as in another document of this file" in refusal(folder, f"{ALL}---\n{text}")


def test_a_problem_of_a_later_document_has_its_line_in_the_file(folder: Path) -> None:
    assert "line 8: root is missing" in refusal(
        folder, f"{MINIMAL}---\n\n# captured\ntype: cdc\ntables: []\n"
    )


# ---- variables


def test_variables_stand_in_folders_names_of_hosts_and_durations(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "publication: sales\npublisher: ${LAKE:-.}/hq\nretention: ${KEPT:-3} weeks\narticles:\n"
        "  - {name: a, key: [x], filter: \"y <> '$LAKE'\"}\n"
        "subscriptions:\n  - {subscriber: '${LAKE:-.}/north', host_name: 'N${HOST}', suser_sname: '$${HOST}'}\n"
    )
    monkeypatch.setenv("HOST", ": [x] #")
    monkeypatch.delenv("LAKE", raising=False)
    (stated,) = load(folder, text)
    (north,) = stated.subscriptions
    assert (stated.publisher, north.subscriber) == (str(folder / "hq"), str(folder / "north"))
    assert stated.retention == timedelta(weeks=3)
    assert (north.host_name, north.suser_sname) == ("N: [x] #", "${HOST}"), "a value is no YAML"
    (folder / "lake" / "hq").mkdir(parents=True)
    monkeypatch.setenv("LAKE", str(folder / "lake"))
    monkeypatch.setenv("KEPT", "")
    (stated,) = load(folder, text)
    assert (stated.publisher, stated.retention) == (str(folder / "lake" / "hq"), timedelta(weeks=3))


@pytest.mark.parametrize(
    ("publisher", "said"),
    [
        ("${GONE}/hq", "line 2: publisher needs the environment variable GONE, which is not set"),
        ("${EMPTY}/hq", "line 2: publisher needs the environment variable EMPTY, which is empty"),
        ("${GONE", "line 2: publisher holds '${GONE'; write a variable as `${NAME}`"),
        ("${1x}", "holds '${1x}'"),
        ("${SECRET}", "publisher is 's3://***@bucket/hq', which holds a user, password or signature"),
        ("abfss://c@a.net/hq?sig=hunter2", "which holds a user, password or signature"),
    ],
)
def test_a_wrong_variable_or_a_credential_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, publisher: str, said: str
) -> None:
    monkeypatch.delenv("GONE", raising=False)
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("SECRET", "s3://key:hunter2@bucket/hq")
    message = refusal(folder, f"publication: sales\npublisher: '{publisher}'\n{ORDERS}")
    assert said in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    "article",
    [
        "name: '${X}', key: [x]",
        "name: a, table: '${X}/a', key: [x]",
        "name: a, key: ['${X}']",
        "name: a, rowguid: '${X}'",
        "name: a, key: [x], columns: [x, '${X:-y}']",
        "name: a, key: [x], filter: \"y = '${X}'\"",
    ],
)
def test_names_columns_and_filters_have_no_variables(folder: Path, article: str) -> None:
    message = refusal(folder, f"publication: sales\npublisher: ./hq\narticles: [{{{article}}}]\n")
    assert "variables stand only in folders" in message


def test_a_file_with_variables_is_not_handed_to_an_agent(folder: Path) -> None:
    from mergerepl.agents.client import agent_roots

    file = folder / "mergerepl.yml"
    file.write_text(ALL)
    assert [str(each) for each in agent_roots([str(file)])] == [str(folder / "hq")]
    file.write_text(ALL.replace("./hq", "${LAKE:-.}/hq"))
    assert agent_roots([str(file)]) == []


# ---- durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("7d", 7 * 86_400),
        ("2w", 14 * 86_400),
        ("14 days", 14 * 86_400),
        (" 1 Hour ", 3600),
        ("90 minutes", 5400),
        ("-1 day", -86_400),
        ("0s", 0),
        ("14", None),
        ("5 months", None),
        ("1.5h", None),
        ("1h30m", None),
        ("", None),
    ],
)
def test_the_grammar_of_durations(text: str, seconds: int | None) -> None:
    assert parse_duration(text) == (None if seconds is None else timedelta(seconds=seconds))


def test_a_duration_without_end_is_the_longest() -> None:
    assert parse_duration("9" * 100 + "w") == timedelta.max


# ---- the JSON Schema

SCHEMA = json_schema()
BEYOND = re.compile(
    r"09_document_twice|14_(name|key_and|no_key|key_twice|retention_bad)|14_key_empty"
    r"|1[567]|18_priority_(nan|inf|of)|19|2\d|3\d|63|76_filter|76_options_alone|76_realignment$|76_no|76_one|77_join_(un"
    r"known|near|itself|circle|no|function|options)|98_res|98b|98c_compensate_one|98d"
)
"""Bad files that the schema takes: names, folders, columns and rules of more than one key are checked by `apply`."""


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_a_bad_file_does_not_fit_the_schema_or_is_beyond_it(case: str) -> None:
    text = BAD_TEXTS[case][0]
    if isinstance(text, bytes):
        return
    try:
        documents = strict_yaml.parse(text, name="file")
    except ConfigurationError:
        return
    fit = documents and all(fits(each.value, SCHEMA, SCHEMA) for each in documents)
    assert not fit or BEYOND.match(case), case


def test_good_documents_fit_the_schema() -> None:
    for document in strict_yaml.parse(ALL, name="file"):
        assert fits(document.value, SCHEMA, SCHEMA), document
    assert not fits(
        {"type": "cdc", "publication": "sales", "publisher": "hq", "articles": []}, SCHEMA, SCHEMA
    )


@pytest.mark.parametrize(
    "page", sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]), ids=lambda p: p.stem
)
def test_every_project_file_of_the_docs_fits_the_schema(page: Path) -> None:
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for document in strict_yaml.parse(block, name="file"):
            if isinstance(document.value, dict) and {"publisher", "root"} & document.value.keys():
                assert fits(document.value, SCHEMA, SCHEMA), document
