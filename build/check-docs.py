#!/usr/bin/env python3
"""Checks the documents of a tree: each relative link leads to a file and each anchor to a heading of it, and each
`make NAME` is a target of the Makefile. Prints one line for each that does not; exit status 1 then."""
import os
import re
import subprocess
import sys

root = os.path.realpath(sys.argv[1])
listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=root, capture_output=True, text=True)
files = listed.stdout.split() if listed.returncode == 0 and listed.stdout else [f for f in os.listdir(root) if f.endswith(".md")]
targets = set(re.findall(r"^([a-z-]+):", open(os.path.join(root, "Makefile")).read(), re.M))
mistakes = []


def anchors(path):
    """The names by which a renderer finds the headings of a file."""
    text = re.sub(r"^```.*?^```", "", open(path).read(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in plain}


for name in sorted(files):
    path = os.path.join(root, name)
    if not os.path.exists(path):
        continue
    text = open(path).read()
    for target in re.findall(r"(?:^|[`&] ?)make ([a-z-]+)", text, re.M):
        if target not in targets:
            mistakes.append(f"{name}: make {target}: the Makefile has no such target")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "``", prose)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        to = os.path.join(os.path.dirname(path), file) if file else path
        if not os.path.exists(to):
            mistakes.append(f"{name}: link to {link}: no such file")
        elif anchor and anchor not in anchors(to):
            mistakes.append(f"{name}: link to {link}: no such heading")

print("\n".join(mistakes) if mistakes else f"{len(files)} documents: links and make targets are there")
sys.exit(1 if mistakes else 0)
