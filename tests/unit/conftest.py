"""Fixtures of the command line's tests."""

import pytest


@pytest.fixture
def hq(tmp_path, monkeypatch):
    for name in ("hq", "north"):
        (tmp_path / name).mkdir()
    (tmp_path / "sales.yml").write_text(
        "publication: sales\npublisher: ./hq\narticles:\n  - {name: orders, key: [order_id]}\n"
        "subscriptions:\n  - {subscriber: ./north}\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hq"
