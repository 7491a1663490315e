"""The tiers of the Python tests.

Tests marked `long` run in scripts/test --all. A run of whole folders skips them, unless SPIKEFORGE_ALL_TESTS=1 or -m
selects them; a run of a named file or test includes them.

    @pytest.mark.long                        all of its cases are long
    @pytest.mark.long(but=r"^cpu-lif-")      all cases are long, except those whose id (within brackets) matches
    @pytest.mark.covering(2)                 all cases are long, except a selection that contains every pair of values of two
                                             parameters, on every device; with 1, every value

The selection of `covering` is the same in each run. Runs on a GPU with -m gpu use it too.
"""

import itertools
import os
import random
import re

import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "long: of scripts/test --all; with but=<expression>, not for the cases whose id it finds")
    config.addinivalue_line("markers", "covering(strength): the cases beyond a covering selection are long")


def names_a_file(config):
    return any(".py" in argument for argument in config.args)


def is_long(item):
    marks = list(item.iter_markers("long"))
    case = item.name.partition("[")[2].rstrip("]")
    return any("but" not in mark.kwargs or not re.search(mark.kwargs["but"], case) for mark in marks)


def combinations(item, strength):
    """Returns all combinations of `strength` values of the test's parameters, except the device."""
    values = sorted((name, repr(value)) for name, value in item.callspec.params.items() if name != "device")
    return set(itertools.combinations(values, min(strength, len(values))))


def covering_selection(items, strength):
    """Selects greedily a few cases of one test that contain all combinations."""
    items = list(items)
    random.Random(items[0].function.__qualname__).shuffle(items)
    missing = {item: combinations(item, strength) for item in items}
    while any(missing.values()):
        best = max(items, key=lambda item: len(missing[item]))
        yield best
        covered = missing[best]
        missing = {item: found - covered for item, found in missing.items()}


def mark_beyond_covering(items):
    """Marks cases outside the covering selections as long."""
    tests = {}
    for item in items:
        if item.get_closest_marker("covering") and not is_long(item):
            tests.setdefault((item.nodeid.partition("[")[0], item.callspec.params.get("device")), []).append(item)
    for cases in tests.values():
        (strength,) = cases[0].get_closest_marker("covering").args
        for item in set(cases).difference(covering_selection(cases, strength)):
            item.add_marker("long")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    mark_beyond_covering(items)
    long = [item for item in items if is_long(item)]
    chosen = set(long)
    for item in items:
        if item not in chosen:
            item.own_markers = [mark for mark in item.own_markers if mark.name != "long"]
    if os.environ.get("SPIKEFORGE_ALL_TESTS") == "1" or config.option.markexpr not in ("", "gpu") or names_a_file(config):
        return
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in chosen]
