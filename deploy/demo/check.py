#!/usr/bin/env python3
"""Compares inputs with outputs: check.py INPUT.jsonl COMPLETIONS.jsonl

Does not import rollout. Exits with 1 and names the row if a row is missing, duplicated, out of order,
or has another answer than the mock engine's: `MOCK:` and the prompt.
"""
import json
import sys


def rows(path):
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            yield number, json.loads(line)


def main():
    given, got = sys.argv[1:3]
    answers = rows(got)
    count = 0
    for number, row in rows(given):
        try:
            _, answer = next(answers)
        except StopIteration:
            sys.exit(f"{got} ends before line {number} of {given}")
        for key, value in row.items():
            if answer.get(key) != value:
                sys.exit(f"line {number}: {key} is {answer.get(key)!r}, but {value!r} in the input")
        if answer.get("completion") != "MOCK:" + row["prompt"]:
            sys.exit(f"line {number}: the completion is {answer.get('completion')!r}")
        count += 1
    extra = sum(1 for _ in answers)
    if extra:
        sys.exit(f"{got} has {extra} more rows than {given}")
    print(f"check: {count} rows in, {count} rows out, each once, in order, all answers correct")


main()
