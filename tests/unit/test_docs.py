"""The pages say what the code does: generated where possible, guarded where not."""

import ast
import inspect
import json
import re
from dataclasses import fields
from importlib import util
from pathlib import Path

import pytest

from mergerepl import config, errors
from mergerepl.cli.main import COMMANDS
from mergerepl.configuration.schema import ArticleKeys, PublicationKeys, ResolverKeys, SubscriptionKeys
from mergerepl.model import results

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def headings(text: str) -> set[str]:
    return set(re.findall(r"^#+ (.+)$", text, re.MULTILINE))


def test_the_command_reference_is_what_help_says():
    spec = util.spec_from_file_location("cli_reference", ROOT / "scripts" / "cli_reference.py")
    script = util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert read("cli.md") == script.page(), "run: python scripts/cli_reference.py"


def test_every_error_has_its_paragraph():
    assert set(errors.__all__) <= headings(read("errors.md"))


def test_every_error_is_drawn_in_the_module_tree():
    drawn = set(re.findall(r"\w+Error", errors.__doc__))
    assert {name for name in errors.__all__ if name.endswith("Error")} <= drawn


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name.endswith("Error")])
def test_an_errors_page_and_class_agree_on_the_exit_code(name):
    kind = getattr(errors, name)
    section = read("errors.md").split(f"\n## {name}\n")[1].split("\n## ")[0]
    assert f"exit code {kind.exit_code}" in section
    assert ("transient" in section) is issubclass(kind, errors.Transient)


def test_every_command_that_reports_has_its_json_described():
    described = headings(read("cli-json.md"))
    commands = [name for names in COMMANDS.values() for name in names]
    missing = [name for name in commands if name != "conflicts" and name not in described]
    assert missing == []
    assert {"conflicts list", "conflicts show"} <= described


def test_every_field_of_a_result_is_described():
    described = set(re.findall(r"\w+", read("cli-json.md")))
    kinds = [
        kind
        for _, kind in inspect.getmembers(results, inspect.isclass)
        if kind.__module__ == results.__name__
    ]
    assert {field.name for kind in kinds for field in fields(kind)} - described == set()


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_json_and_python_examples_parse(page):
    text = read(page)
    for language, parse in (("json", json.loads), ("python", ast.parse)):
        for block in re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL):
            parse(block)


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.rglob("*.md")))
def test_links_between_pages_lead_somewhere(page):
    (path,) = DOCS.rglob(page)
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{page} links to {target}"


def test_every_configuration_key_is_described():
    named = set(re.findall(r"\w+", read("configuration.md")))
    models = (PublicationKeys, ArticleKeys, SubscriptionKeys, ResolverKeys)
    assert {key for model in models for key in model.model_fields} - named == set()


def test_the_configuration_example_is_valid(tmp_path):
    (tmp_path / "hq").mkdir()
    example = re.search(r"```yaml\n(.*?)```", read("configuration.md"), re.DOTALL).group(1)
    (tmp_path / "sales.yml").write_text(example)
    assert len(config.load(tmp_path / "sales.yml").subscriptions) == 3


def test_every_environment_variable_is_described():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "mergerepl").rglob("*.py")]
    read_by_code = {name for text in sources for name in re.findall(r"MERGEREPL_[A-Z_]*[A-Z]", text)}
    for_tests = {"MERGEREPL_FAILPOINT"}
    assert read_by_code - for_tests - set(re.findall(r"MERGEREPL_\w+", read("configuration.md"))) == set()
