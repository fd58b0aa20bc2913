"""What each resolver comes to: who wins and what value is made, of the values that two sides changed a column to."""

import pytest
from pyspark.sql import SparkSession

from mergerepl.model.resolvers import CUSTOM, RESOLVERS
from tests import phases
from tests.phases import Contest, Ruling

pytestmark = pytest.mark.spark

V = ("v",)
BOTH = ("update", "update")
TO_HQ, TO_NORTH = ("update", "metadata"), ("metadata", "update")


def hq(v: str | None, note: str | None = None) -> Ruling:
    """The publisher's row wins as it is."""
    return Ruling(v, "p", "hq", note=note)


def north(v: str | None, note: str | None = None) -> Ruling:
    return Ruling(v, "s", "north", note=note)


def made(v: str | None, a: str = "p") -> Ruling:
    return Ruling(v, a, "hq" if a == "p" else "north", V)


def add(type_: str, one: str, other: str, **more: object) -> Contest:
    return Contest("additive", type_, one, other, **more)  # type: ignore[arg-type]


def mean(type_: str, one: str, other: str) -> Contest:
    return Contest("averaging", type_, one, other)


def text(one: str, other: str, delimiter: str = "===") -> Contest:
    return Contest("merge_text", "string", one, other, delimiter=delimiter)


OVERFLOW = "v: overflow"
SUMS: dict[str, tuple[Contest, Ruling]] = {
    "a sum": (add("int", "12", "15"), made("27")),
    "a sum in the row of the side that wins": (add("int", "12", "15", priority=50.0), made("27", "s")),
    "equal changes are two": (add("int", "11", "11", same_a=True), made("22")),
    "a change of the publisher alone is no sum": (add("int", "12", "10", only="hq"), hq("12")),
    "a change of the subscriber alone is no sum, and is not lost": (
        add("int", "10", "12", only="north"),
        Ruling("12", "p", "hq"),
    ),
    "NULL gives way": (add("int", "null", "5"), made("5")),
    "NULL at the subscriber gives way": (add("int", "5", "null"), made("5")),
    "two NULLs": (add("int", "null", "null"), made(None)),
    "out of range": (add("int", "2147483647", "1"), hq("2147483647", OVERFLOW)),
    "out of a byte's range": (add("tinyint", "-100", "-100"), hq("-100", OVERFLOW)),
    "out of the largest range": (
        add("bigint", "9223372036854775807", "9223372036854775807"),
        hq("9223372036854775807", OVERFLOW),
    ),
    "decimals": (add("decimal(5,2)", "0.01", "0.02"), made("0.03")),
    "decimals out of range": (add("decimal(5,2)", "999.99", "0.01"), hq("999.99", OVERFLOW)),
    "decimals of the most digits": (
        add("decimal(35,2)", "111111111111111111111111111111111.11", "1.01"),
        made("111111111111111111111111111111112.12"),
    ),
    "floating numbers": (add("double", "0.5", "0.25"), made("0.75")),
    "a mean": (mean("int", "10", "20"), made("15")),
    "a mean goes toward zero": (mean("int", "1", "2"), made("1")),
    "a mean of negative numbers goes toward zero": (mean("int", "-1", "-2"), made("-1")),
    "a mean of the largest numbers": (
        mean("bigint", "9223372036854775807", "9223372036854775805"),
        made("9223372036854775806"),
    ),
    "a mean of decimals is rounded half up": (mean("decimal(5,2)", "0.01", "0.02"), made("0.02")),
    "a mean of negative decimals is rounded away from zero": (
        mean("decimal(5,2)", "-0.01", "-0.02"),
        made("-0.02"),
    ),
    "a mean with NULL": (mean("int", "null", "4"), made("4")),
    "a mean of the largest doubles": (mean("double", "1.7E308D", "1.7E308D"), made("1.7E308")),
}
TEXTS: dict[str, tuple[Contest, Ruling]] = {
    "texts with a common beginning": (text("'abX'", "'abYZ'"), made("abX===YZ")),
    "one text begins with the other": (text("'ab'", "'abc'"), made("ab===c")),
    "the other begins with the one": (text("'abc'", "'ab'"), made("abc===")),
    "nothing in common": (text("'x'", "'y'", "; "), made("x; y")),
    "NULL is no text": (text("null", "'y'"), made("===y")),
    "NULL and no text": (text("null", "''"), hq(None)),
    "letters beyond the first plane": (text("'\U0001f600a'", "'\U0001f600b'"), made("\U0001f600a===b")),
    "an accent of its own": (text("'e\u0301'", "'e\u0300'"), made("e\u0301===\u0300")),
}
NO_BASE = "v: no common ancestor is known"


