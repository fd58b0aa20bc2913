"""The public names of the packages: `__init__.pyi` states them, and nothing is loaded before one is used."""

import subprocess
import sys
from types import ModuleType

import pytest

import mergerepl
from mergerepl import cdc, transactional


@pytest.mark.parametrize("package", [mergerepl, cdc, transactional], ids=lambda package: package.__name__)
def test_every_public_name_is_found(package):
    for name in package.__all__:
        assert getattr(package, name).__name__.rpartition(".")[2] == name
        assert not isinstance(getattr(package, name), ModuleType)
    assert dir(package) == sorted(package.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        package.no_such_name  # noqa: B018


def test_completion_and_help_load_no_engine():
    script = (
        "import sys, mergerepl, mergerepl.cdc, mergerepl.transactional as tr\n"
        "assert 'sync' in dir(mergerepl) and 'scan' in dir(mergerepl.cdc) and 'skip' in dir(tr)\n"
        "assert not {'pyspark', 'deltalake', 'pyarrow'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
