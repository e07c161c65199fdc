#!/usr/bin/env python3
"""Moves the seeded defects after a change of src/: refit.py [--check]

A defect whose diff does not apply any more is looked for in all rooms: its old lines with three lines
of context around them, else with fewer, white space aside. Where they are found exactly once the diff is
written anew, into the file of that room. What is not found, or found more than once, is reported for a
mend by hand; the exit status is 1 then. --check changes nothing.
"""
import difflib
import glob
import os
import re
import subprocess
import sys

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
HEAD = "Seeded defects of %s, for tests/defects/run.sh."


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read().split("\n")


def applies(diff):
    text = "\n".join(diff) + "\n"
    return subprocess.run(["git", "apply", "--check", "-p1", "-"], input=text.encode(), stderr=subprocess.DEVNULL).returncode == 0


def defects(path):
    """The defects of a file as [title, by, room, diff lines]."""
    found = []
    lines = read(path)
    if not lines[0].startswith("Seeded defects of "):
        sys.exit(path + ": the first line must be \"" + HEAD % "ROOM" + "\"")
    for line in lines[1:]:
        if line.startswith("title: "):
            found.append([line[7:], "", "", []])
        elif line.startswith("by: ") and found and not found[-1][3]:
            found[-1][1] = line[4:]
        elif found and (line or found[-1][3]):
            if line.startswith("--- a/"):
                found[-1][2] = line[6:]
            found[-1][3].append(line)
    for defect in found:
        while defect[3] and not defect[3][-1]:
            defect[3].pop()
    return found


def squeezed(lines):
    return [re.sub(r"\s+", " ", line).strip() for line in lines]


def moved(diff, rooms):
    """The diff for the place where its lines are now, or a sentence that says why there is none."""
    hunks = [i for i, line in enumerate(diff) if line.startswith("@@")]
    if len(hunks) != 1:
        return "has %d hunks" % len(hunks)
    body = diff[hunks[0] + 1:]
    first = next(i for i, line in enumerate(body) if line[:1] in "+-")
    last = max(i for i, line in enumerate(body) if line[:1] in "+-")
    for context in (3, 2, 1, 0):
        part = body[max(0, first - context):last + 1 + context]
        old = [line[1:] for line in part if line[:1] != "+"]
        new = [line[1:] for line in part if line[:1] != "-"]
        if not old:
            return "only adds lines, and what is around them has changed"
        wanted, places = squeezed(old), []
        for room, lines in rooms.items():
            plain = squeezed(lines)
            places += [(room, i) for i in range(len(plain) - len(wanted) + 1) if plain[i:i + len(wanted)] == wanted]
        if len(places) > 1:
            return "fits in %d places" % len(places)
        if places:
            room, at = places[0]
            lines = rooms[room]
            # Lines of the context stay as they are in the room.
            here, changed = at, []
            for line in part:
                if line[:1] == "+":
                    changed.append(line[1:])
                else:
                    if line[:1] != "-":
                        changed.append(lines[here])
                    here += 1
            result = lines[:at] + changed + lines[at + len(old):]
            return list(difflib.unified_diff(lines, result, "a/" + room, "b/" + room, n=3, lineterm=""))
    return "is found nowhere"


def main():
    rooms = {path: read(path) for path in sorted(glob.glob("src/**/*.h", recursive=True) + glob.glob("src/**/*.html", recursive=True))}
    kept, changes, wrong = {}, 0, 0
    for path in sorted(glob.glob("tests/defects/**/*.diff", recursive=True)):
        for title, by, room, diff in defects(path):
            if room not in rooms or not applies(diff):
                new = moved(diff, rooms)
                if isinstance(new, str):
                    print("%s: \"%s\" %s" % (path, title, new))
                    wrong += 1
                else:
                    print("%s: \"%s\" is in %s now" % (path, title, new[0][6:]))
                    diff, room, changes = new, new[0][6:], changes + 1
            elif path != place_of(room):
                changes += 1
            kept.setdefault(place_of(room), []).append((title, by, room, diff))
    if changes and "--check" not in sys.argv[1:]:
        for path in glob.glob("tests/defects/**/*.diff", recursive=True):
            os.remove(path)
        for path, some in kept.items():
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(HEAD % some[0][2] + "\n\n")
                for title, by, room, diff in some:
                    file.write("title: %s\nby: %s\n%s\n\n" % (title, by, "\n".join(diff)))
    print("defects: %d, moved %d, to be mended by hand %d" % (sum(map(len, kept.values())), changes, wrong))
    return 1 if wrong else 0


def place_of(room):
    return "tests/defects/" + re.sub(r"\.\w+$", ".diff", room[4:])


sys.exit(main())
