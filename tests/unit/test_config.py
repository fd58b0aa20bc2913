"""The project file: what is read, and one clear error for each bad input (reliability.md c5)."""

import unicodedata
from datetime import timedelta
from pathlib import Path

import pytest

from mergerepl import roots
from mergerepl.errors import ConfigurationError
from mergerepl.model.publication import ConflictLogging, Join, Resolution, SubscriberType, SyncType, Tracking
from mergerepl.model.resolvers import ResolverInfo
from mergerepl.settings import Settings
from tests import project_files as config
from tests.bad_inputs.bad_texts import BAD_TEXTS, HEAD, HOSTILE_NAMES, MINIMAL, ORDERS, article, subscription


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "hq").mkdir()
    return tmp_path


def load(folder, text):
    file = folder / "sales.yml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return config.load(file)


def refusal(folder, text) -> str:
    before = sorted(folder.rglob("*"))
    with pytest.raises(ConfigurationError) as raised:
        load(folder, text)
    assert sorted({*before, folder / "sales.yml"}) == sorted(folder.rglob("*")), "a refusal changes nothing"
    assert "sales.yml" in raised.value.message
    assert raised.value.exit_code == 2
    return raised.value.message


def test_the_smallest_file_has_the_documented_defaults(folder):
    publication = load(folder, MINIMAL)
    assert publication.name == "sales"
    assert publication.publisher == str(folder / "hq")
    assert publication.retention == timedelta(days=14)
    assert publication.conflict_logging is ConflictLogging.PUBLISHER
    assert publication.subscriptions == ()
    (orders,) = publication.articles
    assert (orders.table, orders.key, orders.rowguid) == ("orders", ("order_id",), None)
    assert (orders.tracking, orders.columns, orders.resolver) == (Tracking.ROW, None, "priority")


def test_every_key_arrives_in_the_publication(folder):
    publication = load(
        folder,
        HEAD
        + """
retention: 2 weeks
conflict_logging: both
articles:
  - name: orders
    table: bronze//orders/
    key: [order_id]
    tracking: column
    columns: [region, amount]
    resolver: {name: priority, resolution: columns}
  - {name: lines, rowguid: id}
subscriptions:
  - {subscriber: ./north, type: server, priority: 75, host_name: North}
  - {subscriber: ./south, type: client}
  - {subscriber: ./west, sync_type: none}
""",
    )
    orders, lines = publication.articles
    north, south, west = publication.subscriptions
    assert publication.retention == timedelta(days=14)
    assert publication.conflict_logging is ConflictLogging.BOTH
    assert orders.table == "bronze/orders"
    assert orders.columns == ("order_id", "region", "amount"), "the key is always in"
    assert (orders.tracking, orders.resolution) == (Tracking.COLUMN, Resolution.COLUMNS)
    assert (lines.key, lines.rowguid, lines.identity) == ((), "id", ("id",))
    assert (north.subscriber, north.priority, north.host_name) == (str(folder / "north"), 75.0, "North")
    assert (south.type, south.priority) == (SubscriberType.CLIENT, 0.0)
    assert (west.priority, west.sync_type) == (75.0, SyncType.NONE)


ADDITIVE = "Microsoft SQL Server Additive Conflict Resolver"
PROCEDURE = "Microsoft SQLServer Stored Procedure Resolver"


