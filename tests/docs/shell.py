"""Owns: reading a shell script for the commands in it and the files that it writes from the script.

Invariant: a command is found wherever a shell would run it: after `;`, `|` and `do`, in `$(…)`, in a function.
Absent: running, and expansion. A `$name` stays in its word; arithmetic and the like become part of a word.
"""

import dataclasses
import re

SKIPPED = {"do", "then", "else", "elif", "if", "while", "until", "!", "{", "}", "time", "done", "fi", "esac"}
WRAPPERS = {"exec", "nohup", "sudo", "env"}
ASSIGNED = re.compile(r"\w+\+?=")


@dataclasses.dataclass
class Script:
    # Each a list of words, the program first.
    commands: list
    # (file, text) of each here-document that goes into a file.
    files: list


def closing(text, at, end):
    """The position after the `end` that closes the construct that began before `at`."""
    depth, begin = 1, {")": "(", "}": "{"}[end]
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char == "'":
            at = text.find("'", at + 1)
            if at < 0:
                break
        elif char == begin:
            depth += 1
        elif char == end:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return len(text)


class Scanner:
    def __init__(self, text, script):
        self.text, self.script, self.at = text, script, 0
        self.words, self.word = [], None
        # The role of the next word, if it is not an argument: "file" after `>`, "ignored" after `<`.
        self.expects, self.file = None, None
        self.heredocs = []

    def add(self, text):
        self.word = (self.word or "") + text

    def end_word(self):
        if self.word is None:
            return
        if self.expects == "file":
            self.file = self.word
        elif self.expects is None:
            self.words.append(self.word)
        self.word = self.expects = None

    def end_command(self):
        self.end_word()
        if self.words:
            self.script.commands.append(self.words)
        self.words = []
        for document in self.heredocs:
            document[1] = document[1] or self.file
        self.file = None

    def run(self):
        while self.at < len(self.text):
            self.step(self.text[self.at])
        self.end_command()

    def step(self, char):
        if char == "\\":
            if self.text[self.at + 1 : self.at + 2] != "\n":
                self.add(self.text[self.at + 1 : self.at + 2])
            self.at += 2
        elif char == "'":
            end = self.text.find("'", self.at + 1)
            end = len(self.text) if end < 0 else end
            self.add(self.text[self.at + 1 : end])
            self.at = end + 1
        elif char == '"':
            self.double()
        elif char in "$`":
            self.expansion()
        elif char == "#" and self.word is None:
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif char == "\n":
            self.end_command()
            self.at += 1
            self.bodies()
        elif char.isspace():
            self.end_word()
            self.at += 1
        elif char in "<>":
            self.redirection()
        elif char == "&" and self.text.startswith("&>", self.at):
            self.end_word()
            self.at += 1
        elif char in ";&|()":
            self.end_command()
            self.at += 1
        else:
            self.add(char)
            self.at += 1

    def double(self):
        self.at += 1
        self.add("")
        while self.at < len(self.text) and self.text[self.at] != '"':
            char = self.text[self.at]
            if char == "\\":
                self.add(self.text[self.at + 1 : self.at + 2])
                self.at += 2
            elif char in "$`":
                self.expansion()
            else:
                self.add(char)
                self.at += 1
        self.at += 1

    def expansion(self):
        """A `$…`. Commands in a substitution belong to the script too."""
        rest, begin = self.text[self.at :], self.at
        if rest.startswith("$(("):
            self.at = closing(self.text, self.at + 2, ")")
        elif rest.startswith("$("):
            self.at = closing(self.text, self.at + 2, ")")
            Scanner(self.text[begin + 2 : self.at - 1], self.script).run()
        elif rest.startswith("${"):
            self.at = closing(self.text, self.at + 2, "}")
        elif rest.startswith("`"):
            end = self.text.find("`", begin + 1)
            self.at = len(self.text) if end < 0 else end + 1
            Scanner(self.text[begin + 1 : self.at - 1], self.script).run()
        else:
            self.at += 1
        self.add(self.text[begin : self.at])

    def redirection(self):
        # The number before it is a file descriptor, not an argument.
        if self.word is not None and self.word.isdigit():
            self.word = None
        self.end_word()
        (operator,) = re.match(r"(<<<|<<-?|<\(|>\(|<&|>&|>>|<|>)", self.text[self.at :]).groups()
        self.at += len(operator)
        if operator in ("<<", "<<-"):
            mark = re.match(r"\s*(['\"]?)([\w-]+)\1", self.text[self.at :])
            self.at += mark.end()
            self.heredocs.append([mark[2], None])
        elif operator in ("<(", ">("):
            begin, self.at = self.at, closing(self.text, self.at, ")")
            Scanner(self.text[begin : self.at - 1], self.script).run()
            self.add("/dev/fd/63")
        else:
            self.expects = "file" if operator.startswith(">") else "ignored"

    def bodies(self):
        """The here-documents that begin on this line."""
        for mark, file in self.heredocs:
            end = re.search(rf"^\s*{re.escape(mark)}$", self.text[self.at :], re.M)
            body = self.text[self.at : self.at + end.start()] if end else self.text[self.at :]
            self.script.files += [(file, body)] if file else []
            self.at += end.end() + 1 if end else len(body)
        self.heredocs = []


def read(text):
    script = Script([], [])
    Scanner(text, script).run()
    functions = set(re.findall(r"^\s*(\w+)\s*\(\)", text, re.M))
    commands = (stripped(words) for words in script.commands)
    script.commands = [words for words in commands if words and words[0] not in functions]
    return script, functions


def stripped(words):
    """The command without the words of the shell's own grammar before it."""
    while words and (words[0] in SKIPPED or words[0] in WRAPPERS or ASSIGNED.match(words[0])):
        words = words[1:]
    return [] if words and words[0] in ("for", "case", "function", "in") else words
