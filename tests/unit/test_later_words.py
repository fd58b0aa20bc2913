"""Words of a later version are answered from one table, with what to do instead, and are declared nowhere. No Spark."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

import mergerepl
from mergerepl import cdc
from mergerepl.cli.main import main
from mergerepl.config.problems import models_in
from mergerepl.config.schema import MODELS
from mergerepl.errors import ConfigurationError, MergeReplError
from mergerepl.model.later import LATER
from mergerepl.tracking.change_tracking import ChangeTracking
from tests import project_files as config

ARTICLE = {"name": "orders", "key": ["id"]}
FILES: dict[str, dict[str, Any]] = {
    "merge": {"publication": "sales", "publisher": "./hq", "articles": [ARTICLE]},
    "transactional": {
        "publication": "feed",
        "type": "transactional",
        "publisher": "./hq",
        "articles": [ARTICLE],
        "subscriptions": [{"subscriber": "./north"}],
    },
}


def refused(folder: Path, stated: dict[str, Any]) -> str:
    (folder / "hq").mkdir(exist_ok=True)
    (folder / "file.yml").write_text(yaml.safe_dump(stated))
    with pytest.raises(ConfigurationError) as error:
        config.load_documents(folder / "file.yml")
    return error.value.message


@pytest.mark.parametrize("type_", FILES)
def test_a_later_key_of_a_file_is_answered_with_the_way_out(tmp_path: Path, type_: str) -> None:
    for word, instead in LATER[type_].items():
        if ": " in word:
            continue
        for place in ("", "articles", "subscriptions"):
            stated = yaml.safe_load(yaml.safe_dump(FILES[type_]))
            stated.setdefault("subscriptions", [{"subscriber": "./north"}])
            (stated[place][0] if place else stated)[word] = True
            said = refused(tmp_path, stated)
            assert f"{word} is a key of a later version. {instead}" in said
            assert word not in models_in(MODELS[type_])[place].model_fields


@pytest.mark.parametrize(
    ("type_", "place", "key", "value"),
    [
        ("merge", "articles", "resolver", {"name": "three_way_text"}),
        ("merge", "articles", "compensate_for_errors", True),
        ("merge", "articles", "compensate_for_errors", "both"),
        ("transactional", "subscriptions", "sync_type", "lsn"),
        ("transactional", "subscriptions", "skip_errors", [547]),
        ("transactional", "subscriptions", "skip_errors", [515]),
    ],
)
def test_a_later_value_is_answered_with_the_way_out(
    tmp_path: Path, type_: str, place: str, key: str, value: Any
) -> None:
    stated = yaml.safe_load(yaml.safe_dump(FILES[type_]))
    (stated[place][0] if place else stated)[key] = value
    said = refused(tmp_path, stated)
    ways_out = [instead for words in LATER.values() for word, instead in words.items() if ": " in word]
    assert any(instead.rstrip(".") in said for instead in ways_out), said


@pytest.mark.parametrize("typo", ["transactionl", "Merge", "mrege", "snapshot", ""])
def test_a_wrong_type_is_offered_all_types(tmp_path: Path, typo: str) -> None:
    said = refused(tmp_path, {**FILES["merge"], "type": typo})
    assert all(f"`{type_}`" in said for type_ in MODELS)
    assert "line " in said


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        else:
            yield (*path, name), found


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (("tracking", "purge", "--to", "1", "--force"), LATER["tracking"]["force"]),
        (("tracking", "recover", "--rebuild-counters"), LATER["tracking"]["rebuild_counters"]),
        (("cdc", "load", "orders", "--scd-type", "2"), LATER["cdc"]["scd_type"]),
        (("cdc", "enable", "orders", "--large-columns=note"), LATER["cdc"]["large_columns"]),
        (("cdc", "jobs", "stop", "capture", "--hold", "1d"), LATER["cdc"]["hold"]),
        (("transactional", "browse", "--tracer"), LATER["transactional commands"]["tracer"]),
        (("sync", "--interactive"), LATER["commands"]["interactive"]),
        (("conflicts", "resolve", "3f2a", "--dismiss"), LATER["commands"]["dismiss"]),
    ],
)
def test_a_later_option_is_answered_with_the_way_out(arguments: tuple[str, ...], instead: str) -> None:
    shown = CliRunner().invoke(main, [*arguments])
    assert shown.exit_code == 2
    assert " ".join(f"is an option of a later version. {instead}".split()) in " ".join(shown.output.split())


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (("transactional", "tracer"), LATER["transactional commands"]["tracer"]),
        (("cdc", "register-source"), LATER["cdc"]["register_source"]),
        (("identity", "next"), LATER["commands"]["identity"]),
        (("agent", "profiles"), LATER["commands"]["profiles"]),
    ],
)
def test_a_later_command_is_answered_with_the_way_out(arguments: tuple[str, ...], instead: str) -> None:
    shown = CliRunner().invoke(main, [*arguments])
    assert shown.exit_code == 2
    assert " ".join(f"is a command of a later version. {instead}".split()) in " ".join(shown.output.split())


def test_no_command_declares_a_later_option() -> None:
    places = {"cdc": "cdc", "tracking": "tracking", "transactional": "transactional commands"}
    for path, command in commands(main):
        words = LATER[places.get(path[0], "commands")]
        assert not words.keys() & {each.name for each in command.params}, path
        assert "supported yet" not in CliRunner().invoke(main, [*path, "--help"]).output, path


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda root: cdc.Database(root).jobs.stop(hold="30 days"), LATER["cdc"]["hold"]),
        (
            lambda root: cdc.Database(root).instance("o").load(root, consumer="c", scd_type=2),
            LATER["cdc"]["scd_type"],
        ),
        (lambda root: cdc.Database(root).enable("o", large_columns={}), LATER["cdc"]["large_columns"]),
        (
            lambda root: ChangeTracking(root).recover(rebuild_counters=True),
            LATER["tracking"]["rebuild_counters"],
        ),
    ],
)
def test_a_later_argument_is_answered_with_the_way_out(
    tmp_path: Path, call: Callable[[Path], object], instead: str
) -> None:
    with pytest.raises(MergeReplError) as error:
        call(tmp_path)
    assert error.value.message.endswith(instead)


def test_a_word_that_nobody_knows_is_an_unknown_word() -> None:
    with pytest.raises(AttributeError):
        cdc.register_everything  # noqa: B018
    with pytest.raises(TypeError):
        cdc.Database(".").jobs.stop(held="30 days")
    assert "No such option" in CliRunner().invoke(main, ["sync", "--forse"]).output
    assert mergerepl.__all__
