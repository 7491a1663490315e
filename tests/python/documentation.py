"""The documentation as tests read it: README.md and the other pages of the repository.

A block of code or a table that a test runs or compares has <!-- test: NAME --> on the line above it. A name is given once.
"""

import functools
import re

from conftest import REPOSITORY

PAGES = {
    path.relative_to(REPOSITORY).as_posix(): path.read_text()
    for pattern in ("*.md", "docs/*.md", ".github/*.md")
    for path in sorted(REPOSITORY.glob(pattern))
}
MARK = re.compile(r"^<!-- test: (.+) -->\n", re.MULTILINE)


@functools.cache
def marked():
    """The text under each mark, to the end of its page."""
    found = {}
    for page, text in PAGES.items():
        for mark in MARK.finditer(text):
            assert mark[1] not in found, f"two blocks are called {mark[1]!r}, one of them in {page}"
            found[mark[1]] = page, text[mark.end():]
    return found


def below(name, pattern, what):
    assert name in marked(), f"no page has <!-- test: {name} -->"
    page, text = marked()[name]
    block = re.match(pattern, text, re.DOTALL)
    assert block, f"{page}: no {what} right below <!-- test: {name} -->"
    return block[1]


def code(name):
    return below(name, r"```[^\n]*\n(.*?\n)```\n", "block of code")


def table(name):
    """The rows below the head, each a list of cells."""
    rows = below(name, r"\|[^\n]*\n\|[-|]+\n((?:\|[^\n]*\n)+)", "table")
    return [[cell.strip() for cell in line.strip("|\n").split("|")] for line in rows.splitlines()]


def prose(page):
    """A page without its code and mathematics."""
    text = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`|\$[^$\n]*\$", "", text)


def anchors(page):
    """The names that headings have in links."""
    text = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