@pytest.mark.parametrize(
    ("keys", "name", "info"),
    [
        ("name: additive, column: n", "additive", ResolverInfo(("n",))),
        ("name: additive, columns: [n, m]", "additive", ResolverInfo(("n", "m"))),
        (f"name: {ADDITIVE}, resolver_info: n", "additive", ResolverInfo(("n",))),
        ("name: custom, function: stock_rules", "custom", ResolverInfo(function="stock_rules")),
        (f"name: {PROCEDURE}, resolver_info: stock-rules", "custom", ResolverInfo(function="stock-rules")),
        ("name: merge_text, resolver_info: '[t][==]'", "merge_text", ResolverInfo(("t",), "==")),
        ("name: merge_text, resolver_info: '[t]', delimiter: ' '", "merge_text", ResolverInfo(("t",), " ")),
        (
            "name: maximum, column: n, update_delete: delete_wins",
            "maximum",
            ResolverInfo(("n",), None, "delete_wins"),
        ),
    ],
)
def test_what_a_resolver_is_given(folder, keys, name, info):
    article = f"articles: [{{name: orders, key: [id], tracking: column, resolver: {{{keys}}}}}]"
    (orders,) = load(folder, f"{HEAD}\n{article}\n").articles
    assert (orders.resolver, orders.resolver_info) == (name, info)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("14 days", timedelta(days=14)),
        ("1 day", timedelta(days=1)),
        ("36 hours", timedelta(hours=36)),
        ("2 weeks", timedelta(weeks=2)),
        ("30", timedelta(days=30)),
    ],
)
def test_retention_is_written_as_people_do(folder, stated, expected):
    assert load(folder, f"{MINIMAL}retention: {stated}\n").retention == expected


def test_a_relative_path_is_relative_to_the_file_not_to_the_working_directory(
    folder, monkeypatch, tmp_path_factory
):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert load(folder, MINIMAL).publisher == str(folder / "hq")


@pytest.mark.parametrize("name", ["a b", "a#b", "100%", "a(b)", "a=b;c,d", "büro", "☃", "it's", "a@b"])
def test_any_folder_name_works_as_a_path_and_as_a_file_uri(folder, name):
    root = folder / name
    root.mkdir()
    assert load(folder, f'publication: s\npublisher: "./{name}"\n{ORDERS}').publisher == str(root)
    assert load(folder, f'publication: s\npublisher: "{root.as_uri()}"\n{ORDERS}').publisher == str(root)


def test_percent_codes_in_a_path_are_a_name_not_a_way_out(folder):
    (folder / "%2e%2e").mkdir()
    message = refusal(folder, f"publication: s\npublisher: ./%2e%2e\n{ORDERS}")
    assert f"'{folder / '%2e%2e'}' has %2e in its path" in message


def test_a_byte_order_mark_is_ignored(folder):
    assert load(folder, b"\xef\xbb\xbf" + MINIMAL.encode()).name == "sales"


def test_keys_that_yaml_takes_for_booleans_are_text(folder):
    lines = "articles:\n  - {name: orders, key: [id], filter: x = 1}\n  - {name: lines, key: [line]}\n"
    text = f"{HEAD}{lines}joins:\n  - {{article: lines, parent: orders, on: 'orders.x = lines.x'}}\n"
    assert load(folder, text).joins == (Join("lines", "orders", "orders.x = lines.x"),)


def test_filters_arrive_in_the_publication(folder):
    publication = load(
        folder,
        HEAD
        + """
allow_partition_realignment: true
engine: auto
articles:
  - {name: customers, key: [customer_id], filter: "region = HOST_NAME()", partition_options: 1}
  - {name: orders, key: [order_id]}
joins:
  - {article: orders, parent: customers, on: "customers.id = orders.customer", unique: true}
subscriptions:
  - {subscriber: ./north, host_name: North, suser_sname: ann}
""",
    )
    customers, orders = publication.articles
    assert (customers.filter, customers.partition_options) == ("region = HOST_NAME()", 1)
    assert (orders.filter, orders.partition_options) == (None, 0)
    assert publication.joins == (Join("orders", "customers", "customers.id = orders.customer", unique=True),)
    assert publication.allow_partition_realignment
    assert publication.engine == "auto"
    assert publication.subscriptions[0].suser_sname == "ann"


def test_merged_mappings_are_plain_yaml(folder):
    text = f"{HEAD}articles:\n  - &base {{name: orders, key: [id]}}\n  - {{<<: *base, name: lines}}\n"
    assert [article.name for article in load(folder, text).articles] == ["orders", "lines"]


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_bad_file(folder, case):
    text, expected = BAD_TEXTS[case]
    message = refusal(folder, text)
    assert expected in message
    assert len(message) < 600


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
@pytest.mark.parametrize(
    "place",
    ["publication: NAME\npublisher: ./hq\n" + ORDERS, article("key: [x], name: NAME")],
    ids=["publication", "article"],
)
def test_21_hostile_name(folder, name, place):
    quoted = '"' + "".join(f"\\u{ord(letter):04x}" for letter in name) + '"'
    message = refusal(folder, place.replace("NAME", quoted))
    assert "a name has letters, digits" in message
    assert not any(unicodedata.category(letter) in ("Cc", "Cf") for letter in message)


