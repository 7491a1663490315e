import fcntl
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

# Inductor caches compiled graphs on disk by the names of operators, and would use those of an older build of the library.
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

import pytest  # noqa: E402
import torch  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("SPIKEFORGE_SEED", "20240229"))
CUDA_REQUIRED = os.environ.get("SPIKEFORGE_REQUIRE_CUDA") == "1"


# Imports the Python package from the source tree, in this process and in those that tests start.
sys.path.insert(0, str(REPOSITORY / "python"))
sys.path += map(str, Path(__file__).parent.iterdir())  # tests import helpers from other folders
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [sys.path[0], os.environ.get("PYTHONPATH")]))


def library_path():
    default = REPOSITORY / "build" / "release" / "lib" / "libspikeforge.so"
    return Path(os.environ.get("SPIKEFORGE_LIBRARY", default))


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU")
    config.addinivalue_line("markers", "slow: needs much memory or time; runs where there is room for it")
    path = library_path()
    if not path.exists():
        pytest.exit(f"{path} does not exist: build the project, or set SPIKEFORGE_LIBRARY", returncode=2)
    os.environ["SPIKEFORGE_LIBRARY"] = str(path.absolute())
    torch.ops.load_library(str(path))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    """Adds the marker gpu, applies -m and -k, and selects this process's share of the tests.

    SPIKEFORGE_SHARD=2/8 selects every eighth test from the second on: eight processes compile kernels in parallel.
    """
    for item in items:
        if "cuda" in item.fixturenames or getattr(item, "callspec", None) and item.callspec.params.get("device") == "cuda":
            item.add_marker("gpu")
    result = yield
    shard = os.environ.get("SPIKEFORGE_SHARD")
    if shard is not None:
        index, count = (int(part) for part in shard.split("/"))
        config.hook.pytest_deselected(items=[item for i, item in enumerate(items) if i % count != index - 1])
        items[:] = [item for i, item in enumerate(items) if i % count == index - 1]
    return result


def pytest_report_header():
    cuda = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return f"spikeforge: {library_path()}, torch {torch.__version__}, GPU: {cuda}, SPIKEFORGE_SEED={SEED}"


def require_cuda():
    if torch.cuda.is_available():
        return
    message = "no CUDA GPU on this machine"
    if CUDA_REQUIRED:
        pytest.fail(f"{message}, but SPIKEFORGE_REQUIRE_CUDA=1", pytrace=False)
    pytest.skip(message)


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    if request.param == "cuda":
        require_cuda()
    return torch.device(request.param)


@pytest.fixture
def cuda():
    require_cuda()
    return torch.device("cuda")


@pytest.fixture(autouse=True)
def seeded(request):
    """Seeds each test with its own seed, the same in each run; SPIKEFORGE_SEED selects other seeds."""
    path, _, case = request.node.nodeid.partition("::")
    seed = zlib.crc32(f"tests/python/{Path(path).name}::{case}".encode()) ^ SEED  # independent of the folder
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # tensors are small; tests of threads set more
    print(f"seed {seed} (SPIKEFORGE_SEED={SEED})")
    return seed


@pytest.fixture(scope="session")
def installed_package():
    """The folder with an installed build, created once for all processes of a run."""
    for tool in ("c++", "cmake"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool} on this machine")
    build = library_path().resolve().parents[1]
    if not (build / "cmake_install.cmake").exists():
        pytest.skip(f"{library_path()} does not lie in a build folder, so there is nothing to install")
    prefix, run = build / "installed", os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    with open(build / "installed.lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if lock.read() != run:
            shutil.rmtree(prefix, ignore_errors=True)
            subprocess.run(["cmake", "--install", build, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
            lock.truncate(0)
            lock.write(run)
    return prefix
