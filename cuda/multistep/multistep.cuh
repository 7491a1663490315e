// The multistep loop on the GPU: the one loop over T that runs a cell, forward and backward. It knows loads, stores,
// widths, prefetch and checkpoints, and nothing of any neuron. A thread owns `Spec::width` neurons for the whole
// sequence, or backward, where neurons are few, for some of its segments.
//
// A Spec, printed by csrc/kernels/multistep/spec.cpp, decides at compile time:
//   Cell, Input (the type of x and y), Compute (of states and arithmetic)
//   width        neurons a thread
//   neighbours   whether they are neighbours, read in one access (rows.cuh: Lanes)
//   rows         forward: rows of x that are on their way at any time
//   staged       forward: whether they go through shared memory
//   checkpoint   steps between two saved states, and the length of the backward pass's segments
//   segments     backward: segments of the same neurons that a block computes side by side
//   ragged       backward: whether T is no multiple of what is computed at once
//   in_turns     whether a thread takes other neurons after its first, whose parameters are the same
//   one_segment  backward, in turns: whether the sequence is no longer than a segment
//   save, store_states, and for each parameter, state and gradient whether it is there and of what type
//   spread       for each parameter which neurons have the same
//   packed_bits  forward: of each number of the first output, which is written as bits too; 0: it is not
//   wide         whether neurons are too many to be counted in 32 bits, where a parameter's channels are
//   whole_stores in some kernels alone: whether stores of neighbours are one access whatever the compiler prefers
//   has_lengths, has_start   in kernels of samples alone: whether they differ in length, and whether they start anew.
//                A thread's neurons are then of one sample, and it takes no others; the arguments are WithSamples
// A cell that draws random numbers has `draws`, and the arguments are WithDraws; a thread takes no other neurons. The
// Spec has draws_in_order: whether neurons lie in memory as in the shape.
//
// Arguments, ForwardArgs and BackwardArgs, are sequences of 8-byte words in the order of their members; the host writes
// them in that order, and zeros for the one element of an empty list.
#pragma once

#include "cuda/multistep/forward.cuh"
#include "cuda/multistep/time_parallel.cuh"

namespace spikeforge {

// Both passes; all members are static.
template <class Spec>
struct Multistep : MultistepForward<Spec>, MultistepTimeParallel<Spec> {};

}  // namespace spikeforge
