"""Helpers for tests of the documentation: README.md and the other pages of the repository.

A code block or table that a test uses has <!-- test: NAME --> on the line above it. Each NAME occurs once.
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
    """Returns the text after each mark, up to the end of its page."""
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
    """Returns the rows below the header, each a list of cells."""
    rows = below(name, r"\|[^\n]*\n\|[-|]+\n((?:\|[^\n]*\n)+)", "table")
    return [[cell.strip() for cell in line.strip("|\n").split("|")] for line in rows.splitlines()]


def prose(page):
    """Returns a page without code and mathematics."""
    text = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`|\$[^$\n]*\$", "", text)


def anchors(page):
    """Returns the anchors of the page's headings."""
    text = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