def delta(type_: str, base: str | None, one: str, other: str, **more: object) -> Contest:
    return Contest("delta", type_, one, other, base=base, **more)  # type: ignore[arg-type]


DELTAS: dict[str, tuple[Contest, Ruling]] = {
    "both differences": (delta("int", "10", "12", "15"), made("17")),
    "equal differences are two": (delta("int", "10", "11", "11", same_a=True), made("12")),
    "a difference of the subscriber alone": (
        delta("int", "10", "10", "15", only="north"),
        Ruling("15", "p", "hq"),
    ),
    "the number before is unknown": (delta("int", None, "12", "15"), hq("12", NO_BASE)),
    "there was no row before": (delta("int", phases.NO_ROW, "12", "15"), hq("12", NO_BASE)),
    "there was no number before": (delta("int", "null", "12", "15"), made("27")),
    "NULL gives way to the other's number": (delta("int", "10", "null", "15"), made("15")),
    "only the result must fit": (delta("tinyint", "100", "120", "107"), made("127")),
    "a result that does not fit": (delta("tinyint", "100", "120", "108"), hq("120", OVERFLOW)),
    "differences of decimals": (delta("decimal(35,2)", "1.10", "2.20", "0.05"), made("1.15")),
}


def union(base: str | None, one: str, other: str) -> Contest:
    return Contest("union", "array<string>", one, other, base=base)


UNIONS: dict[str, tuple[Contest, Ruling]] = {
    "one removes, the other adds": (
        union("array('x', 'z')", "array('z')", "array('x', 'z', 'y')"),
        made("[z, y]"),
    ),
    "both remove": (union("array('x', 'z')", "array('z', 'a')", "array('z')"), made("[z, a]")),
    "the publisher's order first": (
        union("array()", "array('b', 'a')", "array('c', 'a')"),
        made("[b, a, c]"),
    ),
    "each once": (union("array('x', 'x')", "array('x', 'x', 'a')", "array('x', 'b')"), made("[x, a, b]")),
    "what was there is unknown": (
        union(None, "array('z')", "array('x', 'z')"),
        Ruling("[z, x]", "p", "hq", V, NO_BASE),
    ),
    "no array at the subscriber": (union("array('x')", "array('x', 'y')", "null"), made("[x, y]")),
    "NULL is an item": (union("array('x')", "array('x', null)", "array('x', 'y')"), made("[x, null, y]")),
}
STRUCT, MAP = "struct<a:int,b:struct<c:int,d:int>>", "map<string,int>"


def struct(a: str, c: str, d: str) -> str:
    return f"struct({a}, struct({c}, {d}))"


