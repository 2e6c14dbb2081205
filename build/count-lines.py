#!/usr/bin/env python3
"""count-lines.py [GIT-REF]: lines of Rust by crate, of the work tree or of a commit: code, then tests. Blank lines and comments
are left out, and so is e2e/. Tests are files below tests/, files named tests.rs, *_test.rs or *_tests.rs, and inline test
modules (`#[cfg(test)] mod NAME { ... }`)."""
import pathlib
import re
import subprocess
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
TEST_FILE = re.compile(r'(^|/)tests/|(^|/)tests\.rs$|_tests?\.rs$')


def lines(text):
    """Returns (code lines, lines of inline test modules). rustfmt puts a module's closing brace below its first letter."""
    code = tests = 0
    in_comment, cfg_test, end = False, False, None
    for line in text.splitlines():
        word = line.strip()
        if in_comment or word.startswith('/*'):
            in_comment = '*/' not in word
            continue
        if not word or word.startswith('//'):
            continue
        if end is None and cfg_test and re.match(r'(pub(\(.*\))? )?mod \w+ \{$', word):
            end = line[:len(line) - len(line.lstrip())] + '}'
            code, tests = code - 1, tests + 1  # The attribute above.
        cfg_test = re.match(r'#\[cfg\((all\()?test\b', word) or cfg_test and word.startswith('#[')
        if end is None:
            code += 1
        else:
            tests += 1
        end = None if line == end else end
    return code, tests


def main(root):
    crates = sorted(path.parent for path in root.rglob('Cargo.toml') if 'target' not in path.relative_to(root).parts)
    sums = {}
    for path in root.rglob('*.rs'):
        name = path.relative_to(root).as_posix()
        if name.startswith(('e2e/', 'target/')) or not path.is_file():
            continue
        crate = max((crate for crate in crates if crate in path.parents), key=lambda crate: len(crate.parts))
        code, tests = lines(path.read_text())
        if TEST_FILE.search(path.relative_to(crate).as_posix()):
            code, tests = 0, code + tests
        total = sums.setdefault(crate.relative_to(root).as_posix(), [0, 0])
        total[0], total[1] = total[0] + code, total[1] + tests
    for crate, (code, tests) in sorted(sums.items()):
        print(f'{code:7} {tests:7}  {crate}')
    print(f'{sum(code for code, _ in sums.values()):7} {sum(tests for _, tests in sums.values()):7}  all')


if len(sys.argv) > 1:
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(['git', '-C', REPOSITORY, 'archive', sys.argv[1]], check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(['tar', '-x', '-C', folder], check=True, input=archive)
        main(pathlib.Path(folder))
else:
    main(REPOSITORY)
