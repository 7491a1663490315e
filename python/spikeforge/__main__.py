"""python -m spikeforge info: versions, GPUs, compilers, caches and kernel packs on this machine."""

import argparse
import json
import sys


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m spikeforge", description="Spiking neurons for PyTorch.")
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="versions, GPUs, NVRTC, the cache of kernels, kernel packs")
    info.add_argument("--json", action="store_true", help="for programs")
    arguments = parser.parse_args()
    try:
        import spikeforge._library  # noqa: F401  (raises ImportError without torch)
    except ImportError as error:
        sys.exit(str(error))
    from spikeforge import _info

    found = _info.collect()
    print(json.dumps(found, indent=2) if arguments.json else _info.text(found))
    sys.exit("error" in found)


if __name__ == "__main__":
    main()
