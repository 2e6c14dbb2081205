#!/usr/bin/env python3
"""Checks a tree's documents: each relative link must lead to a file and each anchor to one of its headings, each `make NAME`
must be a target of the Makefile, each alert must have a runbook, docs/events.md and docs/compatibility.md must list the names of
the code, and docs/README.md, which is also the menu of the site, every page. Commands that users paste must be ones that exist
(check_commands). Prints one line for each mistake, and then exits with status 1."""
import json
import os
import re
import shlex
import subprocess
import sys

root = os.path.realpath(sys.argv[1])
listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=root, capture_output=True, text=True)
files = listed.stdout.split() if listed.returncode == 0 and listed.stdout else [f for f in os.listdir(root) if f.endswith(".md")]
targets = set(re.findall(r"^([a-z0-9-]+):", open(os.path.join(root, "Makefile")).read(), re.M))
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
    for target in re.findall(r"(?:^|[`&] ?)make ([a-z0-9-]+)", text, re.M):
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


# Pages whose blocks all have a language, so that no command is in a block that nothing reads.
PASTED = re.compile(r"(README|docs/(install|using|usage|doctor|migrate|symptoms/.*|platforms/.*))\.md$")
SHELL = {"sh", "bash", "console"}
KUBECTL = set("annotate api-resources apply auth cordon create delete describe drain edit exec explain get label logs patch "
              "port-forward rollout run scale taint uncordon version vgpu wait".split())
HELM = set("get history install list package push registry rollback status template test uninstall upgrade".split())


def script_of(language, block):
    """The lines of a block that a user pastes: of a session (`$ ...`) without its output."""
    if not re.search(r"^\$ ", block, re.M):
        return None if language == "console" else block
    lines, is_command = [], False
    for line in block.split("\n"):
        if line.startswith("$ ") or is_command:
            lines.append(line.removeprefix("$ "))
            is_command = line.endswith("\\")
    return "\n".join(lines)


def commands(script):
    """The words of each command, without variables before it and redirections after it."""
    lexer = shlex.shlex(script.replace("\\\n", " ").replace("\n", " ;\n"), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = []
    for word in [*lexer, ";"]:
        if word in ("for", "do", "then", "sudo", "watch") and not words:
            continue
        if not re.fullmatch(r"[;&|()]+", word):
            words.append(word)
            continue
        while words and re.match(r"\w+=", words[0]):
            words = words[1:]
        if words:
            yield [word for word in words if not re.fullmatch(r"[<>]+", word)]
        words = []


def is_value(schema, at, keys):
    """Returns true if the chart's schema has a value of these keys."""
    while "$ref" in at:
        at = schema["definitions"][at["$ref"].rpartition("/")[2]]
    if not keys:
        return True
    if keys[0].startswith("["):
        return "array" in at.get("type", "") and is_value(schema, at.get("items", {}), keys[1:])
    below = at.get("properties", {}).get(keys[0], at.get("additionalProperties", "properties" not in at))
    return is_value(schema, below, keys[1:]) if isinstance(below, dict) else below


def chart_values(words):
    """The keys that a helm command sets."""
    for option, value in zip(words, words[1:] + [""]):
        name, _, rest = option.partition("=")
        if name in ("--set", "--set-string", "--set-json", "--set-file"):
            # Not the commas of a list.
            plain = re.sub(r"\{[^}]*\}", "", rest or value)
            for pair in re.split(r"(?<!\\),", plain):
                yield pair.partition("=")[0]


def check_command(name, words, schema):
    program, *rest = words
    verbs = {"kubectl": KUBECTL, "helm": HELM}.get(program)
    if verbs:
        # Options before the verb, with a value of their own.
        while len(rest) > 1 and rest[0] in ("-n", "--namespace", "--context", "--kubeconfig"):
            rest = rest[2:]
        if not rest or (rest[0] not in verbs and not rest[0].startswith("-")):
            mistakes.append(f"{name}: {' '.join(words)[:80]}: {program} has no command {rest[0] if rest else '(none)'}")
    if program == "helm" and "dra-driver-vgpu" in " ".join(words):
        for key in chart_values(rest):
            parts = re.findall(r"\[\d+\]|(?:\\.|[^.\[\\])+", key)
            if not is_value(schema, schema, [part.replace("\\", "") for part in parts]):
                mistakes.append(f"{name}: --set {key}: the chart's schema has no such value")
        for file in re.findall(r"(?:-f|--values)[ =](deploy/\S+)", " ".join(rest)):
            if not os.path.exists(os.path.join(root, file)):
                mistakes.append(f"{name}: {file}: no such file")


def check_commands():
    """What users paste: bash can read each block of a shell, kubectl and helm have the command, the chart has the values that helm
    sets, and the scripts exist. cli/tests/documented.rs reads the commands of `vgpu`; nothing here runs any."""
    file = os.path.join(root, "deploy/helm/dra-driver-vgpu/values.schema.json")
    schema = json.load(open(file)) if os.path.exists(file) else {}
    for name in sorted(files):
        path = os.path.join(root, name)
        if not os.path.exists(path):
            continue
        text = open(path).read()
        for script in sorted(set(re.findall(r"(?<![\w/.-])(?:build|bench|gpu-check)/[a-z/-]+\.(?:sh|py)\b", text))):
            if not os.path.exists(os.path.join(root, script)):
                mistakes.append(f"{name}: {script}: no such script")
        # Also in sentences: `kubectl get pods`, `--set key=value`.
        spans = re.findall(r"`((?:helm|kubectl|--set) [^`\n]*)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
        scripts = [f"helm upgrade dra-driver-vgpu {span}" if span.startswith("--") else span for span in spans]
        for language, block in re.findall(r"^```(\S*)\n(.*?)^```", text, re.M | re.S):
            if not language and PASTED.match(name):
                mistakes.append(f"{name}: block {block.splitlines()[0][:60]!r} has no language: write sh, console, yaml or text")
            script = script_of(language, block) if language in SHELL else None
            if language == "console" and script is None:
                mistakes.append(f"{name}: block {block.splitlines()[0][:60]!r} of a console has no line with `$ `")
            if script:
                read = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
                mistakes.extend(f"{name}: bash: {line}" for line in read.stderr.splitlines()[:1])
                scripts += [] if read.returncode else [script]
        for script in scripts:
            # `helm upgrade [...]` describes a command, and `<name>` is no redirection.
            if re.search(r"\.\.\.|<\w|(?<![\w\\])\[", script):
                continue
            try:
                for words in commands(script):
                    check_command(name, words, schema)
            except ValueError as error:
                mistakes.append(f"{name}: {script.splitlines()[0][:60]!r}: {error}")


check_runbooks()
check_events()
check_menu()
check_promise()
check_commands()
print("\n".join(mistakes) if mistakes else f"{len(files)} documents: links, make targets, runbooks, events, promised names and pasted commands are there")
sys.exit(1 if mistakes else 0)
