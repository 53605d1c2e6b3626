"""The native module alone: without torch it loads in a fifth of a second, so that a child process is cheap."""

import importlib.util
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType


def load_native() -> ModuleType:
    package = importlib.util.find_spec("headrace")
    assert package is not None
    assert package.submodule_search_locations is not None
    for folder in package.submodule_search_locations:
        for suffix in EXTENSION_SUFFIXES:
            path = Path(folder) / f"_native{suffix}"
            if path.exists():
                spec = importlib.util.spec_from_file_location("_native", path)
                assert spec is not None
                assert spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return module
    raise ImportError("the native module is not built: see CONTRIBUTING.md")
