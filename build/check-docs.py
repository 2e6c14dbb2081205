#!/usr/bin/env python3
"""Checks a tree's documents: each relative link must lead to a file and each anchor to one of its headings, each `make NAME`
must be a target of the Makefile, each alert must have a runbook, docs/events.md and docs/compatibility.md must list the names of
the code, and docs/README.md, which is also the menu of the site, every page. Prints one line for each mistake, and then exits
with status 1."""
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
    """The anchors that a renderer gives to a file's headings."""
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

def check_runbooks():
    """Each alert has a runbook_url that is its section, and each section is about an alert."""
    name = "deploy/dashboards/alerts.yaml"
    if not os.path.exists(os.path.join(root, name)):
        return
    runbooks = "docs/runbooks.md"
    known = anchors(os.path.join(root, runbooks))
    rules = re.split(r"^  - alert: ", open(os.path.join(root, name)).read(), flags=re.M)[1:]
    for rule in rules:
        alert = rule.split("\n")[0]
        if f"runbook_url: {runbooks}#{alert.lower()}\n" not in rule:
            mistakes.append(f"{name}: {alert}: its runbook_url is not {runbooks}#{alert.lower()}")
        elif alert.lower() not in known:
            mistakes.append(f"{runbooks}: no section on {alert}")
    alerts = {rule.split("\n")[0].lower() for rule in rules}
    for section in sorted(known - alerts - {"runbooks"}):
        mistakes.append(f"{runbooks}: section {section}: no such alert")


def events_of_the_code():
    """The texts of two words or more, as Kubernetes writes reasons, in each `fn reason` of vgpu-controller's crates, and in the
    plugin's files that make notices."""
    reasons = set()
    for folder in ["driver", "kubelet-plugin/src"]:
        for at, _, files in os.walk(os.path.join(root, folder)):
            for file in files:
                if not file.endswith(".rs") or "test" in file:
                    continue
                code = open(os.path.join(at, file)).read().split("#[cfg(test)]")[0]
                parts = re.findall(r"fn reason\(&?self\) -> &'static str \{(.*?)\n    \}", code, re.S)
                if folder != "driver" and "Notice" in code:
                    parts = [code]
                for part in parts:
                    reasons |= set(re.findall(r'"([A-Z][a-z]+[A-Z][A-Za-z]*)"', part))
    return reasons


def check_events():
    """The first column of docs/events.md has the reasons of the code, and no other."""
    name = "docs/events.md"
    if not os.path.exists(os.path.join(root, name)):
        return
    documented = set(re.findall(r"^\| `(\w+)` \|", open(os.path.join(root, name)).read(), re.M))
    known = events_of_the_code()
    mistakes.extend(f"{name}: event {reason} of the code is missing" for reason in sorted(known - documented))
    mistakes.extend(f"{name}: event {reason}: the code has none" for reason in sorted(documented - known))


def check_menu():
    """Each page has a row in docs/README.md, but for decisions, platforms and transcripts, to which other pages lead."""
    folder = os.path.join(root, "docs")
    if not os.path.exists(os.path.join(folder, "README.md")):
        return
    rows = re.findall(r"^\| \[[^\]]*\]\(([^)#]+)\)", open(os.path.join(folder, "README.md")).read(), re.M)
    pages = [os.path.relpath(os.path.join(at, file), folder) for at, _, names in os.walk(folder) for file in names]
    for page in sorted(set(pages) - set(rows) - {"README.md"}):
        if page.endswith(".md") and not re.match(r"adr/0|platforms/(?!README)|.*-transcript", page):
            mistakes.append(f"docs/README.md: no row for {page}")


def promised(row):
    """The code words in the second column of docs/compatibility.md's row `row`*."""
    cells = re.search(rf"^\| {re.escape(row)}\* \| (.*?) \|", open(os.path.join(root, "docs/compatibility.md")).read(), re.M)
    return set(re.findall(r"`([^`]+)`", cells[1])) if cells else set()


def check_promise():
    """The rows with * of docs/compatibility.md have the names of the chart and of the code, and no other."""
    name = "docs/compatibility.md"
    if not os.path.exists(os.path.join(root, name)):
        return

    def found(pattern, *files):
        return {match for file in files for match in re.findall(pattern, open(os.path.join(root, file)).read(), re.M)}

    chart = "deploy/helm/dra-driver-vgpu"
    classes = open(os.path.join(root, chart, "values.yaml")).read().partition("\ndeviceClasses:\n")[2]
    commands = re.search(r"^enum Command \{(.*?)^\}", open(os.path.join(root, "cli/src/flags.rs")).read(), re.M | re.S)[1]
    commands = re.sub(r"#\[command\([^\]]*hide = true[^\]]*\)\]\n +\w+", "", commands)
    kinds = found(r"^    kind: (\w+)$", f"{chart}/templates/quota-crd.yaml", f"{chart}/templates/usage-crd.yaml")
    known = {
        "DeviceClasses": set(re.findall(r"^  ([a-z-]+):", re.split(r"^[a-z]", classes, flags=re.M)[0], re.M)),
        "kinds": kinds | {"VgpuConfig", "dra.vgpu/v1alpha1"},
        "chart values": found(r"^([a-zA-Z]+):", f"{chart}/values.yaml"),
        "commands": {f"vgpu {command.lower()}" for command in re.findall(r"^    ([A-Z]\w+)", commands, re.M)},
        "exit statuses": found(r": u8 = (\d+);", "cli/src/exit.rs"),
    }
    for row, names in known.items():
        words = promised(row)
        mistakes.extend(f"{name}: {row}: {word} of the code is missing" for word in sorted(names - words))
        mistakes.extend(f"{name}: {row}: {word}: the code has none" for word in sorted(words - names))


check_runbooks()
check_events()
check_menu()
check_promise()
print("\n".join(mistakes) if mistakes else f"{len(files)} documents: links, make targets, runbooks, events and promised names are there")
sys.exit(1 if mistakes else 0)
