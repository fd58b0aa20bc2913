"""The terms of an article are a struct of constants, whatever its columns are called."""

from dataclasses import asdict

import pytest
from pyspark.sql import SparkSession

from enumeration.get_metadata import article_terms
from mergerepl.model.session_terms import ArticleTerms
from mergerepl.systables.contents import is_row_column

pytestmark = pytest.mark.spark

ODD = ("it's", "back\\slash", "`quoted`", 'a "b"', "x\ny", "Straße", "${env:HOME}", "--", None)
TERMS = [
    ArticleTerms(
        1,
        True,
        True,
        False,
        "priority",
        "delete_wins",
        ODD[:3],
        ODD[1:2],
        0,
        9,
        ODD,
        ("c0", "c7"),
        2**40,
        2**40 + 1,
    ),
    ArticleTerms(7, False, False, True, "o'dd\\", "pri'ority", (), (), 2**40, 2**41, (), ()),
]


def _listed(terms: dict[str, object]) -> dict[str, object]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in terms.items()}


def test_each_row_gets_the_terms_of_its_article(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1,), (7,), (8,), (1,)], "tablenick int")
    found = rows.select("tablenick", article_terms(TERMS, "tablenick").alias("article")).collect()
    expected = {each.tablenick: _listed(asdict(each)) for each in TERMS}
    for terms in expected.values():
        del terms["rejects"]
    for row in found:
        terms = row["article"] and {"tablenick": row["tablenick"]} | row["article"].asDict(recursive=True)
        assert terms == expected.get(row["tablenick"])


def test_image_columns_of_an_article_are_not_those_of_one_whose_number_begins_alike() -> None:
    of_first = ("row_1", "row_1_2", "row_1_12")
    of_others = ("row_10", "row_12_2", "base_1", "row", "rowguid")
    assert [name for name in (*of_first, *of_others) if is_row_column(name, [1])] == [*of_first]
    assert is_row_column("row_12_2", [1, 12])