FIELDS: dict[str, tuple[Contest, Ruling]] = {
    "each side another field": (
        Contest("fields", STRUCT, struct("1", "2", "3"), struct("0", "0", "9"), base=struct("0", "0", "0")),
        made("{1, {2, 3}}"),
    ),
    "a field of both is the winner's": (
        Contest(
            "fields",
            STRUCT,
            struct("1", "0", "3"),
            struct("2", "5", "0"),
            base=struct("0", "0", "0"),
            priority=50.0,
        ),
        made("{2, {5, 3}}", "s"),
    ),
    "a part that one set to NULL": (
        Contest("fields", STRUCT, "struct(0, null)", struct("1", "0", "0"), base=struct("0", "0", "0")),
        made("{1, null}"),
    ),
    "no struct at one side": (
        Contest("fields", STRUCT, "null", struct("1", "0", "0"), base=struct("0", "0", "0")),
        hq(None),
    ),
    "the struct before is unknown": (
        Contest("fields", STRUCT, struct("1", "0", "0"), struct("0", "1", "0")),
        hq("{1, {0, 0}}", NO_BASE),
    ),
    "keys added, removed and changed": (
        Contest(
            "fields",
            MAP,
            "map('kept', 1, 'changed', 5, 'new', 6)",
            "map('kept', 1, 'removed', 1, 'changed', 1, 'other', 7)",
            base="map('kept', 1, 'removed', 1, 'changed', 1)",
        ),
        made("{kept -> 1, changed -> 5, new -> 6, other -> 7}"),
    ),
    "a key that both changed is the winner's": (
        Contest("fields", MAP, "map('k', 2)", "map('k', 3)", base="map('k', 1)"),
        made("{k -> 2}"),
    ),
    "a value NULL is no missing key": (
        Contest("fields", MAP, "map('k', cast(null as int))", "map('k', 1, 'm', 2)", base="map('k', 1)"),
        made("{k -> null, m -> 2}"),
    ),
}
NAN, MINUS_ZERO = "double('NaN')", "-0.0D"
ORDER: dict[str, tuple[Contest, Ruling]] = {
    "the larger": (Contest("maximum", "int", "3", "15"), north("15")),
    "the larger at the publisher": (Contest("maximum", "int", "15", "3", priority=50.0), hq("15")),
    "the smaller": (Contest("minimum", "int", "3", "15", priority=50.0), hq("3")),
    "the smaller at the subscriber": (Contest("minimum", "int", "15", "3"), north("3")),
    "a value against NULL": (Contest("maximum", "int", "null", "-3"), north("-3")),
    "NULL is not the smallest": (Contest("minimum", "int", "3", "null", priority=50.0), hq("3")),
    "two NULLs are the default's": (Contest("maximum", "int", "null", "null", priority=50.0), north(None)),
    "a tie is the default's": (Contest("maximum", "int", "3", "3", priority=50.0), north("3")),
    "a tie is the default's, the publisher": (Contest("maximum", "int", "3", "3"), hq("3")),
    "a number that is none is the largest": (Contest("maximum", "double", "1e300", NAN), north("NaN")),
    "and not the smallest": (Contest("minimum", "double", NAN, "1.0"), north("1.0")),
    "zeros are equal": (Contest("maximum", "double", MINUS_ZERO, "0.0", priority=50.0), north("0.0")),
    "decimals": (Contest("maximum", "decimal(38,10)", "1.0000000001", "1.0000000002"), north("1.0000000002")),
    "the column of priorities": (Contest("priority_column", "smallint", "1", "2"), north("2")),
    "the later date": (
        Contest("datetime_later_wins", "date", "'2024-01-01'", "'2024-01-02'"),
        north("2024-01-02"),
    ),
    "the earlier date": (
        Contest("datetime_earlier_wins", "date", "'2024-01-01'", "'2024-01-02'", priority=50.0),
        hq("2024-01-01"),
    ),
    "instants across a change of clocks": (
        Contest(
            "datetime_later_wins",
            "timestamp",
            "timestamp'2024-10-27 02:30:00+02:00'",
            "timestamp'2024-10-27 02:10:00+01:00'",
        ),
        north("2024-10-27 01:10:00"),
    ),
    "a timestamp without a zone": (
        Contest("datetime_earlier_wins", "timestamp_ntz", "'2024-01-01 00:00:01'", "'2024-01-01 00:00:00.5'"),
        north("2024-01-01 00:00:00.5"),
    ),
}
SIDES: dict[str, tuple[Contest, Ruling]] = {
    "the subscriber always wins": (Contest("subscriber_wins", "int", "1", "2"), north("2")),
    "also by its delete": (Contest("subscriber_wins", "int", "1", None), Ruling(None, None, "north")),
    "also against a delete": (Contest("subscriber_wins", "int", None, "2"), north("2")),
    "the publisher always wins": (Contest("publisher_wins", "int", "1", "2", priority=50.0), hq("1")),
    "also against the subscriber's delete": (
        Contest("publisher_wins", "int", "1", None, priority=50.0),
        hq("1"),
    ),
    "who changed more": (Contest("most_changes_win", "int", "1", "2", priority=50.0, only=None), north("2")),
    "priority": (Contest("priority", "int", "1", "2", priority=50.0), north("2")),
}
DELETES: dict[str, tuple[Contest, Ruling]] = {
    "a delete is the default's": (Contest("additive", "int", None, "2"), Ruling(None, None, "hq")),
    "a delete is the default's, too": (
        Contest("maximum", "int", "1", None, priority=50.0),
        Ruling(None, None, "north"),
    ),
    "the update wins": (Contest("additive", "int", None, "2", update_delete="update_wins"), north("2")),
    "the update of the publisher wins": (
        Contest("additive", "int", "1", None, priority=50.0, update_delete="update_wins"),
        hq("1"),
    ),
    "the delete wins": (
        Contest("maximum", "int", "1", None, update_delete="delete_wins"),
        Ruling(None, None, "north"),
    ),
    "the publisher wins a delete": (
        Contest("maximum", "int", "1", None, priority=50.0, update_delete="publisher_wins"),
        hq("1"),
    ),
    "the subscriber wins a delete": (
        Contest("additive", "int", "1", None, update_delete="subscriber_wins"),
        Ruling(None, None, "north"),
    ),
}
ONE_WAY: dict[str, tuple[Contest, Ruling]] = {
    "of the publisher alone, the larger priority is the subscriber's": (
        Contest("download_only", "int", "1", "2", priority=50.0),
        hq("1"),
    ),
    "of the subscriber alone": (Contest("upload_only", "int", "1", "2"), north("2")),
    "of the subscriber alone, by rows": (Contest("upload_only", "int", "1", "2", only="hq"), north("2")),
    "a delete of the subscriber is put back": (
        Contest("download_only", "int", "1", None, priority=50.0),
        hq("1"),
    ),
    "a delete of the subscriber is taken": (
        Contest("upload_only", "int", "1", None),
        Ruling(None, None, "north"),
    ),
}
BY_COLUMNS: dict[str, tuple[Contest, Ruling]] = {
    "a sum beside columns": (add("int", "12", "15", resolution="columns"), made("27")),
    "the larger by columns": (Contest("maximum", "int", "1", "2", resolution="columns"), north("2")),
}
CASES = SUMS | DELTAS | UNIONS | FIELDS | TEXTS | ORDER | SIDES | DELETES | BY_COLUMNS | ONE_WAY