def test_40_credentials_are_masked_in_message_and_facts(folder):
    for uri in ("s3://key:hunter2/x@bucket/n", "abfss://c@a.dfs.core.windows.net/n?sig=hunter2&sv=1"):
        with pytest.raises(ConfigurationError) as raised:
            load(folder, subscription(f"subscriber: '{uri}'"))
        assert "credentials come from the environment" in raised.value.message
        assert "hunter2" not in str(raised.value.details())
    assert "hunter2" not in refusal(folder, MINIMAL + "'s3://key:hunter2@b': 1\n")
    assert "hunter2" not in refusal(folder, "publication: [s3://key:hunter2@b\nx: y: z\n")


def test_several_problems_are_reported_at_once(folder):
    message = refusal(folder, HEAD + "retention: 0\narticles:\n  - {name: 'a/b', key: []}\n")
    assert message.splitlines()[0].endswith("has 3 problems:")
    assert [line.split(":")[0] for line in message.splitlines()[1:]] == ["  line 3", "  line 5", "  line 5"]


def test_problems_beyond_ten_are_counted(folder):
    message = refusal(folder, MINIMAL + "".join(f"key{n}: 1\n" for n in range(30)))
    assert message.endswith("  and 20 more")
    assert message.count("\n") == 11


def test_30_a_linked_table_must_stay_inside_the_publisher(folder):
    (folder / "elsewhere").mkdir()
    (folder / "hq" / "orders").symlink_to(folder / "elsewhere")
    assert "a link that leads out of the publisher's folder" in refusal(folder, MINIMAL)


def test_31_a_loop_of_links(folder):
    (folder / "loop").symlink_to(folder / "loop")
    assert "is a loop of symbolic links" in refusal(folder, f"publication: a\npublisher: ./loop\n{ORDERS}")


def test_35_links_do_not_hide_that_two_replicas_are_one(folder):
    (folder / "link").symlink_to(folder / "hq")
    assert "is the same folder as the publisher" in refusal(folder, subscription("subscriber: ./link"))


def test_an_existing_root_is_required_where_one_is_read(folder):
    assert roots.existing("hq", base=folder) == str(folder / "hq")
    with pytest.raises(ConfigurationError, match="does not exist"):
        roots.existing("gone", base=folder)


@pytest.mark.parametrize("name", ["a[b", "a]b", "a^b", "a|b", "a{b", "a}b", "a\\b", "a*b", "a?b", "no%20rth"])
def test_a_root_that_the_engines_cannot_open_is_refused(folder, name):
    (folder / name).mkdir()
    with pytest.raises(ConfigurationError, match=r"cannot open\. Rename the folder"):
        roots.parse(name, base=folder)


def test_settings_come_from_the_given_environment():
    assert Settings.from_environment({}) == Settings(debug=False, log_level="WARNING")
    variables = {"DEBUG": "1", "LOG_LEVEL": "info", "AGENT_CONFIG": "agent.yml", "LEASE_S": "2.5"}
    assert Settings.from_environment(
        {f"MERGEREPL_{name}": value for name, value in variables.items()}
    ) == Settings(debug=True, agent_config="agent.yml", log_level="INFO", lease_s=2.5)
    wrong = {"DEBUG": ["maybe"], "LOG_LEVEL": ["LOUD"], "LEASE_S": ["soon", "0", "-1", "inf", "nan"]}
    for name, value in ((f"MERGEREPL_{name}", value) for name, values in wrong.items() for value in values):
        with pytest.raises(ConfigurationError, match=name):
            Settings.from_environment({name: value})


def test_a_path_is_enough(folder, monkeypatch):
    (folder / "sales.yml").write_text(MINIMAL)
    monkeypatch.chdir(folder)
    assert config.load("sales.yml") == config.load(Path("sales.yml")) == config.load(folder / "sales.yml")
