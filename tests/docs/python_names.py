"""Owns: the names that a Python block may use of the package `rollout`, read from its source.

Invariant: a name or an argument passes only if the source has it.
Absent: importing the package, which needs a build, and methods that a block calls on an instance.
"""

import ast


class Package:
    def __init__(self, folder):
        self.folder, self.modules = folder, {}
        self.homes = {}
        for node in ast.walk(self.tree("")):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rollout"):
                self.homes |= {name.asname or name.name: (node.module, name.name) for name in node.names}

    def tree(self, module):
        """The source of a module, or None."""
        if module not in self.modules:
            path = [self.folder / f"{module or '__init__'}{suffix}" for suffix in (".py", ".pyi")]
            there = [each for each in path if each.is_file()]
            self.modules[module] = ast.parse(there[0].read_text()) if there else None
        return self.modules[module]

    def definition(self, module, name):
        """Where a name of a module is defined: the node, or None."""
        if not module and name in self.homes:
            home, name = self.homes[name]
            module = home.partition(".")[2]
        for node in getattr(self.tree(module), "body", []):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
                return node
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(each, ast.Name) and each.id == name for each in targets):
                return node
        return None

    def problems(self, text):
        try:
            tree = ast.parse(text)
        except SyntaxError as wrong:
            return [f"SyntaxError: {wrong}"]
        problems = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rollout":
                module = node.module.partition(".")[2]
                problems += [
                    f"{node.module} has no {each.name}" for each in node.names if not self.definition(module, each.name)
                ]
            elif isinstance(node, ast.Import):
                names = [each.name for each in node.names if each.name.startswith("rollout.")]
                problems += [f"no module {name}" for name in names if not self.tree(name.partition(".")[2])]
            elif isinstance(node, ast.Attribute) and is_rollout(node.value):
                if not self.definition("", node.attr):
                    problems.append(f"rollout has no {node.attr}")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_rollout(node.func.value):
                problems += self.arguments(node)
        return problems

    def arguments(self, call):
        """Keywords of a call that the function, or the class's `__init__`, does not take."""
        node = self.definition("", call.func.attr)
        if isinstance(node, ast.ClassDef):
            inits = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
            node = inits[0] if inits else None
        if node is None or not hasattr(node, "args") or node.args.kwarg:
            return []
        known = {each.arg for each in [*node.args.args, *node.args.kwonlyargs]}
        return [f"rollout.{call.func.attr} takes no {key.arg}" for key in call.keywords if key.arg and key.arg not in known]


def is_rollout(node):
    return isinstance(node, ast.Name) and node.id == "rollout"
