"""The measured cases: a neuron, a size, a dtype, with or without gradients."""

from dataclasses import dataclass, replace

import torch

HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64


@dataclass(frozen=True)
class Case:
    neuron: str
    training: bool
    steps: int
    neurons: int
    dtype: torch.dtype = SINGLE
    goal: float | None = None  # the target ratio, if there is one
    threads: int | None = None  # of the CPU
    small: bool = False  # measured by the clock, in units of torch's silu
    learns: str | None = None  # tau of LIF as a tensor: "one", "per channel" or "per neuron"

    @property
    def inputs(self):
        return 2 if self.neuron == "complicated lif" else 1

    @property
    def outputs(self):
        return self.inputs

    @property
    def states(self):
        return 2 if self.neuron in ("izhikevich", "complicated lif") else 1

    @property
    def draws(self):
        return self.neuron == "noisy lif"

    @property
    def name(self):
        parts = [self.neuron, "train" if self.training else "infer", f"T={self.steps}", f"N={size(self.neurons)}",
                 str(self.dtype).removeprefix("torch.")] + ([f"tau {self.learns}"] if self.learns else [])
        return " ".join(parts + ([f"threads={self.threads}"] if self.threads else []))

    def floor_bytes(self):
        """The bytes that must move: the forward pass reads the inputs and writes the outputs, and the final states once;
        the backward pass reads the gradients of the outputs and the inputs, and writes the gradients of the inputs."""
        element = self.dtype.itemsize
        states = self.states * self.neurons * max(element, 4)
        sequence = self.steps * self.neurons * element
        parameter = 4 * self.neurons if self.learns == "per neuron" else 0  # read in each pass; its gradient written
        forward, backward = self.inputs + self.outputs, 2 * self.inputs + self.outputs
        return {"forward": forward * sequence + states + parameter,
                "backward": backward * sequence + 2 * parameter if self.training else 0}


def size(number):
    """Formats 4194304 as 2^22."""
    power = number.bit_length() - 1
    return f"2^{power}" if number == 1 << power and power >= 10 else str(number)


def train(neuron, steps, neurons, *args, **options):
    return Case(neuron, True, steps, neurons, *args, **options)


def infer(neuron, steps, neurons, *args, **options):
    return Case(neuron, False, steps, neurons, *args, **options)


CUDA = [
    train("lif", 32, 2**22, SINGLE, 1.05),
    train("lif", 32, 2**22, HALF, 1.12),
    train("lif", 32, 2**22, DOUBLE, 1.10),
    train("lif", 4, 2**22, SINGLE, 1.12),
    train("lif", 4, 2**22, HALF, 1.28),
    infer("lif", 32, 2**22, SINGLE, 1.05),
    infer("lif", 32, 2**22, HALF, 1.10),
    train("lif", 1024, 2**15, SINGLE, 1.15),
    train("lif", 1024, 2**15, HALF, 1.7),
    train("lif", 1024, 4096, SINGLE, 2.1),
    *(train(neuron, 16, 2**22, dtype, goal)
      for dtype, goal in ((SINGLE, 1.10), (HALF, 1.20)) for neuron in ("plif", "qif", "eif", "izhikevich")),
    *(train("lif", 16, 2**22, dtype, learns=learns)
      for dtype in (SINGLE, HALF) for learns in (None, "one", "per channel", "per neuron")),
    *(train("lif", 16, neurons, dtype) for dtype in (SINGLE, HALF) for neurons in (1_000_000, 1_000_001)),
    *(train("lif", 1024, neurons, SINGLE) for neurons in (512, 64)),
    train("lif", 10_000, 128, SINGLE),
    *(train("traced lif", steps, neurons, dtype)
      for steps, neurons in ((32, 2**22), (4, 2**22), (1024, 2**15)) for dtype in (SINGLE, HALF)),
    *(train("complicated lif", 16, 2**22, dtype, 1.15) for dtype in (SINGLE, HALF)),
    *(make("noisy lif", 32, 2**22, dtype, goal) for make in (infer, train) for dtype, goal in ((SINGLE, 1.15), (HALF, None))),
    train("lif", 4, 1024, SINGLE, 1.4, small=True),
    infer("lif", 4, 1024, SINGLE, 1.8, small=True),
    *(make("lif", 4, 1024, SINGLE, small=True, learns="one") for make in (train, infer)),
    *(train(neuron, 4, 1024, SINGLE, 1.6, small=True) for neuron in ("traced lif", "complicated lif")),
]

CPU = [
    *(infer("lif", 16, 2**20, SINGLE, 1.25, threads) for threads in (1, 2)),
    *(train("lif", 16, 2**20, SINGLE, 1.4, threads) for threads in (1, 2)),
    *(infer("lif", 16, 2**20, HALF, None, threads) for threads in (1, 2)),
    *(train("lif", 16, 2**20, HALF, None, threads) for threads in (1, 2)),
    *(infer("lif", 256, 2**14, SINGLE, 1.6, threads) for threads in (1, 2)),
    *(train("lif", 256, 2**14, SINGLE, 1.6, threads) for threads in (1, 2)),
    *(make("traced lif", steps, neurons, SINGLE, threads=threads)
      for make in (infer, train) for steps, neurons in ((16, 2**20), (256, 2**14)) for threads in (1, 2)),
    *(make("noisy lif", 16, 2**20, SINGLE, threads=1) for make in (infer, train)),
    train("lif", 16, 64, SINGLE, threads=1, small=True),
    infer("lif", 16, 64, SINGLE, threads=1, small=True),
    *(make("lif", 16, 64, SINGLE, threads=1, small=True, learns="one") for make in (train, infer)),
    *(infer("lif", 4, 2**18, SINGLE, threads=1, learns=learns) for learns in (None, "one", "per channel", "per neuron")),
    *(train("lif", 4, 2**18, SINGLE, threads=1, learns=learns) for learns in (None, "one", "per channel", "per neuron")),
]


def other_lengths(case):
    """Returns the same case at T + 1 and at T = 100, which are not powers of two."""
    if case.small:
        return []
    within = case.goal and round(1.05 * case.goal, 3)
    return [replace(case, steps=case.steps + 1, goal=within), replace(case, steps=100, goal=within)]


def cases(device, with_other_lengths):
    chosen = {}
    for case in CUDA if device == "cuda" else CPU:
        for each in [case] + (other_lengths(case) if with_other_lengths else []):
            chosen.setdefault(each.name, each)
    return list(chosen.values())
