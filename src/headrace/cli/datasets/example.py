"""`headrace example`: the files of a small dataset, to try an import on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import refused
from headrace.graph.known.examples import EXAMPLES

_NAME = typer.Argument(help="towns, facts, visits or library; without it they are listed", show_default=False)
_FOLDER = typer.Argument(help="where to write its CSV files (default: its name)", show_default=False)


def example(
    name: Annotated[str | None, _NAME] = None,
    folder: Annotated[Path | None, _FOLDER] = None,
) -> None:
    """Write the CSV files of a small dataset, and say the command that imports them.

    The same datasets are known by name everywhere: headrace train node towns
    """
    if name is None:
        for known, about in EXAMPLES.items():
            print(f"{known:<8} {about.about}")
        return
    if name not in EXAMPLES:
        raise refused(f"there is no example {name!r}: choose one of {', '.join(EXAMPLES)}")
    place = folder or Path(name)
    try:
        for path in EXAMPLES[name].write(place):
            print(path)
    except OSError as error:
        raise refused(str(error)) from None
    print(EXAMPLES[name].command(str(place), f"{place}-data"))
