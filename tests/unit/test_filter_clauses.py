"""What a filter clause may be, how it is read, and what is said of one that may not be used. Pure."""

import sys
from itertools import product

import pytest

from mergerepl.filters.clause import ClauseError, Column, SessionFunction, evaluate, text
from mergerepl.filters.columns import column_of, spark_operation
from mergerepl.filters.parse import parse_filter, parse_on, parse_stored
from mergerepl.filters.prepare import prepare_clause, uncastable
from mergerepl.filters.publication_filters import (
    CircleError,
    JoinFilter,
    Part,
    PublicationFilters,
    parents_first,
    parts_of,
    terms_of_on,
)
from mergerepl.frames import F, in_process
from mergerepl.frames.dataframe import frame_of_tuples
from tests.executors import struct_of

TYPES = {
    "region": "string",
    "code": "char(8)",
    "name": "varchar(20)",
    "staff": "int",
    "tiny": "tinyint",
    "total": "bigint",
    "price": "decimal(10,2)",
    "weight": "double",
    "ratio": "float",
    "active": "boolean",
    "day": "date",
    "at": "timestamp",
    "at_ntz": "timestamp_ntz",
    "Mixed Case": "string",
    "bytes": "binary",
    "tags": "array<string>",
}

READ = {
    "region = HOST_NAME()": "`region` = HOST_NAME()",
    "region = hOsT_nAmE () ;": "`region` = HOST_NAME()",
    "!active": "NOT `active`",
    "a and b or not (c and d)": "(`a` AND `b`) OR (NOT (`c` AND `d`))",
    "a AND (b AND c) AND d": "`a` AND `b` AND `c` AND `d`",
    "a <=> b": "`a` <=> `b`",
    "a == 1 or a != 2": "(`a` = 1) OR (`a` <> 2)",
    "a IS NOT NULL": "NOT (`a` IS NULL)",
    "a NOT IN (1, -2, 2L)": "NOT (`a` IN (1, -2, CAST(2 AS BIGINT)))",
    "a NOT BETWEEN 1 AND 1.50": "NOT (`a` BETWEEN 1 AND 1.50)",
    r"a NOT LIKE '10\%%'": r"NOT (`a` LIKE '10\\%%')",
    "a || 'x' || b": "(`a` || 'x') || `b`",
    "nvl(a, b)": "COALESCE(`a`, `b`)",
    "case when a then b = 1 when c then d end": "CASE WHEN `a` THEN `b` = 1 WHEN `c` THEN `d` ELSE NULL END",
    "case a + 1 when 2 then b else c end = 'x'": "CASE WHEN (`a` + 1) = 2 THEN `b` ELSE `c` END = 'x'",
    "year(d) = 2026 and month(d) in (1, 2)": "(YEAR(`d`) = 2026) AND (MONTH(`d`) IN (1, 2))",
    "dayofmonth(d) = char_length(substr(a, 1, 3))": "DAY(`d`) = LENGTH(SUBSTRING(`a`, 1, 3))",
    "trim(leading from upper(lower(rtrim(a))))": "LTRIM(UPPER(LOWER(RTRIM(`a`))))",
    "a::decimal(5) > -a % 2": "CAST(`a` AS DECIMAL(5,0)) > ((0 - `a`) % 2)",
    "DATE '2020-02-29' = d": "CAST('2020-02-29' AS DATE) = `d`",
    "a = 1e3 and b = 5.": "(`a` = CAST(1000. AS DOUBLE)) AND (`b` = 5.)",
    r"a = 'it\'s' and b = '\\'": r"(`a` = 'it\'s') AND (`b` = '\\')",
    "`odd ``name` = TRUE": "`odd ``name` = TRUE",
    'a = "two words"': "`a` = 'two words'",
    "a = NULL": "`a` = NULL",
}

