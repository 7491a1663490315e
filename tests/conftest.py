"""The tiers of the Python tests.

A test marked `long` belongs to scripts/test --all. A run of whole folders leaves it out, unless SPIKEFORGE_ALL_TESTS=1 or -m
says otherwise; a file or a test that is named runs whole.

    @pytest.mark.long                        all of its cases are long
    @pytest.mark.long(but=r"^cpu-lif-")      but those whose id, within brackets, this expression finds
"""

import os
import re

import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "long: of scripts/test --all; with but=<expression>, not for the cases whose id it finds")


def names_a_file(config):
    return any(".py" in argument for argument in config.args)


def is_long(item):
    marks = list(item.iter_markers("long"))
    case = item.name.partition("[")[2].rstrip("]")
    return any("but" not in mark.kwargs or not re.search(mark.kwargs["but"], case) for mark in marks)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    long = [item for item in items if is_long(item)]
    chosen = set(long)
    for item in items:
        if item not in chosen:
            item.own_markers = [mark for mark in item.own_markers if mark.name != "long"]
    if os.environ.get("SPIKEFORGE_ALL_TESTS") == "1" or config.option.markexpr or names_a_file(config):
        return
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in chosen]
