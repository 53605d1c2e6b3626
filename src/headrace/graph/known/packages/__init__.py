"""Datasets of the packages `ogb` and `py-tgb`, read from where these have put them on disk; the packages are not needed."""

from __future__ import annotations

from pathlib import Path

from headrace.graph.dataset import Dataset
from headrace.graph.known.packages import ogb, tgb

_PACKAGES = (ogb, tgb)


def load_packaged(name: str, root: Path | None) -> Dataset | None:
    """The dataset `name` of one of the packages, or None where the name is of none.

    `root` is the folder that has the dataset's folder; by default the places where the package puts it, from here and upwards.
    Where it is not on disk, an error says the line that fetches it.
    """
    package = next((package for package in _PACKAGES if name.startswith(package.PREFIXES)), None)
    if package is None:
        return None
    places = [root] if root is not None else package.places()
    folders = [place / folder for place in places for folder in package.folders(name)]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        looked = ", ".join(dict.fromkeys(str(place) for place in places))
        raise FileNotFoundError(f"{name} is in none of {looked}. This fetches it: {package.fetch(name)}")
    data: Dataset = package.read(name, folder)
    data.info["name"] = name
    return data
