"""Compares the figures of docs/operating/limits.md with the constants in the sources.

A comment after the figures of a cell or a paragraph names what each of them is, in their order:

    | rows in a segment; runs | 4096; 10,000 <!-- limits: SEGMENT_ROWS_MAX; RUNS_MAX --> |

Each is a constant of ledger/src/kernel/limits.rs, of another file (`storage/src/blob.rs: BLOB_BYTES_MAX`), a
calculation with constants (`WAITS_MAX * 3 / 4`), or `_` if no constant has it. A figure with a unit of time is compared
in milliseconds. A figure without a name fails the check, and so does a name without a figure.

    check_limits.py
"""

import ast
import functools
import operator
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = "docs/operating/limits.md"
LEDGER = "ledger/src/kernel/limits.rs"
NAMES = re.compile(r"<!-- limits: (.*?) -->", re.S)
# What has digits, but no figure: targets of links, codes of errors, versions of the cluster.
OTHER = re.compile(r"\]\([^)]*\)|RO-\d+|\bversion \d+|`[^`]*`")
FIGURE = re.compile(r"(?<![\w/])(\d+(?:,\d{3})*(?:\.\d+)?)(?: ([A-Za-z]+))?")
SECOND = 1000
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "ms": 1, "s": SECOND, "seconds": SECOND, "min": 60 * SECOND}
UNITS |= {"minute": 60 * SECOND, "minutes": 60 * SECOND, "h": 3600 * SECOND, "days": 24 * 3600 * SECOND}
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.LShift: operator.lshift,
}


@functools.cache
def constants(path):
    """The constants of a Rust file, each with its expression."""
    text = (ROOT / path).read_text()
    return dict(re.findall(r"^\s*(?:pub(?:\([^)]*\))? )?const (\w+): [^=]+= ([^;]+);", text, re.M))


def value(expression, path):
    """What an expression of Rust's constants is; names are those of `path`, or of the ledger as `limits::NAME`."""
    ranged = re.fullmatch(r"(\w+)\.(start|end)", expression.strip())
    if ranged:
        bounds = constants(path)[ranged[1]].split("..=")
        return value(bounds[ranged[2] == "end"], path)
    expression = re.sub(r" as \w+", "", expression.replace("u32::MAX", str(2**32 - 1)))
    expression = re.sub(r"(?:\w+::)*limits::(\w+)", r"ledger_\1", expression)
    return calculated(ast.parse(expression.strip(), mode="eval").body, path)


def calculated(node, path):
    match node:
        case ast.Constant(int() as number):
            return number
        case ast.Name(name) if name.startswith("ledger_"):
            return named(name.removeprefix("ledger_"), LEDGER)
        case ast.Name(name):
            return named(name, path)
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](calculated(left, path), calculated(right, path))
    raise ValueError(f"{path}: cannot calculate {ast.unparse(node)}")


def named(name, path):
    if name not in constants(path):
        raise ValueError(f"{path} has no constant {name}")
    return value(constants(path)[name], path)


def expected(name):
    """The figure that a name stands for; None if it is not compared."""
    name = " ".join(name.split())
    if name == "_":
        return None
    path, _, expression = name.rpartition(": ")
    return value(expression, path or LEDGER)


def figures(text):
    """The figures of a text, each as it is written and as a number."""
    found = []
    for number, unit in FIGURE.findall(OTHER.sub("", text)):
        factor = UNITS.get(unit, 1)
        shown = f"{number} {unit}" if unit in UNITS else number
        found.append((shown, float(number.replace(",", "")) * factor))
    return found


def problems(block):
    """What is wrong with a row or a paragraph."""
    first = block.split("\n")[0][:80]
    comment = NAMES.search(block)
    shown = figures(NAMES.sub("", second_cell(block)))
    if comment is None:
        return [f"{first}: no comment names {', '.join(text for text, _ in shown)}"] if shown else []
    names = comment[1].split(";")
    if len(names) != len(shown):
        return [f"{first}: {len(shown)} figures, {len(names)} names: {[text for text, _ in shown]}"]
    found = []
    for name, (text, number) in zip(names, shown):
        want = expected(name)
        if want is not None and want != number:
            found.append(f"{first}: {text}, but {name.strip()} is {want}")
    return found


def second_cell(block):
    return block.split("|")[2] if block.startswith("|") else block


def blocks(page):
    """The rows and paragraphs below the first heading of the second level."""
    for block in page[page.index("\n## ") :].split("\n\n"):
        rows = block.strip().split("\n")
        yield from rows[2:] if rows[0].startswith("|") else [block.strip()]


class Limits(unittest.TestCase):
    def test_figures_are_found_with_their_units(self):
        text = "8 KiB, or 65,536 of `x9` in version 3 ([RO-4003](../RO-4003.md)); 20 %; 0.5 s, 10 minutes, 24 h of 6"
        self.assertEqual([number for _, number in figures(text)], [8192, 65536, 20, 500, 600_000, 86_400_000, 6])

    def test_a_wrong_or_missing_name_is_reported(self):
        row = "| rows | 4096; 7 <!-- limits: SEGMENT_ROWS_MAX; _ --> |"
        self.assertEqual(problems(row), [])
        for wrong in ["4096; 7", "4096 <!-- limits: SEGMENT_ROWS_MAX; _ -->", "4097 <!-- limits: SEGMENT_ROWS_MAX -->"]:
            self.assertEqual(len(problems(f"| rows | {wrong} |")), 1, wrong)
        with self.assertRaisesRegex(ValueError, "no constant ROWS"):
            problems("| rows | 1 <!-- limits: ROWS --> |")

    def test_the_figures_of_the_page_are_the_constants(self):
        found = list(blocks((ROOT / PAGE).read_text()))
        self.assertGreater(sum(bool(NAMES.search(block)) for block in found), 50)
        wrong = [problem for block in found for problem in problems(block)]
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
