"""Texts that are no configuration file, and names that hostile people give."""
# ruff: noqa: E501 - one case is one line

import unicodedata

HEAD = "publication: sales\npublisher: ./hq\n"


ORDERS = "articles:\n  - {name: orders, key: [order_id]}\n"


MINIMAL = HEAD + ORDERS


def article(text: str) -> str:
    return f"{HEAD}articles:\n  - {{{text}}}\n"


def subscription(*texts: str) -> str:
    return MINIMAL + "subscriptions:\n" + "".join(f"  - {{{text}}}\n" for text in texts)


FILTERED = f"""{HEAD}articles:
  - {{name: a, key: [x], filter: "y = HOST_NAME()", partition_options: 0}}
  - {{name: b, key: [x]}}
"""

BAD_TEXTS = {
    "06_empty": ("", "is empty"),
    "06_only_a_comment": ("# nothing\n", "is empty"),
    "07_binary": (bytes(range(256)), "is not UTF-8 text"),
    "07_nul_characters": (b"publication: sal\x00es\n", "is not allowed"),
    "08_utf_16": (MINIMAL.encode("utf-16"), "is not UTF-8 text"),
    "08_latin_1": ("publication: b\xfcro\n".encode("latin-1"), "save it as UTF-8"),
    "09_syntax": ("publication: sales\narticles: [a\nb: c\n", "line 3, column 2: not valid YAML"),
    "09_two_documents": (f"{MINIMAL}---\n{MINIMAL}", "not valid YAML"),
    "09_tab": ("publication:\n\t- sales\n", "line 2"),
    "09_a_list": ("- sales\n", "holds a list: a configuration is a mapping"),
    "09_text": ("sales", "holds text ('sales')"),
    "10_python_tag": ("publication: !!python/object/apply:os.system ['true']\n", "line 1: the tag '!!python/object"),
    "10_tagged_key": ("!!python/name:os.system : x\n", "line 1: the tag '!!python/name:os.system' is not allowed"),
    "10_tag_int": (f'publication: !!int ""\npublisher: ./hq\n{ORDERS}', "line 1: the tag '!!int' is not allowed"),
    "10_tag_float": (MINIMAL + 'retention: !!float ""\n', "the tag '!!float' is not allowed"),
    "10_tag_bool": (MINIMAL + "retention: !!bool maybe\n", "the tag '!!bool' is not allowed"),
    "10_tag_timestamp": (MINIMAL + "retention: !!timestamp abc\n", "the tag '!!timestamp' is not allowed"),
    "10_tagged_list": (f"{HEAD}articles: !!seq [x]\n", "line 3: the tag '!!seq' is not allowed"),
    "10_tag_of_nothing": ("publication: ! sales\n", "the tag '!' is not allowed"),
    "11_alias_bomb": (
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)),
        "aliases (`*name`) make this file endless or larger",
    ),
    "11_alias_of_itself": ("publication: &a [*a]\n", "endless"),
    "11_nested_without_end": ("[" * 50_000, "nested too deeply"),
    "12_duplicate_key": ("publication: a\npublisher: ./hq\npublication: b\n", "line 3: the key 'publication' stands twice"),
    "12_duplicate_key_inside": (article("name: a, key: [x], name: b"), "line 4: the key 'name' stands twice"),
    "13_unknown_key": (MINIMAL + "retension: 3 days\n", "line 5: retension is not a known key; did you mean `retention`?"),
    "13_unknown_article_key": (article("name: a, key: [x], trackin: row"), "articles[0].trackin is not a known key; did you mean `tracking`?"),
    "13_unknown_subscription_key": (subscription("subscriber: ./n, prio: 1"), "subscriptions[0].prio is not a known key"),
    "13_unknown_resolver_key": (article("name: a, key: [x], resolver: {nam: p}"), "articles[0].resolver.nam is not a known key; did you mean `name`?"),
    "13_missing_publisher": ("publication: a\n" + ORDERS, "publisher is missing"),
    "13_missing_article_name": (article("key: [x]"), "line 4: articles[0].name is missing"),
    "14_retention": (MINIMAL + "retention: 14x\n", "retention is '14x'; write it as `14 days`"),
    "14_retention_bool": (MINIMAL + "retention: true\n", "retention is true"),
    "14_retention_float": (MINIMAL + "retention: 1.5\n", "retention is 1.5"),
    "14_retention_date": (MINIMAL + "retention: 2026-01-01\n", "retention is 2026-01-01"),
    "14_retention_bad_date": (MINIMAL + "retention: 2026-13-45\n", "holds a value that is no number or date"),
    "14_retention_nothing": (MINIMAL + "retention:\n", "retention is null"),
    "14_name_is_a_number": (f"publication: 7\npublisher: ./hq\n{ORDERS}", "publication is a number (7); it must be text (put it in quotes"),
    "14_name_is_a_bool": (f"publication: yes\npublisher: ./hq\n{ORDERS}", "publication is true or false (true); it must be text"),
    "14_name_is_nothing": (f"publication:\npublisher: ./hq\n{ORDERS}", "publication has no value; it must be text"),
    "14_articles_mapping": (f"{HEAD}articles: {{orders: x}}\n", "articles is a mapping; it must be a list"),
    "14_articles_empty": (f"{HEAD}articles: []\n", "articles is empty"),
    "14_article_is_text": (f"{HEAD}articles: [orders]\n", "articles[0] is text ('orders'); it must be a mapping"),
    "14_key_is_text": (article("name: a, key: id"), "articles[0].key is text ('id'); it must be a list, such as `[order_id]`"),
    "14_key_number": (article("name: a, key: [1]"), "articles[0].key[0] is a number (1); it must be text"),
    "14_key_empty": (article("name: a, key: []"), "articles[0].key is an empty list"),
    "14_key_twice": (article("name: a, key: [id, ID]"), "articles[0].key names the column 'ID' twice"),
    "14_key_and_rowguid": (article("name: a, key: [id], rowguid: g"), "`key` exclude each other"),
    "14_no_key": (article("name: a"), "articles[0] says neither `key` nor `rowguid`"),
    "14_tracking": (article("name: a, key: [x], tracking: colum"), "articles[0].tracking is 'colum'; did you mean `column`?"),
    "14_conflict_logging": (MINIMAL + "conflict_logging: nowhere\n", "it may be `publisher`, `subscriber`, `both`"),
    "15_retention_negative": (MINIMAL + "retention: -3\n", "retention is -3; it must be more than 0"),
    "16_retention_zero": (MINIMAL + "retention: 0\n", "it must be more than 0 (leave the key out for 14 days)"),
    "17_retention_huge": (MINIMAL + f"retention: {10**30}\n", "the longest is 36500 days"),
    "17_integer_of_5000_digits": (MINIMAL + f"retention: {'9' * 5000}\n", "no number or date"),
    "18_priority_nan": (subscription("subscriber: ./n, priority: .nan"), "subscriptions[0].priority is nan; it must be between"),
    "18_priority_inf": (subscription("subscriber: ./n, priority: .inf"), "subscriptions[0].priority is inf; it must be between"),
    "18_priority_bool": (subscription("subscriber: ./n, priority: yes"), "subscriptions[0].priority is true or false (true); it must be a number"),
    "18_priority_text": (subscription("subscriber: ./n, priority: '75'"), "subscriptions[0].priority is text ('75'); it must be a number"),
    "18_priority_100": (subscription("subscriber: ./n, priority: 100"), "between 0.00 and 99.99"),
    "18_priority_negative": (subscription("subscriber: ./n, priority: -1"), "between 0.00 and 99.99"),
    "18_priority_of_a_client": (subscription("subscriber: ./n, type: client, priority: 5"), "a client subscription has none of its own"),
    "19_name_empty": (f"publication: ''\npublisher: ./hq\n{ORDERS}", "must have 1 to 128 characters"),
    "20_name_long": (f"publication: {'x' * 10_000}\npublisher: ./hq\n{ORDERS}", "and has 10000"),
    "20_names_long_together": (f"publication: {'ü' * 90}\npublisher: ./hq\narticles: [{{name: {'ü' * 90}, key: [x]}}]\n", "too long together"),
    "22_case": (f"{HEAD}articles: [{{name: orders, key: [x]}}, {{name: Orders, key: [x]}}]\n", "articles[1].name is 'Orders', and an article 'orders' is there already"),
    "22_sharp_s": (f"{HEAD}articles: [{{name: straße, key: [x]}}, {{name: STRASSE, key: [x]}}]\n", "there already"),
    "22_unicode_forms": (
        f"{HEAD}articles: [{{name: {unicodedata.normalize('NFC', 'büro')}, key: [x]}}, {{name: {unicodedata.normalize('NFD', 'büro')}, key: [x]}}]\n",
        "there already",
    ),
    "23_huge": ("# " + "x" * 1_000_001, "is larger than 1 MB"),
    "25_no_publisher_folder": (f"publication: a\npublisher: ./gone\n{ORDERS}", "publisher is './gone', and there is no folder"),
    "26_publisher_is_the_file": (f"publication: a\npublisher: ./sales.yml\n{ORDERS}", "is a file"),
    "26_inside_a_file": (f"publication: a\npublisher: ./sales.yml/x\n{ORDERS}", "lies inside one"),
    "30_table_above_the_root": (article("name: a, key: [x], table: ../b"), "the table must lie inside the replica root"),
    "30_table_absolute": (article("name: a, key: [x], table: /b"), "give a folder inside the replica root"),
    "30_table_uri": (article("name: a, key: [x], table: 's3://b/c'"), "give a folder inside the replica root"),
    "30_table_of_ours": (article("name: a, key: [x], table: _mergerepl/sysmergearticles"), "not folders of users' tables"),
    "30_table_control_character": (article('name: a, key: [x], table: "a\\nb"'), "a control character"),
    "34_same_table_twice": (f"{HEAD}articles: [{{name: a, table: t, key: [x]}}, {{name: b, table: './/t/', key: [x]}}]\n", "articles[1].table is 't', and the table 't' is there already"),
    "34_table_in_a_table": (f"{HEAD}articles: [{{name: a, table: t, key: [x]}}, {{name: b, table: t/u, key: [x]}}]\n", "inside the table 't'"),
    "35_publisher_is_subscriber": (subscription("subscriber: hq/../hq/"), "is the same folder as the publisher"),
    "35_subscriber_twice": (subscription("subscriber: ./n", "subscriber: n"), "is the same folder as subscriptions[0].subscriber"),
    "36_subscriber_inside": (subscription("subscriber: ./hq/north"), "lies inside the folder of the publisher"),
    "36_subscriber_around": (subscription("subscriber: ."), "holds the folder of the publisher"),
    "38_scheme": (subscription("subscriber: 's3a://bucket/n'"), "object-store roots (s3a://) are not supported yet"),
    "38_scheme_single_slash": (subscription("subscriber: 'dbfs:/n'"), "object-store roots (dbfs://)"),
    "38_file_with_host": (subscription("subscriber: 'file://n/x'"), "names the host 'n'"),
    "38_file_with_bad_host": (subscription("subscriber: 'file://[x'"), "is no URI (Invalid IPv6 URL): a file URI has three"),
    "21_nul_in_a_uri": (subscription("subscriber: 'file:///n/a%00b'"), "'file:///n/a%00b' holds a control character"),
    "38_home": (subscription("subscriber: ~/n"), "`~` is not expanded"),
    "38_empty": (subscription("subscriber: ''"), "is empty"),
    "63_no_columns": (article("name: a, key: [x], columns: []"), "articles[0].columns is an empty list"),
    "76_filter_number": (article("name: a, key: [x], filter: 1"), "articles[0].filter is a number (1); it must be text (put it in quotes"),
    "76_filter_empty": (article("name: a, key: [x], filter: ' '"), "articles[0].filter is empty"),
    "76_filter_unreadable": (article("name: a, key: [x], filter: 'region = = 1'"), "line 4: articles[0].filter cannot be read at character 10"),
    "76_filter_function": (article('name: a, key: [x], filter: "reflect(\'java.lang.System\', \'exit\', 1)"'), "articles[0].filter uses REFLECT, which a filter may not use (docs/filters.md lists what it may)."),
    "76_options": (article("name: a, key: [x], filter: 'x = 1', partition_options: 4"), "articles[0].partition_options is 4; it may be `0`, `1`, `2`, `3`"),
    "76_options_text": (article("name: a, key: [x], filter: 'x = 1', partition_options: '1'"), "articles[0].partition_options is '1'; did you mean `1`? (it may be `0`, `1`, `2`, `3`)"),
    "76_options_alone": (article("name: a, key: [x], partition_options: 1"), "articles[0].partition_options is 1, and the article has no filter and no join"),
    "76_realignment": (MINIMAL + "allow_partition_realignment: false\n", "allow_partition_realignment is false, which this version does not support"),
    "76_realignment_text": (MINIMAL + "allow_partition_realignment: 'no'\n", "allow_partition_realignment is text ('no'); it must be true or false"),
    "76_no_value": (FILTERED + "subscriptions: [{subscriber: ./n, suser_sname: x}]\n", "line 6: subscriptions[0] has no host_name, and the filter of 'a' uses HOST_NAME()"),
    "76_one_subscription": (FILTERED.replace("options: 0", "options: 3") + "subscriptions: [{subscriber: ./n, host_name: N}, {subscriber: ./m, host_name: N}]\n", "subscriptions[1] is in partition 'N', which has a subscription already ("),
    "77_join_key": (FILTERED + "joins: [{article: b, parent: a, unik: true}]\n", "joins[0].unik is not a known key; did you mean `unique`?"),
    "77_join_without_on": (FILTERED + "joins: [{article: b, parent: a}]\n", "joins[0].on is missing"),
    "77_join_unique_text": (FILTERED + "joins: [{article: b, parent: a, on: 'a.x = b.x', unique: 'yes'}]\n", "joins[0].unique is text ('yes'); it must be true or false"),
    "77_join_unknown": (FILTERED + "joins: [{article: orders, parent: a, on: 'a.x = orders.x'}]\n", "joins[0].article names the article 'orders', which is not in the file; there are a, b"),
    "77_join_near": (article("name: orders, key: [x]") + "  - {name: lines, key: [x]}\njoins: [{article: lines, parent: ordrs, on: 'ordrs.x = lines.x'}]\n", "joins[0].parent names the article 'ordrs', which is not in the file; did you mean orders"),
    "77_join_itself": (FILTERED + "joins: [{article: b, parent: b, on: 'b.x = b.x'}]\n", "joins[0].parent is the article itself"),
    "77_join_circle": (FILTERED + "joins: [{article: b, parent: a, on: 'a.x = b.x'}, {article: a, parent: b, on: 'a.x = b.x'}]\n", "joins makes a circle: a → b → a"),
    "77_join_no_equality": (FILTERED + "joins: [{article: b, parent: a, on: 'a.x > b.x'}]\n", "joins[0].on needs an equality of a column of 'a' with one of 'b'"),
    "77_join_function": (FILTERED + "joins: [{article: b, parent: a, on: 'a.x = b.x and a.y = HOST_NAME()'}]\n", "joins[0].on uses HOST_NAME(): that belongs in an article's filter"),
    "77_join_options": (FILTERED.replace("key: [x]}", "key: [x], partition_options: 2}") + "joins: [{article: b, parent: a, on: 'a.x = b.x', unique: true}]\n", "articles[1].partition_options is 2, and its parent 'a' has 0: give the parent 2 or 3, too"),
    "91_host_name_empty": (subscription("subscriber: ./n, host_name: ''"), "subscriptions[0].host_name is empty"),
    "91_host_name_long": (subscription(f"subscriber: ./n, host_name: {'x' * 129}"), "subscriptions[0].host_name is longer than 128 characters"),
    "98_resolver": (article("name: a, key: [x], resolver: {name: prioritty}"), "did you mean `priority`?"),
    "98_resolver_without_column": (article("name: a, key: [x], tracking: column, resolver: {name: additive}"), "`column` is missing"),
    "98_resolver_needs_column_tracking": (article("name: a, key: [x], resolver: {name: additive, column: n}"), "needs `tracking: column`"),
    "98_resolver_reads_no_column": (article("name: a, key: [x], resolver: {name: publisher_wins, column: n}"), "resolver.column is not for 'publisher_wins'"),
    "98_resolver_reads_one_column": (article("name: a, key: [x], resolver: {name: maximum, columns: [n, m]}"), "reads one"),
    "98_resolver_twice": (article("name: a, key: [x], resolver: {name: maximum, column: n, resolver_info: n}"), "exclude each other"),
    "98_resolver_without_delimiter": (article("name: a, key: [x], tracking: column, resolver: {name: merge_text, column: t}"), "`delimiter` is missing"),
    "98_resolver_delimiter": (article("name: a, key: [x], resolver: {name: maximum, column: n, delimiter: x}"), "resolver.delimiter is not for 'maximum'"),
    "98_resolver_of_deletes": (article("name: a, key: [x], resolver: {update_delete: update_wins}"), "decides deletes itself"),
    "98_resolver_later": (article("name: a, key: [x], resolver: {name: three_way_text}"), "resolvers that merge texts by lines are not supported by this version"),
    "98c_compensate": (article("name: a, key: [x], compensate_for_errors: true"), "compensate_for_errors is true, which this version does not support"),
    "98d_conflict_retention": (MINIMAL + "conflict_retention: 36 hours\n", "write it in whole days"),
    "98b_one_way_columns": (article("name: a, key: [x], tracking: column, resolver: {name: upload_only, resolution: columns}"), "takes whole rows of one side"),
    "98_resolver_text": (article("name: a, key: [x], resolver: priority"), "it must be a mapping"),
    "98_resolution_needs_column_tracking": (article("name: a, key: [x], resolver: {resolution: columns}"), "needs `tracking: column`"),
}  # fmt: skip


HOSTILE_NAMES = [
    "a/b",
    "..",
    "a\0b",
    "a\nb",
    "a`b",
    'a"b',
    "a'b",
    "a\x1b[31m",
    "-a",
    ".a",
    "a.",
    " a",
    "a\\b",
    "a\u202eb",
    "a:b",
]
