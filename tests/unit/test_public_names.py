"""The public names of the packages: `__init__.pyi` states them, and nothing is loaded before one is used."""

import re
import subprocess
import sys
from pkgutil import resolve_name
from types import ModuleType

import pytest

import mergerepl
from mergerepl import cdc, tracking, transactional
from mergerepl.model.renamed import RENAMED


@pytest.mark.parametrize(
    "package", [mergerepl, cdc, tracking, transactional], ids=lambda package: package.__name__
)
def test_every_public_name_is_found(package):
    for name in package.__all__:
        assert getattr(package, name).__name__.rpartition(".")[2] == name
        assert not isinstance(getattr(package, name), ModuleType)
    assert dir(package) == sorted(package.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        package.no_such_name  # noqa: B018


def test_a_name_that_is_gone_is_answered_with_the_new_one():
    for place, names in RENAMED.items():
        home = resolve_name(place)
        owner = object.__new__(home) if isinstance(home, type) else home
        for old, new in names.items():
            assert old not in dir(home)
            if isinstance(vars(home).get(old), ModuleType):
                # `mergerepl.conflicts`, once something has loaded the room of that name.
                continue
            with pytest.raises(AttributeError, match=f"no attribute '{old}': it is `{re.escape(new)}` now"):
                getattr(owner, old)
            kind, _, method = re.sub(r"\(.*?\)", "", new).partition(".")
            if kind != "mergerepl":
                assert hasattr(getattr(home, kind), method.partition(".")[0] or "__doc__"), new


def test_completion_and_help_load_no_engine():
    script = (
        "import sys, mergerepl, mergerepl.cdc, mergerepl.transactional as tr\n"
        "assert 'Project' in dir(mergerepl) and 'Database' in dir(mergerepl.cdc) and 'Distributor' in dir(tr)\n"
        "assert not {'pyspark', 'deltalake', 'pyarrow'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
