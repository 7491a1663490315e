#!/usr/bin/env python3
"""A fly walks to a light: every 15 ms, its eyes drive the brain, and the spikes of two groups of neurons turn its body.

    python examples/fly/closed_loop.py
    python examples/fly/closed_loop.py --flywire ~/Drosophila_brain_model \\
        --left-eye @a.txt --right-eye @b.txt --turn-left @c.txt --turn-right @d.txt   # files with an id on each line

Without ids, which a stand-in cannot have, the eyes are the neurons with most output, and the neurons that receive most
from one eye, and less from the other, turn to its side.
"""

import argparse
import cmath
import math
import os
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("SPIKEFORGE_LIBRARY", str(ROOT / "build/release/lib/libspikeforge.so"))
sys.path.insert(0, str(ROOT / "python"))

import connectome as connectomes  # noqa: E402
import network as fly  # noqa: E402

TICK = 15.0  # ms
SPEED = 20.0  # mm/s
TURN = 0.02  # radians for each spike
GROUPS = ("left_eye", "right_eye", "turn_left", "turn_right")
EYE, TURNERS = 10, 20  # neurons of such groups in a stand-in


def groups(connectome):
    """Returns the neurons of the left and right eye, and those that turn left and right, of a stand-in."""
    hubs = connectome.hubs(2 * EYE)
    eyes = hubs[::2], hubs[1::2]
    left, right = (received(connectome, eye) for eye in eyes)
    return *eyes, *(difference.argsort(descending=True)[:TURNERS] for difference in (left - right, right - left))


def received(connectome, sources):
    """Returns the number of synapses that each neuron receives from the sources, inhibitory ones counted as negative."""
    here = torch.isin(connectome.sources, sources)
    return torch.zeros_like(connectome.ids).index_add_(0, connectome.targets[here], connectome.synapses[here])


def walk(brain, left_eye, right_eye, turn_left, turn_right, seconds, light=50 + 50j):
    """Yields time in s, position in mm as x + iy, and heading in radians."""
    brain.activate(torch.cat([left_eye, right_eye]), rate=0)  # no refractory period; the drive below is their input
    sight = brain.network.drive(brain.neurons, 0.0, weight=fly.F_POI * fly.W_SYN, into="poisson")
    rates = torch.zeros(len(brain.neurons))
    position, heading = 0j, 0.0
    for tick in range(round(seconds * 1000 / TICK)):
        side = cmath.phase((light - position) * cmath.exp(-1j * heading))  # above 0 if the light is on the left
        share = (1 + math.sin(side)) / 2
        rates[left_eye], rates[right_eye] = fly.R_POI * share, fly.R_POI * (1 - share)
        sight.set_rate(rates * fly.DT / 1000)
        spikes = brain.network.step(round(TICK / fly.DT))
        heading += TURN * float(spikes[:, turn_left].sum() - spikes[:, turn_right].sum())
        position += SPEED * TICK / 1000 * cmath.exp(1j * heading)
        yield (tick + 1) * TICK / 1000, position, heading


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, fromfile_prefix_chars="@"
    )
    connectomes.add_options(parser)
    for name in GROUPS:
        parser.add_argument("--" + name.replace("_", "-"), type=int, nargs="+", metavar="ID")
    parser.add_argument("--seconds", type=float, default=3, help="biological time (default: 3)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    try:
        connectome = connectomes.chosen(options)
        ids = [getattr(options, name) for name in GROUPS]
        if not all(ids) and (any(ids) or options.flywire or options.male_cns):
            raise ValueError("--" + ", --".join(GROUPS).replace("_", "-") + " need ids of neurons")
        found = [connectome.neurons(each) for each in ids] if all(ids) else groups(connectome)
    except (ImportError, OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    light = 50 + 50j
    print(f"light at ({light.real:g}, {light.imag:g}) mm\n{'time (s)':>8}{'x (mm)':>9}{'y (mm)':>9}{'heading (°)':>13}{'to the light (mm)':>19}")
    for number, (time, position, heading) in enumerate(walk(fly.Fly(connectome, device=options.device), *found, options.seconds, light), 1):
        if number % 20 == 0:
            degrees = math.degrees(heading)
            print(f"{time:8.2f}{position.real:9.1f}{position.imag:9.1f}{degrees:13.0f}{abs(light - position):19.1f}")


if __name__ == "__main__":
    main()
