"""Nobody changes what users build on by accident."""

from __future__ import annotations

from tests.public_api import LISTED, MODULES, digest, public_api

CHANGELOG = LISTED.parents[1] / "CHANGELOG.md"
REMEDY = "python -m tests.public_api writes docs/public-api.txt anew; say in CHANGELOG.md what changed"


def test_the_public_api_is_the_one_that_is_listed() -> None:
    assert public_api() == LISTED.read_text(encoding="utf-8"), REMEDY


def test_the_change_log_names_the_public_api_that_is_listed() -> None:
    assert digest(LISTED.read_text(encoding="utf-8")) in CHANGELOG.read_text(encoding="utf-8"), REMEDY


def test_the_listing_sees_methods_and_arguments() -> None:
    text = public_api()
    assert "perennial.MCPSGD.start(" in text
    assert "one_message: 'bool' = False" in text
    assert all(f"{module}." in text for module in MODULES)
