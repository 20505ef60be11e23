"""The extension module's part, played where there is none: the package's own Python is tried, and asks nobody."""

from __future__ import annotations

import sys
from types import ModuleType


def play() -> None:
    """Before anything of the package that needs the extension is imported."""
    try:
        import rollout._native  # noqa: F401
    except ImportError:
        native = ModuleType("rollout._native")
        refused = type("RolloutError", (RuntimeError,), {})
        for name, part in {"Cluster": object, "RolloutError": refused}.items():
            setattr(native, name, part)
        sys.modules["rollout._native"] = native
