// The multistep loop on the GPU: the one loop over T that runs a cell, forward and backward. It handles loads, stores,
// widths, prefetch and checkpoints, and does not depend on any neuron. A thread owns `Spec::width` neurons for the
// whole sequence, or in the backward pass, for few neurons, for some of its segments.
//
// A Spec, printed by csrc/kernels/multistep/spec.cpp, has these compile-time members:
//   Cell, Input (the type of x and y), Compute (of states and arithmetic)
//   width        neurons per thread
//   neighbours   true if they are neighbours, read in one access (rows.cuh: Lanes)
//   rows         forward: rows of x in flight at any time
//   staged       forward: true if these rows are in shared memory
//   checkpoint   steps between two saved states, and the length of the backward pass's segments
//   segments     backward: segments of the same neurons that a block computes concurrently
//   ragged       backward: true if T is no multiple of the steps that are computed at once
//   in_turns     true if a thread processes several neurons with the same parameters, in a loop
//   one_segment  backward, in_turns: true if the sequence is no longer than a segment
//   save, store_states, and the presence and type of each parameter, state and gradient
//   spread       for each parameter the neurons that share a value
//   packed_bits  forward: bits per value of the first output that are also written; 0: none
//   wide         true if 32 bits cannot count the neurons, for parameters by channel
//   whole_stores in some kernels: true if stores of neighbours are always one access
//   has_lengths, has_start   in kernels of samples: true if samples differ in length, and if they restart.
//                A thread's neurons then belong to one sample, and there is no loop over neurons; arguments are
//                WithSamples
// A cell that draws random numbers has `draws`, and the arguments are WithDraws; there is no loop over neurons. The
// Spec has draws_in_order: true if neurons are stored in the order of the shape.
//
// Arguments, ForwardArgs and BackwardArgs, are sequences of 8-byte words in the order of their members; the host writes
// them in that order, and zeros for the one element of an empty list.
#pragma once

#include "cuda/multistep/forward.cuh"
#include "cuda/multistep/time_parallel.cuh"

namespace spikeforge {

// Both passes; all members are static.
template <class Spec> struct Multistep : MultistepForward<Spec>, MultistepTimeParallel<Spec> {};

}  // namespace spikeforge
