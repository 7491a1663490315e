"""Runs sequences longer than memory in segments, which the backward pass recomputes from the states between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten

Inputs = Any  # Tensor | tuple[Tensor, ...] | list of these | Callable[[int], ...]
COMBINATIONS = ("cat", "sum", "list")


def checkpointed(
    run: Callable[..., tuple[Any, Any]], inputs: Inputs, states: Any = None, *, segments: int | None = None,
    combine: str = "cat", truncated: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """Runs a sequence in segments, and recomputes each segment in the backward pass.

    The memory is that of one segment, the states between segments and a few autograd nodes for each operator of `run`;
    the cost is at most one more forward pass. Results and gradients are those of one call for the whole sequence: bit
    for bit if nothing is summed over steps, else within rounding. The second pass draws the same random numbers, both
    those of neurons and those of torch.

        def loss_of(x, label, states):                       # labels come in segments too
            y, states = net(x, states)
            return loss_function(y, label), states

        loss, states = spikeforge.checkpointed(loss_of, read_chunk, segments=100, combine="sum")
        loss.backward()

    Args:
        run: a module or function of ``(*inputs, states)`` that returns ``(output, states)``, such as a module of
            :mod:`spikeforge.nn`. States are None for the first segment, then the states that the previous segment
            returned: a tensor, or tuples, lists and dicts of tensors, copied for each call. It is called twice for each
            segment with the same arguments, so that side effects (running statistics, prints) happen twice.
        inputs: ``[T, ...]``, or a tuple of these, split along the steps (segment i of n begins with step i T // n); a
            list with the inputs of each segment; or a function of a segment's index that reads or computes them, with
            the same result at each call: they are freed after the segment, and may be larger than memory.
        states: the states before the first step.
        segments: the number of segments; for a list, its length.
        combine: how to combine the outputs of the segments: "cat" concatenates them along the steps, "sum" adds them,
            which frees each of them and suits losses and counts, "list" returns a list.
        truncated: stop the gradient between segments (truncated backpropagation through time); values are the same. The
            gradient of the first segment reaches the states before the first step.

    Returns:
        The combined outputs, and the states after the last step.

    Raises:
        RuntimeError: in the backward pass, if inputs or states were modified in place after the forward pass. A
            modified parameter is not detected: segments are recomputed with its new value.
    """
    if combine not in COMBINATIONS:
        raise ValueError(f"checkpointed: combine must be 'cat', 'sum' or 'list', but is {combine!r}")
    if not callable(run):
        raise TypeError(f"checkpointed: run must be a module or a function, but is {type(run).__name__}")
    read, count = _reader(inputs, segments)
    collected, marks = _Outputs(combine), _marks()
    for number in range(count):
        if truncated and number > 0:
            states = tree_map_only(Tensor, torch.Tensor.detach, states)
        segment = _Segment(run, read, number, keeps_inputs=not callable(inputs))
        outputs, states = checkpoint.checkpoint(segment, _copied(states), marks, use_reentrant=False)
        collected.add(outputs)
        del outputs
    return collected.result(), states


class _Segment:
    """A segment, which is called in the forward pass and again in the backward pass."""

    def __init__(self, run: Callable[..., Any], read: Callable[[int], Any], number: int, keeps_inputs: bool):
        self.run, self.read, self.number, self.keeps_inputs = run, read, number, keeps_inputs
        self.versions: list[int] | None = None

    def __call__(self, states: Any, _: Any) -> tuple[Any, Any]:
        inputs = self.read(self.number)
        if inputs is None:
            raise TypeError(f"checkpointed: inputs must return the inputs of segment {self.number}, but returned None")
        self._check_versions((states, inputs if self.keeps_inputs else None))
        result = self.run(*_copied(inputs if isinstance(inputs, tuple) else (inputs,)), _copied(states))
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(f"checkpointed: run must return (output, states), but returned {_kind(result)}")
        return result

    def _check_versions(self, kept: Any) -> None:
        """Raises RuntimeError if a tensor was modified in place, as autograd does for saved tensors."""
        tensors = [t for t in tree_leaves(kept) if isinstance(t, Tensor) and not t.is_inference()]
        versions = [t._version for t in tensors]
        if self.versions is None:
            self.versions = versions
        for t, version, expected in zip(tensors, versions, self.versions):
            if version != expected:
                raise RuntimeError(
                    "checkpointed: one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation: [{t.type()} {list(t.shape)}], which segment {self.number} reads, is at "
                    f"version {version}; expected version {expected} instead"
                )


def _copied(tree: Any) -> Any:
    """Copies the containers of a tree, so that callees may write to them."""
    return tree_map(lambda leaf: leaf, tree)


def _reader(inputs: Inputs, segments: int | None) -> tuple[Callable[[int], Any], int]:
    if isinstance(inputs, list):
        if segments not in (None, len(inputs)):
            raise ValueError(
                f"checkpointed: segments must be {len(inputs)}, the length of the list of inputs, but is {segments!r}"
            )
        if not inputs:
            raise ValueError("checkpointed: inputs must have at least one segment, but is an empty list")
        return _copied(inputs).__getitem__, len(inputs)
    if not isinstance(segments, int) or isinstance(segments, bool) or segments < 1:
        raise ValueError(f"checkpointed: segments must be a whole number of 1 or more, but is {segments!r}")
    if isinstance(inputs, (Tensor, tuple)):
        return _dealt(inputs, segments).__getitem__, segments
    if callable(inputs):
        return inputs, segments
    raise TypeError(
        "checkpointed: inputs must be a tensor [T, ...], a tuple of these, a list with those of each segment, or a "
        f"function of a segment's number, but is {type(inputs).__name__}"
    )


def _dealt(inputs: Tensor | tuple[Tensor, ...], segments: int) -> Sequence[Any]:
    """Splits inputs into segments whose lengths differ by at most one step."""
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    for i, t in enumerate(tensors):
        if not isinstance(t, Tensor) or t.dim() == 0:
            raise TypeError(f"checkpointed: input {i} must be a tensor [T, ...], but is {_kind(t)}")
        if t.shape[0] != tensors[0].shape[0]:
            raise ValueError(f"checkpointed: input {i} has {t.shape[0]} steps, but input 0 has {tensors[0].shape[0]}")
    steps = tensors[0].shape[0]
    if steps < segments:
        raise ValueError(f"checkpointed: segments must be at most the number of steps, {steps}, but is {segments}")
    sizes = [(number + 1) * steps // segments - number * steps // segments for number in range(segments)]
    # One split: the gradient of a slice would have the size of the whole tensor.
    parts = [t.split(sizes) for t in tensors]
    return list(zip(*parts)) if isinstance(inputs, tuple) else parts[0]


class _Outputs:
    def __init__(self, combine: str):
        self.combine = combine
        self.kept: list[Any] = []
        self.structure: Any = None

    def add(self, outputs: Any) -> None:
        if self.combine == "list":
            self.kept.append(outputs)
            return
        leaves, structure = tree_flatten(outputs)
        if self.structure is None:
            self.kept, self.structure = [[] for _ in leaves], structure
        if structure != self.structure:
            raise ValueError(
                f"checkpointed: run returned outputs {structure}, but {self.structure} in earlier segments"
            )
        for kept, leaf in zip(self.kept, leaves):
            if self.combine == "cat":
                if not isinstance(leaf, Tensor) or leaf.dim() == 0:
                    raise TypeError(
                        f"checkpointed: outputs must be [T, ...] for combine='cat', but run returned {_kind(leaf)}; "
                        "pass 'sum' or 'list'"
                    )
                kept.append(leaf)
            else:
                kept[:] = [kept[0] + leaf] if kept else [leaf]

    def result(self) -> Any:
        if self.structure is None:
            return self.kept
        join = torch.cat if self.combine == "cat" else (lambda kept: kept[0])
        return tree_unflatten([join(kept) for kept in self.kept], self.structure)


def _marks() -> Tensor | None:
    """Returns an argument on the GPU in use: torch's checkpoint saves the random state of its arguments' devices, and a
    segment that reads its own inputs has no other tensor argument."""
    return torch.empty(0, device="cuda") if torch.cuda.is_available() and torch.cuda.is_initialized() else None


def _kind(value: Any) -> str:
    return "a tensor without dimensions" if isinstance(value, Tensor) and value.dim() == 0 else type(value).__name__