REFUSED = {
    "": "is empty",
    " ; ": "is empty",
    "a =": "cannot be read at character 3: something is missing after '='",
    "a = 1)": "cannot be read at character 6: ')' is not expected there",
    "a\nb = 1": "cannot be read at character 3: 'b' is not expected there",
    "a = 'x": "cannot be read: the ' at character 4 is never closed",
    "a IN ()": "cannot be read: IN has an empty list",
    "a = 1 -- or not": "holds a comment",
    "a /* x */ = 1": "holds a comment",
    "a = 1; b = 2": "is more than one expression",
    "reflect('x', 'y')": "uses REFLECT, which a filter may not use (docs/filters.md lists what it may)",
    "a IN (SELECT 1)": "uses a sub-query",
    "(SELECT true)": "uses a sub-query",
    "EXISTS (SELECT 1)": "uses a sub-query",
    "sum(a) > 1": "uses SUM",
    "row_number() OVER () = 1": "uses a window",
    "f(x -> x)": "uses F,",
    "a = :p": "uses a parameter",
    "a.b.c = 1": "uses a.b.c, a name with two dots",
    "dbo.HOST_NAME() = a": "uses dbo.HOST_NAME(), a name with a dot",
    "HOST_NAME('x') = a": "uses HOST_NAME with an argument",
    "a BETWEEN SYMMETRIC 1 AND 2": "uses BETWEEN with SYMMETRIC",
    "a LIKE b": "uses LIKE with another pattern than a text in quotes",
    "a LIKE 'x' ESCAPE '/'": "uses ESCAPE",
    r"a LIKE 'a\\b'": r"has a LIKE pattern with a backslash that is not before `%`, `_` or `\`",
    "a IS TRUE": "uses IS TRUE",
    "a = 'it''s'": r"uses strings side by side (a quote in a string is written \')",
    "IF(a, b, c)": "uses IF",
    "substring(a, 0, 2) = 'x'": "uses SUBSTRING with a start below 1",
    "substring(a, b, 2) = 'x'": "uses SUBSTRING with a start below 1",
    "substring(a, 2) = 'x'": "cannot be read: SUBSTRING lacks a part",
    "a = CURRENT_DATE()": "uses CURRENT_DATE",
    "CAST(a AS TIMESTAMP) = b": "uses CAST to TIMESTAMP",
    "CAST(a AS ARRAY<INT>) = b": "uses CAST to ARRAY<INT>",
    "CAST(a AS DECIMAL(39,0)) = b": "uses CAST to DECIMAL(39,0)",
    "trim(BOTH 'x' FROM a) = b": "uses TRIM with EXPRESSION",
    "a = 9223372036854775808": "holds the number 9223372036854775808, which is no BIGINT",
    "a = 1e400": "holds the number 1e400, which has more than 38 digits",
    "orders.a = 1": "names the column 'orders.a'; a filter is about one table: write `a`",
    "a" * 1001: "has 1,001 characters; the most is 1,000",
    "-" + "+".join("a" * 60): "is nested 61 deep; the most is 50",
    "- " * 499 + "a": "has 999 parts (columns, constants and operators); the most is 500",
    "not " * 249 + "a": "is nested 250 deep; the most is 50",
}

ON = {
    "p.id = c.parent": "`p`.`id` = `c`.`parent`",
    "(c.parent = upper(p.id) AND p.kind = 'A')": "(`c`.`parent` = UPPER(`p`.`id`)) AND (`p`.`kind` = 'A')",
}

ON_REFUSED = {
    "id = c.parent": "names the column 'id' without its article: write `p.id` or `c.id`",
    "x.id = c.parent": "names the article 'x'; here are only 'p' and 'c'",
    "p.id = p.parent": "needs an equality of a column of 'p' with one of 'c'",
    "p.id > c.parent": "needs an equality of a column of 'p' with one of 'c'",
    "p.id = c.parent OR p.a = c.a": "needs an equality of a column of 'p' with one of 'c'",
    "p.id = c.parent AND c.host = HOST_NAME()": "uses HOST_NAME(): that belongs in an article's filter",
}

