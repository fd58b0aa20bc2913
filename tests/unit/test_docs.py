"""The pages say what the code does: generated where possible, guarded where not."""

import ast
import json
import re
from importlib import import_module
from pathlib import Path

import click
import pytest
import yaml

from mergerepl import errors
from mergerepl.cli.main import COMMANDS
from mergerepl.config.meanings import MEANINGS
from mergerepl.config.problems import models_in
from mergerepl.config.schema import MODELS
from tests import project_files as config
from tests.commands_of_docs import NOT_TYPED, PLAYED, blocks, commands
from tests.project_scripts import script

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = ("mergerepl", "triggers", "enumeration", "conflict")
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
"""All pages, those beside the code too."""


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def headings(text: str) -> set[str]:
    return set(re.findall(r"^#+ (.+)$", text, re.MULTILINE))


def test_the_command_reference_is_what_help_says():
    assert read("cli.md") == script("cli_reference").page(), "run: python scripts/cli_reference.py"


ERRORS = dict(re.findall(r"^\| (?:↳ )?(\w+) \|(?: (\d+))? \|", read("errors.md"), re.MULTILINE))
"""The errors of the page and their exit codes."""


def test_every_error_has_its_row():
    assert set(errors.__all__) <= set(ERRORS)


def every_error(kind=errors.MergeReplError):
    """The class and those derived from it, wherever they are defined."""
    return {kind}.union(*map(every_error, kind.__subclasses__()))


def test_every_error_that_json_names_is_documented():
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            if re.search(r"^class \w+Error\(", file.read_text(encoding="utf-8"), re.MULTILINE):
                import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
    kinds = every_error() | every_error(click.UsageError) - {click.exceptions.NoArgsIsHelpError}
    words = set(re.findall(r"\w+", read("errors.md")))
    # The server of the tests of stores has errors of click of its own.
    assert {kind.__name__ for kind in kinds if not kind.__module__.startswith("flask")} - words == set()


def test_every_error_is_drawn_in_the_module_tree():
    drawn = set(re.findall(r"\w+Error", errors.__doc__))
    assert {name for name in errors.__all__ if name.endswith("Error")} <= drawn


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name.endswith("Error")])
def test_an_errors_page_and_class_agree_on_the_exit_code(name):
    kind = getattr(errors, name)
    assert ERRORS[name] == str(kind.exit_code)
    assert (kind.exit_code == 3) is issubclass(kind, errors.Transient)


def test_every_command_that_reports_has_its_json_described():
    described = headings(read("cli-json.md"))
    commands = [name for names in COMMANDS.values() for name in names]
    missing = [name for name in commands if name != "conflicts" and name not in described]
    assert missing == []
    assert {"conflicts list", "conflicts show"} <= described


def test_the_json_reference_is_what_the_results_say():
    assert read("cli-json.md") == script("json_reference").page(), "run: python scripts/json_reference.py"


def undescribed(made, value, types):
    """Yield the keys of an object, and of those in it, that none of some types has."""
    if isinstance(value, list):
        for each in value:
            yield from undescribed(made, each, types)
    if not isinstance(value, dict) or not types:
        return
    keys = {}
    for kind in types:
        for name, annotation in (kind.types if isinstance(kind, made.Keys) else made.types_of(kind)).items():
            keys.setdefault(name, set()).update(made.named(annotation))
    yield from sorted(set(value) - set(keys))
    for name, part in value.items():
        yield from undescribed(made, part, keys.get(name, ()))


@pytest.mark.parametrize("product", ["cdc", "merge", "options", "tracking", "transactional"])
def test_every_key_that_a_command_prints_is_described(product):
    made = script("json_reference")
    unknown = set()
    for printed in (
        (ROOT / "tests" / "golden" / f"{product}.txt").read_text(encoding="utf-8").split("$ mergerepl ")[1:]
    ):
        words, found = printed.split()[:2], re.search(r"^\{.*", printed, re.MULTILINE | re.DOTALL)
        command = next((each for each in (" ".join(words), words[0]) if each in made.RESULTS), None)
        if found is None or command is None or "--dry-run" in printed.partition("\n")[0]:
            continue
        value, _ = json.JSONDecoder().raw_decode(re.sub(r": <\w+>", ": 0", found[0]))
        entries = made.RESULTS[command].items()
        kinds = [each for of, each in entries if words[1] in re.findall(r"\w+", of)] or [
            each for _, each in entries
        ]
        kinds += made.RESULTS["sync"].values() if command == "abort" else ()
        unknown |= {(command, name) for name in undescribed(made, value, kinds)}
    assert unknown == set()


def test_every_command_of_a_page_is_typed_by_a_test():
    """Those of the reference are parsed in test_cli_grammar; the stores' need a bucket."""
    for page in sorted([ROOT / "README.md", *DOCS.glob("*.md")]):
        if page.name in ("cli.md", "cli-json.md", "stores.md"):
            continue
        name = str(page.relative_to(ROOT))
        if any(commands(block.code) for block in blocks(name)):
            assert f'"{name}' in (ROOT / "tests" / PLAYED[name]).read_text(encoding="utf-8"), name
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert [part for part in NOT_TYPED if part not in text] == []


PARSERS = {"json": json.loads, "python": ast.parse, "yaml": lambda text: list(yaml.safe_load_all(text))}


# One test of all pages: as a test each they took longer to begin and end than to run.
def test_examples_parse():
    for page in PAGES:
        for language, block in re.findall(
            rf"```({'|'.join(PARSERS)})\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL
        ):
            try:
                PARSERS[language](block)
            except (ValueError, SyntaxError, yaml.YAMLError) as error:
                pytest.fail(f"{page}: {error}\n{block}")


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
            found = page.parent / target if target else page
            assert found.exists(), f"{page} links to {target}"
            if anchor:
                titles = headings(found.read_text(encoding="utf-8"))
                anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
                assert anchor in anchors, f"{page} links to {target}#{anchor}"


def keys_of(type_: str) -> set[str]:
    return {key for model in models_in(MODELS[type_]).values() for key in model.model_fields}


def test_the_reference_of_keys_is_what_the_models_say():
    for file, text in script("keys_reference").files().items():
        assert file.read_text(encoding="utf-8") == text, "run: python scripts/keys_reference.py"


def test_every_key_has_its_meaning():
    for type_, kind in MODELS.items():
        for name, model in models_in(kind).items():
            assert set(model.model_fields) - {"type"} <= set(MEANINGS[model.__name__]), (type_, name)


def test_what_becomes_of_a_changed_key_is_documented_for_every_key():
    section = read("configuration.md").split("\n## Changing a file that was applied\n")[1].split("\n## ")[0]
    documented = {
        name
        for change in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", change)
    }
    assert keys_of("merge") == documented


@pytest.mark.parametrize(("page", "subscriptions"), [("docs/configuration.md", 3), ("README.md", 2)])
def test_the_configuration_example_is_valid(tmp_path, page, subscriptions):
    (tmp_path / "hq").mkdir()
    example = re.search(r"```yaml\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL).group(1)
    (tmp_path / "sales.yml").write_text(example)
    assert len(config.load(tmp_path / "sales.yml").subscriptions) == subscriptions


def test_every_environment_variable_is_described():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "mergerepl").rglob("*.py")]
    read_by_code = {name for text in sources for name in re.findall(r"MERGEREPL_[A-Z_]*[A-Z]", text)}
    not_for_users = {"MERGEREPL_FAILPOINT", "MERGEREPL_COMPLETE"}
    assert read_by_code - not_for_users - set(re.findall(r"MERGEREPL_\w+", read("configuration.md"))) == set()
