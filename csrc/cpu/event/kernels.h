// Products of a sparse matrix on the CPU: the inner loops, compiled for one instruction set. The operator
// (ops/event/csr_cpu.cpp) chooses among them, starts threads and allocates scratch memory.
//
// Arithmetic is in the compute type of the weights: double for float64, else float.
#pragma once

#include "csrc/cpu/instruction_set.h"
#include "csrc/kernels/event/product.h"

#include <cstdint>

namespace spikeforge::cpu {

// The vector in the form that loops over nonzeros read.
struct Prepared {
  event::Values values{};
  const std::uint32_t* bits = nullptr;  // event: bit i % 32 of word i / 32 is set if entry i is an event
  const void* entries = nullptr;  // graded and number: the contributions, in the compute type; 0 is none if graded
};

// A part of the nonzeros of some rows: nonzeros [first, last), counted over all rows of the list.
struct Share {
  const std::int32_t* rows = nullptr;    // of the matrix
  const std::int64_t* begins = nullptr;  // the first nonzero of each row in the matrix
  const std::int64_t* starts = nullptr;  // [count + 1]: nonzeros of all rows before
  std::int64_t count = 0;
  std::int64_t first = 0, last = 0;
};

// Some columns of active rows, processed block by block, and row by row within a block: the order of a sum does not
// depend on the blocks. If a block has fewer than all columns, the columns of each row are in ascending order.
struct Columns {
  const std::int32_t* rows = nullptr;    // of the matrix
  const std::int64_t* begins = nullptr;  // the first nonzero of each row in the matrix
  const std::int64_t* starts = nullptr;  // [count + 1]: nonzeros of all rows before
  std::int64_t* next = nullptr;          // [count]: the next nonzero of each row in these columns
  std::int64_t count = 0;
  std::int64_t begin = 0, end = 0, block = 0;
};

// The result of event_linear for one vector, columns [begin, end): the sum of the rows `inputs` of weight [in, out].
struct LinearSum {
  DType type{};
  const void* weight = nullptr;
  std::int64_t out = 0;
  const std::int64_t* inputs = nullptr;
  std::int64_t count = 0;
  const void* values = nullptr;  // [in] in the compute type, or null: 1
  const void* bias = nullptr;    // [out] in the compute type, or null
  std::int64_t begin = 0, end = 0;
  void* y = nullptr;  // [out]
};

struct EventKernels {
  // Computes the rows [begin, end) of the result: y has the weights' type and the stride `y_stride`.
  void (*gather)(const event::Rows&, const event::Weights&, const Prepared&, std::int64_t begin, std::int64_t end,
                 void* y, std::int64_t y_stride);

  // Adds a share of active rows to sums[cols]: uint32 counts of events if weights are homogeneous, else the compute
  // type. `entries` of Prepared is null for events.
  void (*scatter)(const event::Rows&, const event::Weights&, const Prepared&, const Share&, void* sums);

  // Adds the contributions of a share of active rows to a ring.
  void (*deliver)(const event::Rows&, const event::Weights&, const Prepared&, const Share&, const event::Ring&);
  // The same for some columns of active rows, row by row.
  void (*deliver_columns)(const event::Rows&, const event::Weights&, const Prepared&, const Columns&,
                          const event::Ring&);
  // The same by rows: for the sums of the rows [begin, end).
  void (*deliver_rows)(const event::Rows&, const event::Weights&, const Prepared&, std::int64_t begin, std::int64_t end,
                       const event::Ring&);

  // Computes y[begin, end) from the sums of all `parts`, which are `part_bytes` apart.
  void (*finish)(const event::Weights&, event::Values, const void* sums, std::int64_t parts, std::int64_t part_bytes,
                 std::int64_t begin, std::int64_t end, void* y, std::int64_t y_stride);

  // Processes `n` vectors at once: entries [in, n], in the compute type, an event as 1. sums: [n] of scratch memory.
  // Row i's result is stored at y + i * y_stride + v * y_vector_stride.
  void (*gather_many)(const event::Rows&, const event::Weights&, event::Values, const void* entries, std::int64_t n,
                      std::int64_t begin, std::int64_t end, void* sums, void* y, std::int64_t y_stride,
                      const std::int64_t* y_offsets);
  // Adds all rows to sums [cols, n], which are initially zero, and then writes the sums to y.
  void (*scatter_many)(const event::Rows&, const event::Weights&, event::Values, const void* entries, std::int64_t n,
                       void* sums, void* y, std::int64_t y_stride, const std::int64_t* y_offsets);

  // Computes grad[k] += sum over n vectors of entry(input of k) * g(output of k), for nonzeros of the rows [begin,
  // end). entries [in, n], g [out, n] and grad [nnz] in the compute type `type`.
  void (*weight_gradient)(const event::Rows&, DType type, event::Values, bool transpose, const void* entries,
                          const void* g, std::int64_t n, std::int64_t begin, std::int64_t end, void* grad);

  // Computes at most 512 columns.
  void (*linear)(const LinearSum&);
};

SPIKEFORGE_EACH_SET(const EventKernels&, event_kernels, ());

// Returns the kernels of the instruction set that kernels.h chooses.
const EventKernels& event_kernels();

}  // namespace spikeforge::cpu