PREPARED = {
    "REGION = HOST_NAME()": "`region` = HOST_NAME()",
    "`mixed case` = 'a'": "`Mixed Case` = 'a'",
    "code = HOST_NAME()": "RTRIM(`code`) = HOST_NAME()",
    "name LIKE 'a%' AND active": "(`name` LIKE 'a%') AND `active`",
    "staff = HOST_NAME()": "`staff` = CAST(HOST_NAME() AS INT)",
    "upper(HOST_NAME()) <> day": "CAST(UPPER(HOST_NAME()) AS DATE) <> `day`",
    "day BETWEEN '2020-1-1' AND DATE '2020-02-01'": (
        "`day` BETWEEN CAST('2020-1-1' AS DATE) AND CAST('2020-02-01' AS DATE)"
    ),
    "staff IN (1, '2')": "`staff` IN (1, CAST('2' AS INT))",
    "staff + 1 > total": "(CAST(`staff` AS BIGINT) + CAST(1 AS BIGINT)) > `total`",
    "staff / 2 = 1": "(CAST(`staff` AS DOUBLE) / CAST(2 AS DOUBLE)) = CAST(1 AS DOUBLE)",
    "price > 1.5": "`price` > 1.5",
    "ratio = weight": "CAST(`ratio` AS DOUBLE) = `weight`",
    "weight = HOST_NAME()": "`weight` = CAST(HOST_NAME() AS DOUBLE)",
    "price = HOST_NAME()": "`price` = CAST(HOST_NAME() AS DECIMAL(10,2))",
    "coalesce(region, 'x') = SUSER_SNAME()": "COALESCE(`region`, 'x') = SUSER_SNAME()",
    "year(day) = 2026": "YEAR(`day`) = 2026",
    "case when staff = 1 then region else 'x' end = HOST_NAME()": "CASE WHEN `staff` = 1 THEN `region` ELSE 'x' END = "
    "HOST_NAME()",
    "bytes IS NULL OR tags IS NULL": "(`bytes` IS NULL) OR (`tags` IS NULL)",
    "at >= '2020-01-01 00:00:00+01:00'": "`at` >= CAST('2020-01-01 00:00:00+01:00' AS TIMESTAMP)",
    "at_ntz < '2020-01-01'": "`at_ntz` < CAST('2020-01-01' AS TIMESTAMP_NTZ)",
    "CAST(at_ntz AS DATE) = day": "CAST(`at_ntz` AS DATE) = `day`",
    "staff = NULL": "`staff` = NULL",
}

UNPREPARED = {
    "regio = 'x'": "names the column 'regio'; did you mean region",
    "region": "is of type string, and must be true or false",
    "region AND active": "uses AND with a STRING; write a comparison",
    "region = staff": "compares STRING with INT; write a CAST of one of them",
    "region = 5": "compares STRING with INT; write a CAST of one of them",
    "staff = 'abc'": "compares INT with 'abc', which is no INT",
    "day = '2020-13-01'": "compares DATE with '2020-13-01', which is no DATE",
    "day = at_ntz": "compares DATE with TIMESTAMP_NTZ; write a CAST of one of them",
    "bytes = bytes": "compares values of type binary, which a filter may not do",
    "HOST_NAME() + 1 = staff": "uses + with a STRING; write CAST(… AS BIGINT)",
    "upper(staff) = 'X'": "uses UPPER() with a INT; write CAST(… AS STRING)",
    "month(staff) = 1": "uses MONTH() with a INT; write CAST(… AS DATE)",
    "length(staff) = 1": "uses LENGTH() with a INT; write CAST(… AS STRING)",
    "case when staff then 1 end = 1": "uses CASE with a INT; write a comparison",
    "case when staff = 1 then region else staff end = 1": "compares STRING with INT; write a CAST of one of them",
    "CAST(weight AS STRING) = 'X'": "casts DOUBLE to STRING, which a filter may not do",
    "CAST(bytes AS STRING) = 'X'": "casts BINARY to STRING, which a filter may not do",
    "price + 1 = HOST_NAME()": "compares DECIMAL with text; write CAST(… AS DECIMAL(20,2)) or the like",
    "at > '2020-01-01'": "depends on the time zone of the session that reads it",
    "at > at_ntz": "depends on the time zone of the session that reads it",
    "CAST(at AS DATE) = day": "depends on the time zone of the session that reads it",
}


