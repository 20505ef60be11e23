"""A fake of the extension module: it tests the package's own Python without a cluster."""

from __future__ import annotations

import sys
from types import ModuleType


def play() -> None:
    """Call it before importing a module that needs the extension."""
    try:
        import rollout._native  # noqa: F401
    except ImportError:
        native = ModuleType("rollout._native")
        refused = type("RolloutError", (RuntimeError,), {})
        for name, part in {"Cluster": object, "RolloutError": refused}.items():
            setattr(native, name, part)
        sys.modules["rollout._native"] = native
