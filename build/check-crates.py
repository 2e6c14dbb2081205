#!/usr/bin/env python3
"""Compares what a document says of the crates with `cargo metadata --no-deps`, which is read from standard input.

The table (`| folder | crate | depends on | ...`): which crates there are, and what each depends on (without the prefix
vgpu-; dependencies of tests and build scripts do not count). The picture, the first code block below `## Crates`: each
arrow is a dependency, one that follows from other arrows is left out, and no other is missing. Each crate is in the picture
or in the paragraph below it. Prints one line for each difference; exit status 1 then."""
import json
import re
import sys

# The sides on which a character of the picture is joined: up, down, left, right. A crossing (┼) joins nothing: a line goes
# straight on.
SIDES = {"│": "ud", "─": "lr", "┌": "dr", "┐": "dl", "└": "ur", "┘": "ul", "┬": "lrd", "┴": "lru", "├": "udr", "┤": "udl"}
STEP = {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}
BACK = {"u": "d", "d": "u", "l": "r", "r": "l"}
ARROWS = {"▼": "d", "►": "r", "◄": "l", "▲": "u"}


def short(name):
    return re.sub("^vgpu-", "", name)


class Picture:
    """Boxes of names, and lines between them that end with an arrowhead at the name of a dependency."""

    def __init__(self, text):
        self.rows = text.splitlines()
        self.at = {}
        for row, line in enumerate(self.rows):
            for word in re.finditer(r"[a-z][a-z-]*", line):
                self.at.update({(row, column): word[0] for column in range(*word.span())})
        self.names = set(self.at.values())

    def char(self, row, column):
        return self.rows[row][column : column + 1] if 0 <= row < len(self.rows) and column >= 0 else ""

    def arrows(self):
        """(crate, dependency) of each arrow."""
        found = set()
        for (row, column), name in self.at.items():
            # A line leaves a name downwards, or to a side with a space between.
            starts = [(row + 1, column, "d"), (row, column + 2, "r"), (row, column - 2, "l")]
            starts += [(row, column + 1, "r"), (row, column - 1, "l")]
            for start in starts:
                if self.at.get(start[:2]) is None:
                    found |= {(name, to) for to in self.follow(start)}
        return found

    def follow(self, start):
        """The names at the arrowheads that a line leads to."""
        ends, seen, todo = set(), set(), [start]
        while todo:
            row, column, way = todo.pop()
            if (row, column, way) in seen:
                continue
            seen.add((row, column, way))
            char = self.char(row, column)
            down, right = STEP[way]
            if ARROWS.get(char) == way:
                near = [(row + down * n, column + right * n) for n in (1, 2)]
                ends |= set([self.at[cell] for cell in near if cell in self.at][:1])
            elif char == "┼":
                todo.append((row + down, column + right, way))
            elif BACK[way] in SIDES.get(char, ""):
                for side in SIDES[char].replace(BACK[way], ""):
                    todo.append((row + STEP[side][0], column + STEP[side][1], side))
        return ends


def reaches(edges, start, goal):
    """Whether edges lead from one name to the other, by way of at least one more."""
    todo, seen = [to for of, to in edges if of == start and to != goal], set()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += [to for of, to in edges if of == name]
    return goal in seen


def differences(document, depends):
    text = open(document).read()
    table = re.search(r"^\| folder \| crate \| depends on \|.*\n((?:\|.*\n)*)", text, re.M)
    rows = [[cell.strip() for cell in row.split("|")[2:4]] for row in table[1].splitlines()[1:]]
    written = dict(rows)
    real = {name: ", ".join(sorted(map(short, of))) or "nothing" for name, of in depends.items()}
    for name in sorted({*real, *written}):
        if real.get(name) != written.get(name):
            yield f"{name}: depends on {real.get(name, '(no such crate)')}; table: {written.get(name, '(no row)')}"
    drawn = re.search(r"^## Crates\n+```\n(.*?)```\n+(.*?)\n\n", text, re.M | re.S)
    if not drawn:
        yield "no picture of the crates below `## Crates`"
        return
    picture, beside = Picture(drawn[1]), set(re.findall(r"[\w-]+", drawn[2]))
    crates = {short(name): set(map(short, of)) for name, of in depends.items()}
    for name in sorted(picture.names - set(crates)):
        yield f"picture: {name}: no such crate"
    for name in sorted(depends):
        if short(name) not in picture.names and not {name, short(name)} & beside:
            yield f"{name}: neither in the picture nor in the paragraph below it"
    arrows = picture.arrows()
    needed = {(name, of) for name in picture.names & set(crates) for of in crates[name] & picture.names}
    for of, to in sorted(arrows - needed):
        yield f"picture: {of} has an arrow to {to}, and does not depend on it"
    for of, to in sorted(needed):
        if reaches(needed, of, to) and (of, to) in arrows:
            yield f"picture: the arrow from {of} to {to} follows from others; leave it out"
        elif not reaches(needed, of, to) and (of, to) not in arrows:
            yield f"picture: {of} depends on {to}, and has no arrow to it"


packages = json.load(sys.stdin)["packages"]
own = {package["name"] for package in packages}
depends = {p["name"]: {d["name"] for d in p["dependencies"] if d["kind"] is None and d["name"] in own} for p in packages}
different = list(differences(sys.argv[1], depends))
for line in different:
    print(f"{sys.argv[1]}: {line}")
sys.exit(1 if different else 0)
