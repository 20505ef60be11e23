"""Owns: what the programs accept, read from their own `--help`, and the comparison of a command with it.

Invariant: a verb, flag or value passes only if the program's help has it.
Absent: the meaning of a value. `--deadline never` passes here.
"""

import dataclasses
import re
import subprocess

OPTION = re.compile(r"^ {2,6}(?:(-\w)(?:, )?)?(--[\w-]+)?(\[=<[^>]*>\]| <[^>]*>)?(?:\.\.\.)?(?:\s|$)")
# Stands for any value in a page: NAME, <name>, $name, ….
PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_-]*|.*[<>$…].*|\.\.\.")


@dataclasses.dataclass
class Option:
    name: str
    takes: str  # "no", "maybe" (only by `=`) or "yes"
    values: list


@dataclasses.dataclass
class Command:
    path: list
    verbs: list = dataclasses.field(default_factory=list)
    needs_verb: bool = False
    options: dict = dataclasses.field(default_factory=dict)
    required: list = dataclasses.field(default_factory=list)
    # The minimum and the maximum number of arguments; None without a limit.
    least: int = 0
    most: int | None = 0

    @property
    def name(self):
        return " ".join(self.path)


def parsed(path, text):
    """The command that a help text describes."""
    command, section, option = Command(path), "", None
    for line in text.splitlines():
        if heading := re.match(r"^(\w[\w ]*):(?: |$)", line):
            section, option = heading[1], None
        if section == "Commands":
            command.verbs += re.findall(r"^  ([a-z][\w-]*)(?:\s{2,}|$)", line)
            command.verbs += [name for each in re.findall(r"\[alias(?:es)?: ([^]]*)\]", line) for name in each.split(", ")]
        elif section not in ("Usage", "Arguments"):
            matched = OPTION.match(line)
            if matched and (matched[1] or matched[2]):
                takes = {"[": "maybe", " ": "yes", "": "no"}[(matched[3] or "")[:1]]
                option = Option(matched[2] or matched[1], takes, [])
                command.options |= {name: option for name in matched.group(1, 2) if name}
            if option:
                option.values += re.findall(r"^ +- ([\w-]+):", line)
                option.values += [v for some in re.findall(r"\[possible values: ([^]]*)\]", line) for v in some.split(", ")]
    # Verbs that this daemon has without a table of verbs.
    command.verbs += re.findall(rf"^Offline: {re.escape(command.name)} ([\w-]+) ", text, re.M)
    usage(command, text)
    return command


def tokens(line):
    """The words of a line of usage. A pair of brackets with its contents is one word."""
    word, depth = "", 0
    for char in line + " ":
        depth += (char in "<[") - (char in ">]")
        if char != " " or depth:
            word += char
        elif word:
            yield word
            word = ""


def usage(command, text):
    """The arguments and options that the line of usage requires."""
    (line,) = re.findall(r"^Usage: ((?:.+\n)+)", text + "\n", re.M)[:1] or [""]
    before = ""
    for word in tokens(" ".join(line.split())[len(command.name) :]):
        option = command.options.get(before)
        before = word
        if (option and option.takes == "yes") or word in ("[OPTIONS]", "[COMMAND]"):
            continue
        if word == "<COMMAND>":
            command.needs_verb = True
        elif word.startswith("-") or "|-" in word or word.startswith("<-"):
            command.required.append(re.findall(r"--[\w-]+|(?<![\w-])-\w\b", word))
            # Another choice of the group is an argument.
            if any(not each.startswith("-") for each in word.strip("<>").split("|")):
                command.required[-1].append("argument")
                command.most = None
        else:
            command.least += word.startswith("<")
            several = word.endswith(("...", "...]")) or command.most is None
            command.most = None if several else command.most + 1


class Programs:
    """The programs in a directory. Each help is asked for once."""

    def __init__(self, binaries, names):
        self.binaries, self.names, self.known = binaries, names, {}

    def command(self, path):
        if (key := tuple(path)) not in self.known:
            asked = [self.binaries / path[0], *path[1:], "--help"]
            told = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True)
            self.known[key] = parsed(list(path), told.stdout)
        return self.known[key]

    def problem(self, words, whole=True):
        """The problem of a command, or None. If not `whole`, the command may be only the beginning of one."""
        call = Call(self, words)
        return call.read(whole) or (call.lacks() if whole else None)


class Call:
    def __init__(self, programs, words):
        self.programs, self.words = programs, list(words[1:])
        self.command = programs.command([words[0]])
        self.flags, self.arguments = [], []

    def read(self, whole):
        while self.words:
            word, wrong = self.words.pop(0), None
            if not whole and (word in ("…", "...") or (self.command.verbs and PLACEHOLDER.fullmatch(word))):
                return None
            if not whole and not self.words and word in self.command.options:
                self.words = [] if self.command.options[word].takes != "yes" else ["VALUE"]
            if word == "--":
                self.arguments += self.words
                self.words = []
            elif word.startswith("--"):
                wrong = self.flag(*word.partition("="))
            elif word.startswith("-") and len(word) > 1:
                wrong = self.short(word)
            else:
                wrong = self.plain(word)
            if wrong:
                return wrong
        late = [name for name in self.flags if name not in self.command.options]
        return f"`{self.command.name}` has no {late[0]}" if late else None

    def flag(self, name, equals, value):
        option = self.command.options.get(name)
        if option is None:
            return f"`{self.command.name}` has no {name}"
        self.flags.append(option.name)
        if equals and option.takes == "no":
            return f"{name} takes no value"
        if option.takes == "yes" and not equals:
            if not self.words or self.words[0].partition("=")[0] in self.command.options:
                return f"{name} needs a value"
            value = self.words.pop(0)
        return self.of_values(option, value) if value else None

    def of_values(self, option, value):
        if option.values and value not in option.values and not PLACEHOLDER.fullmatch(value):
            several = value.split(",")
            if not all(each in option.values for each in several):
                return f"{option.name} has no value {value}; it has {', '.join(option.values)}"
        return None

    def short(self, word):
        for at, char in enumerate(word[1:], 1):
            option = self.command.options.get(f"-{char}")
            if option is None:
                return f"`{self.command.name}` has no -{char}"
            self.flags.append(option.name)
            if option.takes == "yes":
                value = word[at + 1 :] or (self.words.pop(0) if self.words else "")
                return self.of_values(option, value) if value else f"-{char} needs a value"
        return None

    def plain(self, word):
        if not self.command.verbs:
            self.arguments.append(word)
            most = self.command.most
            return f"`{self.command.name}` takes no `{word}`" if most is not None and len(self.arguments) > most else None
        if word not in self.command.verbs:
            return f"`{self.command.name}` has no verb `{word}`"
        self.command = self.programs.command([*self.command.path, word])
        return None

    def lacks(self):
        if self.command.needs_verb:
            return f"`{self.command.name}` needs a verb"
        if len(self.arguments) < self.command.least:
            return f"`{self.command.name}` needs {self.command.least} arguments, and has {len(self.arguments)}"
        for one_of in self.command.required:
            given = [name for name in one_of if name in self.command.options and self.command.options[name].name in self.flags]
            if not given and not ("argument" in one_of and self.arguments):
                return f"`{self.command.name}` needs {' or '.join(one_of)}"
        return None