@pytest.mark.parametrize(("written", "canonical"), READ.items())
def test_a_clause_is_read_and_its_canonical_text_read_again(written, canonical):
    clause = parse_filter(written)
    assert text(clause) == canonical
    assert parse_stored(canonical) == clause


@pytest.mark.parametrize(("written", "message"), REFUSED.items(), ids=lambda value: value[:40])
def test_a_clause_is_refused_by_name(written, message):
    before = sys.getrecursionlimit()
    with pytest.raises(ClauseError) as error:
        parse_filter(written)
    assert str(error.value).startswith(message)
    assert sys.getrecursionlimit() == before


def test_brackets_nest_deeper_than_the_usual_stack():
    assert text(parse_filter("(" * 490 + "a" + ")" * 490)) == "`a`"
    with pytest.raises(ClauseError, match="has 999 brackets; the most is 500"):
        parse_filter("(" * 999)


@pytest.mark.parametrize(("written", "canonical"), ON.items())
def test_an_on_is_read(written, canonical):
    on = parse_on(written, parent="p", article="c")
    assert text(on) == canonical
    assert parse_stored(canonical) == on


@pytest.mark.parametrize(("written", "message"), ON_REFUSED.items())
def test_an_on_is_refused_by_name(written, message):
    with pytest.raises(ClauseError) as error:
        parse_on(written, parent="p", article="c")
    assert str(error.value) == message


@pytest.mark.parametrize(("written", "canonical"), PREPARED.items())
def test_names_become_exact_and_casts_explicit(written, canonical):
    clause = prepare_clause(parse_filter(written), {None: TYPES})
    assert text(clause) == canonical
    assert parse_stored(canonical) == clause


@pytest.mark.parametrize(("written", "message"), UNPREPARED.items())
def test_types_that_do_not_go_together_are_refused(written, message):
    with pytest.raises(ClauseError) as error:
        prepare_clause(parse_filter(written), {None: TYPES})
    assert str(error.value).startswith(message)


def test_an_on_has_the_types_of_two_articles():
    on = parse_on("p.id = c.parent", parent="p", article="c")
    assert (
        text(prepare_clause(on, {"p": {"ID": "int"}, "c": {"Parent": "bigint"}})) == "`p`.`ID` = `c`.`Parent`"
    )
    with pytest.raises(ClauseError, match="compares INT with STRING"):
        prepare_clause(on, {"p": {"id": "int"}, "c": {"parent": "string"}})


def test_a_function_value_that_no_cast_takes_is_named():
    clause = prepare_clause(parse_filter("staff = HOST_NAME() OR day = SUSER_SNAME()"), {None: TYPES})
    host, name = SessionFunction.HOST_NAME, SessionFunction.SUSER_SNAME
    assert uncastable(clause, {host: " 12 ", name: "2020-01-01"}) is None
    assert uncastable(clause, {host: "12", name: None}) is None
    assert uncastable(clause, {host: "abc", name: "2020-01-01"}) == ("HOST_NAME", "INT")
    assert uncastable(clause, {host: "12", name: "today"}) == ("SUSER_SNAME", "DATE")


def written(part: Part) -> tuple[list[str], str | None, bool]:
    pairs = [f"{text(equality.of_row)} = {text(equality.of_other)}" for equality in part.equalities]
    return pairs, None if part.residual is None else text(part.residual), part.is_static


def test_a_filter_splits_at_its_top_ors():
    clause = parse_filter(
        "HOST_NAME() = upper(a) AND b = SUSER_SNAME() AND c > 1 AND d <=> HOST_NAME()"
        " OR everywhere OR size >= HOST_NAME() OR (a = HOST_NAME() OR b = HOST_NAME())"
    )
    assert [written(part) for part in parts_of(clause)] == [
        (["UPPER(`a`) = HOST_NAME()", "`b` = SUSER_SNAME()"], "(`c` > 1) AND (`d` <=> HOST_NAME())", False),
        ([], "`everywhere`", True),
        ([], "`size` >= HOST_NAME()", False),
        (["`a` = HOST_NAME()"], None, False),
        (["`b` = HOST_NAME()"], None, False),
    ]


