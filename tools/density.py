#!/usr/bin/env python3
"""density.py - measures how dense C code is.

density.py [PATH...]             per folder: functions, decisions per line, share of comments,
                                 one-line functions, nested ?:, lengths of functions
density.py --limits [PATH...]    functions over a limit; exit 1 if one is not in tools/density.txt

PATH is a folder or a file, src without one. Generated files (*.gen.h) are left out.

A decision is if, for, while, case, &&, || or ?. Decisions per line are taken over functions of more
than eight lines: all their decisions by all their lines, blank lines and comments without. The
share of comments is by characters, and does not count the white space at the start of a line.
--limits: docs/design.md, section "Limits of a function", has the limits and their reasons.
"""
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS = {"lines": 60, "decisions": 15, "parameters": 6, "levels": 4, "nested ?:": 0}
EXCEPTIONS = ROOT / "tools" / "density.txt"
TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|&&|\|\||->|[^\s\w]")
DECISIONS = {"if", "for", "while", "case", "&&", "||", "?"}
CONTROL = {"if", "for", "while", "switch", "else", "do"}


def strip(text):
    """Returns the text with comments, literals and directives blanked, and the size of comments."""
    size = 0
    parts = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)

    def blank(match):
        nonlocal size
        part = match.group(0)
        if part[0] == "/":
            size += sum(len(line.strip()) for line in part.split("\n"))
            return " " + "\n" * part.count("\n")
        return part[0] + part[0]

    text = parts.sub(blank, text)
    directive = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
    return directive.sub(lambda match: "\n" * match.group(0).count("\n"), text), size


class Function:
    def __init__(self, path, name, line):
        self.path, self.name, self.line = path, name, line
        self.lines = self.code = self.decisions = self.parameters = self.levels = self.nested = 0


def count_parameters(tokens):
    """Counts the parameters of a declarator: tokens up to and with the last parenthesis."""
    depth = 0
    for start in range(len(tokens) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(tokens[start][0], 0)
        if depth == 0:
            break
    inner = [token for token, _ in tokens[start + 1:-1]]
    if not inner or inner == ["void"]:
        return start, 0
    depth = commas = 0
    for token in inner:
        depth += {"(": 1, ")": -1}.get(token, 0)
        commas += token == "," and depth == 0
    return start, commas + 1


def measure_body(function, body):
    """Fills in decisions, levels of nesting and nested conditionals from the tokens of a body."""
    braces = []         # for each open brace: does it belong to a control statement?
    active = [False]    # for each open bracket: a ?: of this bracket is under way
    previous = ""
    words = [token for token, _ in body]
    for index, token in enumerate(words):
        function.decisions += token in DECISIONS
        if token == "{":
            level = previous == ")" or previous in ("else", "do") or previous in (";", "{", "}", ":")
            braces.append(level)
            function.levels = max(function.levels, sum(braces))
        elif token == "}" and braces:
            braces.pop()
        if token in "([{":
            active.append(False)
        elif token in ")]}" and len(active) > 1:
            active.pop()
        elif token in ",;":
            active[-1] = False
        elif token == "?":
            function.nested += any(active)
            active[-1] = True
        previous = token


def functions_of(path, text):
    tokens = []
    for number, line in enumerate(text.split("\n"), 1):
        tokens += [(token, number) for token in TOKEN.findall(line)]
    found, head, index = [], [], 0
    while index < len(tokens):
        token, number = tokens[index]
        if token == ";" or token == "}":
            head = []
        elif token != "{":
            head.append(tokens[index])
        else:
            depth, end = 1, index + 1
            while end < len(tokens) and depth:
                depth += {"{": 1, "}": -1}.get(tokens[end][0], 0)
                end += 1
            words = [word for word, _ in head]
            if words and words[-1] == ")" and "=" not in words:
                start, parameters = count_parameters(head)
                name = head[start - 1 if head[start - 1][0] != ")" else start - 2][0]
                function = Function(path, name, head[0][1])
                function.parameters = parameters
                function.lines = tokens[end - 1][1] - head[0][1] + 1
                function.code = len({line for _, line in head + tokens[index:end]})
                measure_body(function, tokens[index + 1:end - 1])
                found.append(function)
                head, index = [], end
                continue
            if "extern" in words:       # extern "C" {
                head, index = [], index + 1
                continue
            index = end - 1             # a struct, an enum or an initialiser: the rest follows
        index += 1
    return found


def files_of(paths):
    for path in paths:
        path = Path(path)
        if path.is_dir():
            for file in sorted(path.rglob("*.[ch]")):
                if not file.name.endswith(".gen.h"):
                    yield file
        else:
            yield path


def report(paths):
    folders = {}
    for file in files_of(paths):
        text = file.read_text(errors="replace")
        plain, comment = strip(text)
        size = sum(len(line.strip()) for line in text.split("\n"))
        folder = folders.setdefault(str(file.parent), {"functions": [], "comment": 0, "size": 0})
        folder["functions"] += functions_of(file, plain)
        folder["comment"] += comment
        folder["size"] += size
    total = {"functions": [], "comment": 0, "size": 0}
    for folder in folders.values():
        for key in total:
            total[key] += folder[key]
    rows = sorted(folders.items()) + ([("all", total)] if len(folders) > 1 else [])
    print(f"{'folder':<24}{'functions':>10}{'decisions/line':>15}{'comments':>10}{'one-line':>10}"
          f"{'nested ?:':>10}{'median':>8}{'longest':>8}")
    for name, folder in rows:
        functions = folder["functions"]
        if not functions:
            continue
        long = [function for function in functions if function.lines > 8]
        lines = sum(function.code for function in long) or 1
        density = sum(function.decisions for function in long) / lines
        lengths = sorted(function.lines for function in functions)
        print(f"{name:<24}{len(functions):>10}{density:>15.2f}"
              f"{100 * folder['comment'] / max(folder['size'], 1):>9.0f}%"
              f"{sum(function.lines == 1 for function in functions):>10}"
              f"{sum(function.nested for function in functions):>10}"
              f"{lengths[len(lengths) // 2]:>8}{lengths[-1]:>8}")


def limits(paths):
    allowed = {}
    if EXCEPTIONS.exists():
        for line in EXCEPTIONS.read_text().split("\n"):
            if line.strip() and not line.startswith("#"):
                name, what, value = line.split(None, 3)[:3]
                allowed[name, what] = int(value)
    wrong, used = 0, set()
    for file in files_of(paths):
        plain, _ = strip(file.read_text(errors="replace"))
        for function in functions_of(file, plain):
            values = {"lines": function.lines, "decisions": function.decisions,
                      "parameters": function.parameters, "levels": function.levels,
                      "nested ?:": function.nested}
            for what, value in values.items():
                key = (function.name, what.replace(" ?:", ""))
                if value <= LIMITS[what]:
                    continue
                used.add(key)
                if value > allowed.get(key, 0):
                    wrong += 1
                    path = os.path.relpath(function.path, ROOT)
                    print(f"{path}:{function.line}: {function.name}: {value} {what}; "
                          f"at most {LIMITS[what]} are allowed")
    stale = [key for key in allowed if key not in used] if paths == [str(ROOT / "src")] else []
    for name, what in stale:
        print(f"tools/density.txt: {name} {what}: the function is within the limit; remove the line")
    if not wrong and not stale:
        print(f"density: every function is within the limits, {len(used)} exceptions")
    return bool(wrong or stale)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    check = "--limits" in arguments
    paths = [argument for argument in arguments if argument != "--limits"] or [str(ROOT / "src")]
    sys.exit(limits(paths) if check else report(paths))
