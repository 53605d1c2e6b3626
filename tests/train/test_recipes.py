"""The recipes in the repository are options that there are, for datasets that are named."""

import sys
from pathlib import Path

import pytest

from headrace.cli.config import read_config
from headrace.train import LinkOptions

RECIPES = sorted((Path(__file__).parent.parent.parent / "recipes").glob("*.toml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_is_valid(recipe):
    options = LinkOptions(**read_config(recipe, LinkOptions))
    assert options.decoder in recipe.stem
    assert f"--config recipes/{recipe.name}" in recipe.read_text()


def test_there_are_recipes():
    assert len(RECIPES) >= 7, sys.path
