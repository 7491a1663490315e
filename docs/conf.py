"""Sphinx's configuration: scripts/docs builds the pages of this folder, its tutorials and the reference into build/docs."""

import os
import re
import shutil
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "build/docs/source"
sys.path[:0] = [str(REPOSITORY / "python"), str(REPOSITORY / "docs")]

# Where the repository can be browsed, such as https://github.com/<owner>/spikeforge/blob/main: links to its files lead there.
# Without it a file is copied beside the pages, and a folder is named.
BROWSED_AT = os.environ.get("SPIKEFORGE_DOCS_REPOSITORY", "").rstrip("/")

project = "spikeforge"
author = "The spikeforge maintainers"
version_header = (REPOSITORY / "csrc/base/version.h").read_text()
version = release = ".".join(re.search(rf"{part} (\d+)", version_header)[1] for part in ("MAJOR", "MINOR", "PATCH"))

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "sphinxcontrib.mermaid",
    "sphinx-mathjax-offline",
    "sphinx_parts",
]
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!spikeforge\.).*"),  # types of torch and Python, which have pages of their own
    ("py:class", r"spikeforge\.(trace\.(signature|initial|value)\.|nn\.own\.|custom_op\._|simulation\.Population).*"),  # made by others alone
]

# --- markdown, as GitHub shows it

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math", "mermaid"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]

# --- the reference

default_role = "literal"  # docstrings write names as `name`
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
add_module_names = False

# --- the tutorials

sphinx_gallery_conf = {
    "examples_dirs": str(REPOSITORY / "docs/tutorials"),
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "sphinx_parts.OrderOfTheIndex",
    "default_thumb_file": str(REPOSITORY / "docs/raster.png"),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "min_reported_time": 1e9,
    "show_memory": False,
    "write_computation_times": False,
}

# --- how it looks

html_theme = "furo"
html_title = f"spikeforge {version}"
html_static_path = [str(REPOSITORY / "docs/_static")]
html_css_files = ["pages.css"]
html_show_sourcelink = False
html_show_copyright = False


# --- pages and the links between them
#
# Sphinx reads a folder with copies of the pages: those of docs/, and the repository's own, of which README.md is the home page. Links
# keep the meaning that they have in the repository. The tables of docs/README.md are the sidebar.

PAGES = {REPOSITORY / "README.md": "index", REPOSITORY / "docs/README.md": "pages"}
PAGES |= {path: path.stem for path in (REPOSITORY / "docs").glob("*.md") if path.name != "README.md"}
PAGES |= {path: f"api/{path.stem}" for path in (REPOSITORY / "docs/api").glob("*.rst")}
PAGES |= {path: f"gallery/{path.stem}" for path in (REPOSITORY / "docs/tutorials").glob("*.py")}
PAGES |= {REPOSITORY / "docs/tutorials/README.rst": "gallery/index"}
PAGES |= {REPOSITORY / f"{name}.md": page for name, page in
          {"CHANGELOG": "changelog", "CONTRIBUTING": "contributing", "SECURITY": "security"}.items()}
FILES = {page: path for path, page in PAGES.items()}

CODE = re.compile(r"(^```.*?^```|^~~~.*?^~~~)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]`]|`[^`]*`)*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
HEADING_OR_LINK = re.compile(r"^## (.*)$|^\| \[([^\]]*)\]\(([^)#]+)\)", re.MULTILINE)


def resolved(page, link):
    return Path(os.path.normpath(FILES[page].parent / link))


def led(page, link):
    """Rewrites a link of a page for Sphinx's folder."""
    image, shown, path, anchor = link[1], link[2], link[3], link[4] or ""
    if ":" in path:
        return link[0]
    target = resolved(page, path)
    above = "../" * page.count("/")
    if target in PAGES:
        return f"[{shown}]({above}{PAGES[target]}{'.md' if target.suffix == '.md' else '.rst'}{anchor})"
    inside = target.relative_to(REPOSITORY)
    if image:
        return f"![{shown}]({above}{target.name})"
    if BROWSED_AT:
        return f"[{shown}]({BROWSED_AT}/{inside}{anchor})"
    if target.is_file():
        return f"[{shown}]({os.path.relpath(target, SOURCE / page / '..')})"
    return shown if str(inside) in shown else f"{shown} (`{inside}`)"


def sidebar():
    """Returns a toctree for each section of docs/README.md, with the links in the first column of its table."""
    trees = []
    for found in HEADING_OR_LINK.finditer(FILES["pages"].read_text()):
        if found[1]:
            trees.append((found[1], []))
        else:
            trees[-1][1].append(f"{found[2]} <{PAGES[resolved('pages', found[3])]}>")
    return "".join(f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(entries) + "\n```\n"
                   for caption, entries in trees if entries)


def read(app, page, source):
    if page not in FILES or FILES[page].suffix != ".md":
        return
    parts = CODE.split(source[0])
    parts[::2] = [LINK.sub(lambda link: led(page, link), part) for part in parts[::2]]
    parts[1::2] = [re.sub(r"^```\n", "```text\n", part) for part in parts[1::2]]  # Sphinx would highlight output as Python
    front = "---\norphan: true\n---\n" if page == "pages" else ""  # the sidebar has the pages that it lists
    source[0] = front + "".join(parts) + (sidebar() if page == "index" else "")


def stage(app, config):
    """Copies pages and pictures to the folder that Sphinx reads, so that what it generates there lies outside docs/."""
    wanted = {SOURCE / f"{page}{path.suffix}": path for path, page in PAGES.items() if not page.startswith("gallery/")}
    wanted |= {SOURCE / path.name: path for path in (REPOSITORY / "docs").glob("*.png")}
    for copy in [*SOURCE.glob("*.*"), *SOURCE.glob("api/*")]:
        if copy not in wanted:
            copy.unlink()
    for copy, path in wanted.items():
        if not copy.exists() or copy.stat().st_mtime_ns != path.stat().st_mtime_ns:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)


def setup(app):
    app.connect("config-inited", stage)
    app.connect("source-read", read)
