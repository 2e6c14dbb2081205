#!/usr/bin/env python3
"""long-functions.py: functions of more than 60 lines outside tests, with their places, and their number."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 60
FUNCTION = re.compile(r'( *)(?:pub(?:\(.*?\))? )?(?:const |async |unsafe |extern "C" )*fn (\w+)')
TEST_FILE = re.compile(r'(^|/)(tests|target)/|(^|/)tests\.rs$|_tests?\.rs$')


def long_functions(text):
    """Yields (line, name, lines). rustfmt puts the last brace of a function, and of a test module, below its first letter."""
    begin, test_end = None, None
    for number, line in enumerate(text.splitlines(), 1):
        indent = line[:len(line) - len(line.lstrip())]
        if test_end:
            test_end = None if line == test_end else test_end
        elif re.match(r'\s*#\[cfg\((all\()?test\b', line):
            test_end = indent + '}'
        elif begin is None:
            found = FUNCTION.match(line)
            if found and not line.endswith((';', '}')):
                begin, end, name = number, found[1] + '}', found[2]
        elif line == end:
            if number - begin >= LIMIT:
                yield begin, name, number - begin + 1
            begin = None
        elif indent + '}' == end and line.endswith(';'):  # A declaration over several lines.
            begin = None


count = 0
for path in sorted(ROOT.rglob('*.rs')):
    name = path.relative_to(ROOT).as_posix()
    if not TEST_FILE.search(name):
        for line, function, lines in long_functions(path.read_text()):
            print(f'{name}:{line}: {function}: {lines} lines')
            count += 1
print(f'{count} functions of more than {LIMIT} lines')
