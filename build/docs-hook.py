"""Hooks of mkdocs.yml: the menu is made of the tables of docs/README.md, and links that leave docs/ lead to the repository."""
import os
import posixpath
import re

SECTION = re.compile(r"^## (.*)$")
ROW = re.compile(r"^\| \[[^\]]*\]\(([^)#:]*)\)")
LINK = re.compile(r"(\]\()(\.\./[^)\s]*)(\))")


def on_config(config):
    """A tab for each heading of docs/README.md, with the pages of its table."""
    menu = [{"Home": "README.md"}]
    with open(os.path.join(config["docs_dir"], "README.md"), encoding="utf-8") as readme:
        for line in readme:
            if heading := SECTION.match(line):
                menu.append({heading[1]: []})
            elif (row := ROW.match(line)) and not row[1].startswith("../"):
                next(iter(menu[-1].values())).append(row[1])
    config["nav"] = menu
    return config


def on_page_markdown(markdown, page, config, files):
    def outside(link):
        path, _, anchor = link[2].partition("#")
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), path))
        if path == "docs" or path.startswith("docs/"):
            return link[0]
        return f"{link[1]}{config['extra']['source']}/{path}{'#' * bool(anchor)}{anchor}{link[3]}"

    return LINK.sub(outside, markdown)
