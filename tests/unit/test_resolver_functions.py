"""Where an agent finds the functions of `resolver: custom`: in its own file, never in a replica."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conflict.errors import ResolverError, UnknownFunctionError
from mergerepl import register_resolver
from mergerepl.errors import ConfigurationError
from mergerepl.merge.resolvers.functions import known_functions, loaded, require_function
from mergerepl.model.article import PublishedArticle
from mergerepl.model.resolvers import ResolverInfo, resolver_info


def article(function: str = "stock_rules") -> PublishedArticle:
    return PublishedArticle(
        publication="sales",
        pubid="p",
        name="stock",
        artid="a",
        nickname=1,
        table="stock",
        identity=("id",),
        columns=("id", "qty"),
        types=("int", "int"),
        column_tracking=False,
        resolution="row",
        resolver="custom",
        conflict_table="MSmerge_conflict_sales_stock",
        vertical=False,
        resolver_info=ResolverInfo(function=function).stored,
    )


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An agent's file, and a module `own_rules` beside it."""
    (tmp_path / "own_rules.py").write_text("value = 1\n\ndef stock(conflicts, context): ...\n")
    path = tmp_path / "agent.yml"
    path.write_text(f"resolvers: {{stock_rules: 'own_rules:stock'}}\npython_path: [{tmp_path}]\n")
    path.chmod(0o600)
    monkeypatch.setenv("MERGEREPL_AGENT_CONFIG", str(path))
    monkeypatch.setattr("mergerepl.merge.resolvers.functions._registered", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield path
    sys.modules.pop("own_rules", None)


def test_a_function_is_found_by_its_name(agent: Path, tmp_path: Path) -> None:
    assert known_functions() == {"stock_rules": "own_rules:stock"}
    require_function(article())
    assert loaded(article(), "stock_rules", [tmp_path / "hq"]).__name__ == "stock"


def test_an_unknown_function_is_named_with_those_there_are(agent: Path) -> None:
    with pytest.raises(UnknownFunctionError, match="'others', which this agent does not have") as refused:
        require_function(article("others"))
    assert "It has: stock_rules (`mergerepl conflicts resolvers`)" in str(refused.value)
    assert all(
        place in str(refused.value) for place in (str(agent), "MERGEREPL_AGENT_CONFIG", "entry points")
    )
    agent.write_text("")
    with pytest.raises(UnknownFunctionError, match="It has: none "):
        require_function(article())


def test_no_function_comes_from_a_replica(agent: Path, tmp_path: Path) -> None:
    with pytest.raises(ResolverError, match="lies in the replica"):
        loaded(article(), "stock_rules", [tmp_path])
    for name in ("os:system", "../rules", "/tmp/rules.py", "os.system"):
        stored = str(article().resolver_info).replace("stock_rules", name)
        with pytest.raises(ValueError, match="resolver_info is"):
            resolver_info(stored)


def test_a_file_that_others_may_write_is_not_read(agent: Path) -> None:
    agent.chmod(0o622)
    with pytest.raises(ConfigurationError, match="others may write it"):
        known_functions()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "it cannot be read"),
        ("handlers: {}", "it may state `resolvers`"),
        ("resolvers: [a]", "it may state `resolvers`"),
        ("resolvers: {stock_rules: own_rules}", "must be `module:function`"),
        ("resolvers: {stock_rules: 'own_rules:f()'}", "must be `module:function`"),
        ("resolvers: {stock_rules: 7}", "must be `module:function`"),
        ("resolvers: {additive: 'own_rules:stock'}", "'additive' cannot be the name of a resolver"),
        ("resolvers: {'a:b': 'own_rules:stock'}", "'a:b' cannot be the name of a resolver"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(agent: Path, text: str, message: str) -> None:
    agent.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        known_functions()


@pytest.mark.parametrize(
    ("place", "message"), [("own_rules:gone", "AttributeError"), ("own_rules:value", "be called")]
)
def test_what_is_no_function_is_refused(agent: Path, tmp_path: Path, place: str, message: str) -> None:
    agent.write_text(agent.read_text().replace("own_rules:stock", place))
    with pytest.raises(ResolverError, match=message):
        loaded(article(), "stock_rules", [tmp_path / "hq"])


def test_a_registered_function_has_a_name_of_its_own(agent: Path) -> None:
    register_resolver("mine", lambda conflicts, context: conflicts)
    assert "mine" in known_functions()
    with pytest.raises(ConfigurationError, match="cannot be called"):
        register_resolver("mine", "rules")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="cannot be the name"):
        register_resolver("priority", lambda conflicts, context: conflicts)
