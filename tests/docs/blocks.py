"""Owns: the code in the pages: fenced blocks with the note above them, and commands inside of sentences.

Invariant: no block is left out. Code that is not a block with a kind is reported, not skipped.
Absent: checks of a block's contents (`kinds.py`).
"""

import dataclasses
import os
import pathlib
import re

KINDS = {"bash", "console", "json", "jsonl", "python", "rust", "sh", "text", "toml", "yaml"}
FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*(.*?)\s*$")
NOTE = re.compile(r"^\s*<!--\s*(not-run|from):(.*?)-->\s*$")
PROGRAMS = ("rollout", "rolloutctl", "rollout-coordinator", "rollout-worker", "rollout-jepsen", "make")


@dataclasses.dataclass
class Block:
    page: str
    line: int
    kind: str
    text: str
    # Why the block is not run, or the file that it is copied from; None without such a note.
    not_run: str | None = None
    source: str | None = None

    @property
    def place(self):
        return f"{self.page}:{self.line}"


def pages(root):
    """Every Markdown file of the repository, without those that builds and tools create."""
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if name not in ("target", "node_modules") and not name.startswith("."))
        for name in sorted(names):
            if name.endswith(".md"):
                yield pathlib.Path(folder) / name


def collect(page, text):
    """(blocks, problems) of one page."""
    found, problems, note, block, lines = [], [], None, None, []
    prose = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if block is not None:
            if fence and fence[2].startswith(mark) and not fence[3]:
                block.text = "\n".join(each[indent:] if not each[:indent].strip() else each for each in lines)
                found.append(block)
                block = None
            else:
                lines.append(line)
            continue
        if fence:
            indent, mark = len(fence[1]), fence[2]
            block, lines = Block(page, number, fence[3], ""), []
            problems += opened(block, note)
            note = None
            continue
        if note:
            problems.append(f"{page}:{note[0]}: the note `{note[1]}` is not directly above a block")
        noted = NOTE.match(line)
        note = (number, noted[1], noted[2].strip()) if noted else None
        prose.append((number, line))
    if note:
        problems.append(f"{page}:{note[0]}: the note `{note[1]}` is not directly above a block")
    if block is not None:
        problems.append(f"{block.place}: the block has no end")
    return found, [*problems, *indented(page, prose)]


def opened(block, note):
    """The problems of a block's first line. Sets the block's note from the line above it."""
    problems = []
    if note and not note[2]:
        problems.append(f"{block.place}: `{note[1]}` without a reason or file")
    elif note and note[1] == "not-run":
        block.not_run = note[2]
    elif note:
        block.source = note[2]
    if not block.kind:
        problems.append(f"{block.place}: the block has no kind; one of {', '.join(sorted(KINDS))}")
    elif block.kind not in KINDS:
        problems.append(f"{block.place}: unknown kind `{block.kind}`; known are {', '.join(sorted(KINDS))}")
    return problems


def indented(page, prose):
    """Code that is marked by four spaces only. Below an item of a list, such lines are text."""
    before, in_list = "", False
    for number, line in prose:
        if re.match(r"(?:[-*+]|\d+[.)])\s", line):
            in_list = True
        elif line[:1].strip():
            in_list = False
        if line.startswith("    ") and line.strip() and not before.strip() and not in_list:
            yield f"{page}:{number}: code without a fence"
        before = line


def long_lines(page, text, most=120):
    """The lines that are too long for an editor. Tables and code are exempt: they cannot be wrapped."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            inside = not inside
        elif not inside and not line.lstrip().startswith("|") and len(line.encode()) > most:
            yield f"{page}:{number}: {len(line.encode())} bytes"


def spoken(text):
    """(line, command) of this project's commands that sentences and tables contain as code."""
    inside, paragraph, begun = False, [], 1
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if FENCE.match(line):
            inside = not inside
            line = ""
        if inside:
            continue
        if line.strip() and not line.lstrip().startswith("|"):
            begun = begun if paragraph else number
            paragraph.append(line)
            continue
        for first, joined in [(begun, "\n".join(paragraph)), (number, line)]:
            for code in re.finditer(r"(?<!`)`([^`]+)`(?!`)", joined):
                command = " ".join(code[1].split())
                if command.split(" ")[0] in PROGRAMS and " " in command:
                    yield first + joined[: code.start()].count("\n"), command
        paragraph = []
