"""Spikes of the fly's brain in Brian2 2.10, which needs Python 3.12: another Python than that of the tests.

    python tests/examples/fly_reference.py PYTHON      # a Python with Brian2; writes fly_brian2.json

A twentieth of the brain, with given input spikes.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from example import ROOT, load

connectomes, fly = load("fly", "connectome"), load("fly", "network")
FILE = Path(__file__).with_name("fly_brian2.json")
SCALE, MILLISECONDS = 0.05, 300.0
ACTIVATED = 6  # every fifth of the neurons with most output


def network():
    """Returns the connectome, the activated neurons, and the steps and neurons of their input spikes."""
    connectome = connectomes.stand_in(SCALE)
    activated = connectome.hubs(5 * ACTIVATED)[::5]
    rates = torch.zeros(len(connectome.ids))
    rates[activated] = fly.R_POI
    return connectome, activated, fly.draw(rates, round(MILLISECONDS / fly.DT), torch.Generator().manual_seed(0))


def digest(connectome, inputs):
    """Returns a hash of the connections and input spikes, which depend on torch's random numbers."""
    arrays = (connectome.sources, connectome.targets, connectome.synapses, *inputs)
    return hashlib.sha256(b"".join(each.numpy().tobytes() for each in arrays)).hexdigest()


def simulate(python, connectome, activated, inputs, milliseconds):
    """Returns steps and neurons of the spikes in Brian2, ordered."""
    with tempfile.TemporaryDirectory() as folder:
        given, spikes = Path(folder, "network.npz"), Path(folder, "spikes.npz")
        np.savez(
            given, size=len(connectome.ids), sources=connectome.sources, targets=connectome.targets, synapses=connectome.synapses,
            input_steps=inputs[0], input_neurons=inputs[1], activated=activated, steps=round(milliseconds / fly.DT),
        )  # fmt: skip
        subprocess.run([python, ROOT / "benchmarks/brian_fly.py", given, "--spikes", spikes], check=True, stdout=subprocess.DEVNULL)
        found = np.load(spikes)
    return sorted(zip(found["steps"].tolist(), found["neurons"].tolist()))


def main():
    connectome, activated, inputs = network()
    spikes = simulate(sys.argv[1], connectome, activated, inputs, MILLISECONDS)
    steps, neurons = zip(*spikes)
    FILE.write_text(json.dumps({"digest": digest(connectome, inputs), "steps": steps, "neurons": neurons}) + "\n")
    print(f"{len(spikes)} spikes of {len(set(neurons))} neurons")


if __name__ == "__main__":
    main()
