"""The part of Go's template language, and of Helm's functions, that deploy/helm uses.

Invariant: unknown syntax is an error, and so is printing a missing value, for which `helm` would print nothing.
Absent: everything that the chart does not use. If `helm` is on the machine, check_helm.py compares the two.
"""

import hashlib
import json
import re

import yaml

TAG = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.S)
WORD = re.compile(r'\s*(?:("(?:[^"\\]|\\.)*")|([(),|])|(:=)|([^\s(),|]+))')


class Error(Exception):
    pass


def text_of(value):
    """A value as the template prints it."""
    if value is None:
        raise Error("a value that is not there is printed")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def to_yaml(value):
    return yaml.safe_dump(value, default_flow_style=False, sort_keys=True).rstrip("\n").removesuffix("\n...")


def indent(width, text):
    return "\n".join(" " * int(width) + line for line in text.split("\n"))


class Chart:
    """Templates by name, and everything that they can access."""

    def __init__(self, files, values, release, chart):
        """`files`: the chart's files by path, below its root."""
        self.defines = {}
        self.templates = {}
        self.root = {
            "Values": values,
            "Release": release,
            "Chart": chart,
            "Files": {"Get": lambda path: files[path]},
        }
        for path, text in sorted(files.items()):
            if path.startswith("templates/"):
                self.templates[path] = self.parse(path, text)

    def render(self, path):
        try:
            return self.run(self.templates[path], self.root, {"$": self.root})
        except Error as error:
            raise Error(f"{path}: {error}") from None

    # Parsing: a list of nodes, each a text or (kind, words, body, otherwise).

    def parse(self, path, text):
        pieces, at, strip = [], 0, False
        for tag in TAG.finditer(text):
            before = text[at : tag.start()]
            if strip:
                before = before.lstrip()
            if tag.group(1):
                before = before.rstrip()
            pieces += [before] if before else []
            if not tag.group(2).startswith("/*"):
                pieces.append(self.words(path, tag.group(2)))
            at, strip = tag.end(), bool(tag.group(3))
        rest = text[at:].lstrip() if strip else text[at:]
        pieces += [rest] if rest else []
        nodes, left = self.block(path, pieces)
        if left:
            raise Error(f"{path}: an end without a beginning")
        return nodes

    def words(self, path, code):
        found, at = [], 0
        while at < len(code):
            match = WORD.match(code, at)
            if not match:
                raise Error(f"{path}: cannot read {code!r}")
            found.append(match.group(match.lastindex))
            at = match.end()
        return found

    def block(self, path, pieces):
        nodes = []
        while pieces:
            piece = pieces.pop(0)
            if isinstance(piece, str):
                nodes.append(piece)
            elif piece[0] in ("if", "range", "with", "define"):
                body, end = self.block(path, pieces)
                otherwise = []
                if end == ["else"]:
                    otherwise, end = self.block(path, pieces)
                if end != ["end"]:
                    raise Error(f"{path}: {' '.join(piece)} has no end, but {end}")
                if piece[0] == "define":
                    self.defines[json.loads(piece[1])] = body
                else:
                    nodes.append((piece[0], piece[1:], body, otherwise))
            elif piece[0] in ("end", "else"):
                return nodes, piece
            else:
                nodes.append(("print", piece, None, None))
        return nodes, None

    # Running.

    def run(self, nodes, dot, names):
        out = []
        for node in nodes:
            if isinstance(node, str):
                out.append(node)
                continue
            kind, words, body, otherwise = node
            if kind == "print" and words[1:2] == [":="]:
                names[words[0]] = self.pipeline(words[2:], dot, names)
            elif kind == "print":
                out.append(text_of(self.pipeline(words, dot, names)))
            elif kind == "range":
                name = words[0] if words[1:2] == [":="] else None
                each = self.pipeline(words[2:] if name else words, dot, names) or []
                for value in each:
                    inner = dict(names, **({name: value} if name else {}))
                    out.append(self.run(body, value, inner))
                out.append(self.run(otherwise, dot, dict(names)) if not each else "")
            else:
                value = self.pipeline(words, dot, names)
                inner = value if kind == "with" and value else dot
                out.append(self.run(body if value else otherwise, inner, dict(names)))
        return "".join(out)

    def pipeline(self, words, dot, names):
        value, left = self.command(list(words), dot, names)
        while left:
            if left.pop(0) != "|":
                raise Error(f"cannot read {' '.join(words)}")
            value, left = self.command(left, dot, names, last=[value])
        return value

    def command(self, words, dot, names, last=()):
        args = []
        while words and words[0] not in ("|", ")"):
            args.append(self.operand(words, dot, names))
        args += last
        if callable(args[0]):
            return args[0](*args[1:]), words
        if len(args) != 1:
            raise Error(f"{args[0]!r} is no function")
        return args[0], words

    def operand(self, words, dot, names):
        word = words.pop(0)
        if word == "(":
            depth, inner = 1, []
            while depth:
                inner.append(words.pop(0))
                depth += {"(": 1, ")": -1}.get(inner[-1], 0)
            return self.pipeline(inner[:-1], dot, names)
        if word[0] == '"' or re.fullmatch(r"-?\d+|true|false", word):
            return json.loads(word)
        if word == ".":
            return dot
        if word[0] in ".$":
            head, *path = word.split(".")
            value = dot if head == "" else names[head]
            for name in path:
                if value is None:
                    raise Error(f"{word}: nothing above {name}")
                value = value.get(name)
            return value
        try:
            return getattr(self, "do_" + word)
        except AttributeError:
            raise Error(f"{word}: unknown function") from None

    # Functions.

    def do_include(self, name, dot):
        if name not in self.defines:
            raise Error(f"{name}: not defined")
        return self.run(self.defines[name], dot, {"$": dot})

    def do_required(self, message, value):
        if value is None or value == "":
            raise Error(message)
        return value

    do_default = staticmethod(lambda other, value: value or other)
    do_quote = staticmethod(lambda value: json.dumps(text_of(value)))
    do_nindent = staticmethod(lambda width, text: "\n" + indent(width, text))
    do_toYaml = staticmethod(to_yaml)
    do_toJson = staticmethod(lambda value: json.dumps(value, separators=(",", ":")))
    do_int = staticmethod(int)
    do_until = staticmethod(lambda n: list(range(n)))
    do_len = staticmethod(len)
    do_eq = staticmethod(lambda a, b: a == b)
    do_not = staticmethod(lambda a: not a)
    do_and = staticmethod(lambda *all: next((a for a in all if not a), all[-1]))
    do_or = staticmethod(lambda *all: next((a for a in all if a), all[-1]))
    do_add = staticmethod(lambda *all: sum(all))
    do_sub = staticmethod(lambda a, b: a - b)
    do_sha256sum = staticmethod(lambda text: hashlib.sha256(text.encode()).hexdigest())
