#!/usr/bin/env python3
"""Compares a document's table of crates (`| folder | crate | depends on | ...`) with `cargo metadata --no-deps`, which is
read from standard input: which crates there are, and what each depends on (without the prefix vgpu-; dependencies of
tests and build scripts do not count). Prints one line for each difference; exit status 1 then."""
import json
import re
import sys

packages = json.load(sys.stdin)["packages"]
own = {package["name"] for package in packages}
real = {}
for package in packages:
    names = {d["name"] for d in package["dependencies"] if d["kind"] is None and d["name"] in own}
    real[package["name"]] = ", ".join(sorted(re.sub("^vgpu-", "", name) for name in names)) or "nothing"

table = re.search(r"^\| folder \| crate \| depends on \|.*\n((?:\|.*\n)*)", open(sys.argv[1]).read(), re.M)
rows = [[cell.strip() for cell in row.split("|")[2:4]] for row in table[1].splitlines()[1:]]
written = dict(rows)

different = [name for name in sorted({*real, *written}) if real.get(name) != written.get(name)]
for name in different:
    print(f"{sys.argv[1]}: {name}: depends on {real.get(name, '(no such crate)')}; table: {written.get(name, '(no row)')}")
sys.exit(1 if different else 0)