def test_the_equalities_of_an_on_have_the_child_first():
    on = parse_on("p.id = c.parent AND c.kind = p.kind AND p.a = 1 AND p.a < c.b", parent="p", article="c")
    assert written(terms_of_on(on, article="c")) == (
        ["`c`.`parent` = `p`.`id`", "`c`.`kind` = `p`.`kind`"],
        "(`p`.`a` = 1) AND (`p`.`a` < `c`.`b`)",
        False,
    )


def test_filters_are_stored_as_canonical_json():
    filters = PublicationFilters(
        {
            "lines": parse_filter("b = SUSER_SNAME() OR b IS NULL"),
            "customers": parse_filter("a = HOST_NAME()"),
        },
        (
            JoinFilter(
                "lines", "orders", parse_on("orders.x = lines.y", parent="orders", article="lines"), True
            ),
            JoinFilter(
                "orders",
                "customers",
                parse_on("customers.k = orders.k", parent="customers", article="orders"),
            ),
        ),
    )
    read = PublicationFilters.from_json(filters.to_json())
    assert read == filters
    assert read.to_json() == filters.to_json()
    assert read.order == ("customers", "orders", "lines")
    assert read.functions == (SessionFunction.HOST_NAME, SessionFunction.SUSER_SNAME)
    assert read.columns_used("orders") == ("x", "k")
    assert read.columns_used("lines") == ("b", "y")
    assert [join.parent for join in read.joins_of("lines")] == ["orders"]
    assert [join.article for join in read.joins_to("customers")] == ["orders"]
    assert read.is_filtered("orders")
    assert not read.is_filtered("rates")


def test_a_circle_of_articles_is_named():
    assert parents_first("abc", [("c", "b"), ("b", "a")]) == ("c", "b", "a")
    with pytest.raises(CircleError) as error:
        parents_first("abc", [("a", "b"), ("b", "c"), ("c", "a")])
    assert error.value.circle[0] == error.value.circle[-1]
    assert {*error.value.circle} == {*"abc"}


def test_a_value_that_cannot_be_computed_is_null():
    clause = prepare_clause(
        parse_filter("total / 0 = 1 OR total + 1 > 0 OR CAST(region AS INT) = 1"), {None: TYPES}
    )
    row = {Column("total"): (1 << 63) - 1, Column("region"): "x"}
    assert evaluate(clause, row, {}) is None


@pytest.mark.parametrize(
    "filter_",
    [
        "region IN ('n', HOST_NAME(), name)",
        "region NOT IN ('n', NULL)",
        "total BETWEEN 1 AND staff",
        "region <=> HOST_NAME() OR NOT (staff < total) AND region IS NOT NULL",
    ],
)
def test_what_is_computed_in_process_is_what_the_model_computes(filter_):
    types = {"region": "string", "name": "string", "staff": "bigint", "total": "bigint"}
    clause = prepare_clause(parse_filter(filter_), {None: types})
    assert spark_operation(PublicationFilters({"a": clause})) is None
    rows = list(product(("n", "s", None), ("s", None), (0, 2, None), (1, 3)))
    hosts = {SessionFunction.HOST_NAME: "s"}
    with in_process():
        found = frame_of_tuples(
            rows, struct_of(", ".join(f"{name} {type_}" for name, type_ in types.items()))
        )
        value = column_of(
            clause, column=lambda each: F.col(each.name), function=lambda name: F.lit(hosts[name])
        )
        assert [value for (value,) in found.select(value.alias("value")).rows] == [
            evaluate(clause, {Column(name): each for name, each in zip(types, row, strict=True)}, hosts)
            for row in rows
        ]
