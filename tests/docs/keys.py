"""Owns: which keys a section of a configuration has, according to the programs that read it.

Invariant: `[section] key` in a sentence passes only if a member, a worker or a batch has that key.
Absent: values, which are checked in blocks (`kinds.py`).
"""

import re

BATCH_TABLES = "model sampling input output workers run notify cluster store tls".split()


def of_batch(kinds):
    """The keys by table, from the error of `rollout` for an unknown key."""
    known = {}
    for table in BATCH_TABLES:
        (kinds.scratch / "keys.toml").write_text(f"[{table}]\nno_such_key = 1\n")
        told = kinds.told("rollout", "infer", "batch", "--config", "keys.toml", "--dry-run")
        (names,) = re.findall(r'unknown key "no_such_key"; known are (.*)', told.stderr)
        known[table] = set(names.split(", "))
    return known


def of_daemons(kinds):
    known = {}
    for daemon in ("coordinator", "worker"):
        for section, schema in kinds.schemas[daemon]["properties"].items():
            inner = schema.get("properties") or schema.get("items", {}).get("properties") or {}
            known.setdefault(section, set()).update(inner)
    return known


def wrong(text, known):
    """Each `[section] key` in a text that no configuration has."""
    named = re.findall(r"`\[\[?([a-z_]+)\]\]? ([a-z_]+)\b", text)
    return [f"[{section}] {key}" for section, key in named if key not in known.get(section, ())]