FIRST = {contest.resolver: contest for contest, _ in reversed(CASES.values())}
ON_SPARK = [
    rule
    for rule, (contest, _) in CASES.items()
    if contest.resolver in ("additive", "union", "fields", "maximum")
    if phases.setting_of(contest) == phases.setting_of(FIRST[contest.resolver])
]
"""The first article of the resolvers with the largest expressions: what they are made of, tests/frames runs on both."""


@pytest.fixture(scope="module")
def ruled(spark: SparkSession, request: pytest.FixtureRequest) -> dict[str, Ruling]:
    """Every ruling that a test of this run asks for."""
    contests = {rule: contest for rule, (contest, _) in CASES.items()}
    return phases.ruled(spark, phases.asked(request, spark, contests))


@pytest.mark.on_spark(*(f"-{rule}" for rule in ON_SPARK))
@pytest.mark.parametrize("rule", CASES)
def test_what_a_contest_comes_to(ruled: dict[str, Ruling], rule: str) -> None:
    assert ruled[rule]._replace(colv=None, acts=(None, None)) == CASES[rule][1]


STAMPS = {
    "a sum": ("a: hq 2, v: hq 2", BOTH),
    "equal changes are two": ("v: hq 2", BOTH),
    "a change of the publisher alone is no sum": ("a: hq 2, v: hq 1", TO_NORTH),
    "a change of the subscriber alone is no sum, and is not lost": ("a: hq 2, v: north 1", BOTH),
    "NULL gives way": ("a: hq 2, v: hq 2", BOTH),
    "two NULLs": ("a: hq 2, v: hq 1", TO_NORTH),
    "out of range": ("a: hq 2, v: hq 2", TO_NORTH),
    "the larger": ("a: hq 2, v: hq 2", TO_HQ),
}
"""The version of each column, and what each side does: a made value is the resolution's, or a later edit would undo it."""


@pytest.mark.on_spark(*(f"-{rule}" for rule in ON_SPARK))
@pytest.mark.parametrize("rule", STAMPS)
def test_how_a_made_value_is_recorded(ruled: dict[str, Ruling], rule: str) -> None:
    assert (ruled[rule].colv, ruled[rule].acts) == STAMPS[rule]


def test_every_resolver_of_ours_has_a_case() -> None:
    assert {contest.resolver for contest, _ in CASES.values()} == set(RESOLVERS) - {CUSTOM}
