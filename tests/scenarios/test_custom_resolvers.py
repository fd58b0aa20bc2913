"""Resolvers of one's own: both replicas come to what they decide, and one that fails changes nothing."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import mergerepl
from mergerepl.cli.main import main
from mergerepl.errors import ConflictError
from tests.networks import Pair

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "conflicts.md"
STOCK = "select cast(id as int) as id, 10 as qty, 'as it was' as note from range(4)"


def example() -> str:
    """Return the function that the documentation shows, as it stands there."""
    block = PAGE.read_text(encoding="utf-8").split("```python\n# shop/rules.py\n")[1]
    return block.split("```")[0]


def doubled(conflicts: DataFrame, _: mergerepl.ResolverContext) -> DataFrame:
    answers = conflicts.select("rowguid", F.lit("default").alias("outcome"))
    return answers.unionByName(answers)


def failing(conflicts: DataFrame, _: mergerepl.ResolverContext) -> DataFrame:
    return conflicts.select("rowguid", F.raise_error(F.lit("out of order")).cast("string").alias("outcome"))


def hanging(conflicts: DataFrame, _: mergerepl.ResolverContext) -> DataFrame:
    time.sleep(600)
    return conflicts


@pytest.mark.slow
def test_a_function_of_the_agent_decides(
    spark: SparkSession, replica_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mergerepl.merge.resolvers.functions._registered", {})
    custom = {"name": "custom", "function": "stock_rules"}
    settings = {"key": ["id"], "tracking": "column", "resolver": custom}
    pair = Pair(spark, replica_dir, {"stock": (STOCK, settings)})
    pair.edit(
        "update hq.stock set qty = 12 where id in (0, 1)",
        "update north.stock set qty = 15 where id in (0, 1, 3)",
        "update hq.stock set qty = 11 where id = 2",
        "delete from north.stock where id = 2",
        "update hq.stock set qty = 14, note = 'discontinued' where id = 3",
        "update hq.stock set note = 'urgent' where id = 1",
    )
    pair.sync_refused(ConflictError, "'stock_rules', which this agent does not have")
    for function, words in (
        (doubled, "several answers"),
        (failing, "failed: .*out of order"),
        (lambda *_: None, "returned NoneType, not a DataFrame"),
    ):
        mergerepl.register_resolver("stock_rules", function)
        pair.sync_refused(ConflictError, f"'stock_rules' (answered what cannot be used: )?{words}")
    mergerepl.register_resolver("stock_rules", hanging)
    monkeypatch.setattr("mergerepl.merge.resolvers.answers.resolver_timeout_s", lambda: 0.5)
    pair.sync_refused(ConflictError, r"'stock_rules' took more than 0\.5 s \(`resolver_timeout_s`\)")
    monkeypatch.undo()
    monkeypatch.setattr("mergerepl.merge.resolvers.functions._registered", {})
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "rules.py").write_text(example())
    agent = tmp_path / "agent.yml"
    agent.write_text(f"resolvers:\n  stock_rules: shop.rules:stock\npython_path: [{tmp_path}]\n")
    agent.chmod(0o600)
    monkeypatch.setenv("MERGEREPL_AGENT_CONFIG", str(agent))
    session = pair.sync()
    assert session.upload.conflicts == 4
    assert pair.same_rows("stock") == [(0, 17, "as it was"), (1, 12, "urgent"), (2, 11, "as it was")]
    assert pair.sync().status == "nothing_to_do"
    shown = CliRunner().invoke(
        main, ["conflicts", "show", "-f", str(pair.folder / "hq"), "--table", "stock", "--json"]
    )
    logged = {each["key"]["id"]: each for each in json.loads(shown.output)["conflicts"]}
    assert {each["resolver"] for each in logged.values()} == {"stock_rules"}
    assert (logged["0"]["note"], logged["1"]["note"]) == ("both counted", None)
    assert logged["0"]["losing_row"] == {"id": 0, "qty": 15, "note": "as it was"}
    # A sum that was made is known to both: the next change starts from there.
    pair.edit("update north.stock set qty = 20 where id = 0")
    pair.sync()
    assert pair.same_rows("stock")[0] == (0, 20, "as it was")
