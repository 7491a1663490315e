"""Layers without time, and modules one after the other."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from types import EllipsisType
from typing import Any

from torch import Tensor, nn

from spikeforge.nn.parts import check_called_once_a_step, folded, foreign_neurons, part_at_rest, run_part
from spikeforge.nn.stateful import (
    State,
    StatefulModule,
    States,
    _join,
    _title_below,
    _under,
    all_or_nothing,
    has_states,
    is_called_plainly,
    stateful_modules,
)


class TimeDistributed(StatefulModule):
    """Folds time into the batch: one call of layers without time (Linear, Conv, BatchNorm, pooling) for all steps.

    The layer receives ``[T, B, ...]`` as ``[T * B, ...]``. Several layers are called one after the other.

    Fewer and larger calls make training faster. The last bits of a row may depend on the number of rows, so steps,
    pieces and whole sequences agree within rounding; BatchNorm in training computes its statistics over steps and batch
    together.

    >>> TimeDistributed(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    """

    def __init__(self, *layers: nn.Module):
        super().__init__()
        if not layers:
            raise TypeError("TimeDistributed: needs at least one layer")
        for layer in layers:
            if has_states(layer):
                raise ValueError(
                    f"TimeDistributed: {type(layer).__name__} has neurons, which accept sequences [T, B, ...] directly"
                )
            for neuron in foreign_neurons(layer):
                raise ValueError(
                    f"TimeDistributed: {type(neuron).__name__} has states, and would process all steps as one batch; "
                    "put it outside, in a torch.nn.Sequential"
                )
        self.module = layers[0] if len(layers) == 1 else nn.Sequential(*layers)

    def forward(self, x: Tensor, state: States | EllipsisType = ..., *, store_states: bool = False):
        return self._forward((x,), state, store_states)

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Tensor, State]:
        x = inputs[0]
        if x.dim() < 2:
            raise ValueError(f"{self._title()}: x must be [T, B, ...], time first, but has {x.dim()} dimensions")
        return folded(self.module, x), {}


class Container(StatefulModule):
    """A module whose states are those of modules below it, named as in ``state_dict``.

    If a call raises, all of them keep the states from before the call.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return all_or_nothing(super().__call__, args, kwargs)

    def _all_state_names(self) -> tuple[str, ...]:
        return tuple(_join(prefix, name) for prefix, module in stateful_modules(self) for name in module.state_names)

    def _name_parts(self, names: Sequence[str]) -> None:
        """Sets the names of submodules in messages."""
        for name in names:
            _title_below(self._modules[name], _join(self._path, name))


class Sequential(Container):
    """Calls modules one after the other: ``Sequential(TimeDistributed(nn.Linear(4, 8)), LIF(), LI())``.

    It passes states to its parts, and returns theirs.

    It makes one call for all steps to a torch layer whose result for a step depends only on that step (Linear,
    convolutions, pooling, activations, Dropout, Flatten, LayerNorm, GroupNorm, BatchNorm in evaluation, and
    ``nn.Sequential`` of these), as ``nn.Sequential`` does: steps, pieces and whole sequences agree within rounding. Any
    other layer is called once a step: BatchNorm in training computes its statistics of each step, unless it is wrapped in
    :class:`TimeDistributed`. A custom module with neurons in it is called once, on the sequence. Parts are named "0",
    "1", ..., or as in an OrderedDict; slices, item assignment and deletion are those of ``nn.Sequential``.
    """

    def __init__(self, *parts: nn.Module | Mapping[str, nn.Module]):
        super().__init__()
        if len(parts) == 1 and isinstance(parts[0], Mapping):
            named = OrderedDict(parts[0])
        else:
            named = OrderedDict((str(i), part) for i, part in enumerate(parts))
        for name, part in named.items():
            self._add(name, part)

    def _add(self, name: str, part: nn.Module) -> None:
        if not isinstance(part, nn.Module):
            raise TypeError(f"{self._title()}: part {name} must be a module of torch, but is {type(part).__name__}")
        check_called_once_a_step(self._title(), part)
        self.add_module(name, part)
        self._name_parts([name])

    @property
    def fresh_outputs(self) -> bool:
        last = next(reversed(self._modules.values()), None)
        return isinstance(last, StatefulModule) and last.fresh_outputs and is_called_plainly(last)

    def append(self, part: nn.Module) -> Sequential:
        self._add(next(name for name in map(str, count(len(self))) if name not in self._modules), part)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self._modules.values())

    _get_item_by_idx = nn.Sequential._get_item_by_idx
    __getitem__ = nn.Sequential.__getitem__

    def __setitem__(self, i: int, part: nn.Module) -> None:
        self._add(self._get_item_by_idx(self._modules.keys(), i), part)

    def __delitem__(self, i: int | slice) -> None:
        nn.Sequential.__delitem__(self, i)
        self._name_parts(list(self._modules))

    def forward(self, x: Tensor, state: States | EllipsisType = ..., *, store_states: bool = False):
        """Returns the output of the last part; ``y, state = net(x, state)`` with the states of all, ``{"1.v": ..., "3.v": ...}``."""
        if state is ... and not store_states:
            for part in self._modules.values():
                (x, *_), _ = run_part(part, (x,), None, at_once=True)
            return x
        start = {} if state is ... else self._checked_state(state)
        return self._advance((x,), start, store_states)

    def _advance(self, inputs: Sequence[Tensor], state: Mapping[str, Tensor], store: bool) -> tuple[Tensor, State]:
        x, after = inputs[0], {}
        for name, part in self._modules.items():
            (x, *_), states = run_part(
                part, (x,), _under(name, state), store=store and isinstance(part, StatefulModule), at_once=True
            )
            after |= {_join(name, key): value for key, value in states.items()}
        return x, after

    def at_rest(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        for part in self._modules.values():
            inputs = part_at_rest(part, inputs[:1])
        return tuple(inputs[:1])
