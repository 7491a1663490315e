"""Wrong calls of every operator, in separate processes: see wrong_calls.py."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, SEED, library_path

WORKER = Path(__file__).with_name("wrong_calls.py")


def run(library, tmp_path, *arguments, **environment):
    log = tmp_path / "call.txt"
    done = subprocess.run([sys.executable, WORKER, library, "--log", log, *map(str, arguments)], env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode != 0:
        under_way = log.read_text() if log.exists() else ""
        pytest.fail(f"wrong_calls.py {' '.join(map(str, arguments))} ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-6000:]}\nits last call:\n{under_way}", pytrace=False)
    return done.stdout


def test_wrong_calls_end_in_words_and_touch_no_memory_of_others(tmp_path):
    said = run(library_path(), tmp_path, "--calls", 3000, "--seed", SEED)
    assert said.endswith(", 0 are wrong\n"), said


@pytest.mark.long
def test_many_wrong_calls(tmp_path):
    run(library_path(), tmp_path, "--calls", 20_000, "--seed", SEED + 1)


@pytest.mark.long
def test_wrong_calls_under_the_address_sanitizer(tmp_path):
    library = REPOSITORY / "build" / "asan" / "lib" / "libspikeforge.so"
    if not library.exists():
        pytest.skip("the preset asan is not built: cmake --preset asan && cmake --build --preset asan --target spikeforge")
    compiler = shutil.which("g++") or shutil.which("c++")
    preloaded = [subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip() for name in ("libasan.so", "libubsan.so", "libstdc++.so")]
    # torch is not built with AddressSanitizer, and never frees some memory. Too large allocations fail as without the sanitizer.
    options = "detect_leaks=0:protect_shadow_gap=0:allocator_may_return_null=1:alloc_dealloc_mismatch=0:detect_odr_violation=0"
    run(library, tmp_path, "--calls", 10_000, "--seed", SEED + 2, LD_PRELOAD=" ".join(preloaded), ASAN_OPTIONS=options, UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1", SPIKEFORGE_LIBRARY=str(library))


