// Compiled once for each instruction set (CPU_CAPABILITY), under the rule of predefined_loops.cpp.
#include "csrc/cpu/element_type.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/multistep/multistep.h"
#include "csrc/cpu/multistep/param_rows.h"
#include "csrc/cpu/multistep/tape_kernels.h"
#include "csrc/cpu/multistep/traced_program.h"
#include "csrc/cpu/numbers.h"
#include "csrc/cpu/operations.h"
#include "csrc/cpu/scratch.h"
#include "csrc/cpu/tile.h"
#include "csrc/graph/graph.h"
#include "csrc/kernels/multistep/launch.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

// Returns the index of a neuron in the shape, given its index in memory.
inline DoubleWord index_of(const DrawsView& view, std::int64_t i) {
  const std::int64_t row = i / view.fast, column = i % view.fast;
  const std::int64_t index =
      row / view.slow * (view.fast * view.slow) + column * view.slow + row % view.slow + view.first;
  return static_cast<DoubleWord>(index);
}

// Rows of random bits for a tape: for the neurons of a tile, at one step.
template <class T> class DrawRows {
 public:
  using Bits = typename DrawnBits<T>::type;

  // Creates the rows for the neurons from `first` on.
  DrawRows(const DrawsView& view, std::int64_t first)
      : view_(view), first_(first), key_(static_cast<DoubleWord>(view.seed_number)) {}

  // Fills the elements [begin, end) of the rows of `drawn`, the first of which is rows[0], for step t of the call.
  void fill(std::span<const graph::Draw> drawn, const Row<T>* rows, std::int64_t t, std::int64_t begin,
            std::int64_t end) const {
    const DoubleWord step = static_cast<DoubleWord>(view_.offset_number) + static_cast<DoubleWord>(t);
    for (std::size_t i = 0; i < drawn.size(); ++i)
      view_.fast == 1 ? fill_in_order(drawn[i], step, rows[i].data, begin, end)
                      : fill_in_any_order(drawn[i], step, rows[i].data, begin, end);
  }

 private:
  static constexpr int chunk = 64;  // fours

  void fill_in_order(const graph::Draw& draw, DoubleWord step, T* row, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t neuron = view_.first + first_ + at;
      const auto index = static_cast<DoubleWord>(neuron);
      const std::int64_t before = static_cast<std::int64_t>(index % 4);  // the neurons before it in its group of four
      Bits bits[chunk][4];
      for (int i = 0; i < chunk; ++i) {
        const DoubleWord four = index / 4 + static_cast<DoubleWord>(i);
        const PhiloxWords high = words_of(key_, four, step, draw.once, draw.number, 0);
        if constexpr (sizeof(T) == 4) {
          for (int k = 0; k < 4; ++k) bits[i][k] = high.word[k];
        } else {
          const PhiloxWords low = words_of(key_, four, step, draw.once, draw.number, 1);
          for (int k = 0; k < 4; ++k) bits[i][k] = DoubleWord{high.word[k]} << 32 | low.word[k];
        }
      }
      const std::int64_t there = 4 * chunk - before, count = end - at < there ? end - at : there;
      std::memcpy(static_cast<void*>(row + at), &bits[0][0] + before, static_cast<std::size_t>(count) * sizeof(T));
      at += count;
    }
  }

  void fill_in_any_order(const graph::Draw& draw, DoubleWord step, T* row, std::int64_t begin, std::int64_t end) const {
    for (std::int64_t at = begin; at < end; ++at) {
      const DoubleWord index = index_of(view_, first_ + at);
      const Bits bits = drawn_bits<T>({key_, index / 4, static_cast<Word>(index % 4), step}, draw.once, draw.number);
      std::memcpy(static_cast<void*>(row + at), &bits, sizeof bits);
    }
  }

  const DrawsView view_;
  const std::int64_t first_;
  const DoubleWord key_;
};

// The number of elements that a step processes at once, so that pieces of its rows stay in the first-level cache for
// any length of the rows.
constexpr std::int64_t piece = 512;
// The same for a compiled tape: fewer, since all cache lines of a piece are prefetched at once.
constexpr std::int64_t compiled_piece = 128;

// Rows of a traced cell: its tapes, interpreted one instruction at a time or compiled by the machine's C++ compiler.
//
// A row of a tile is read and written directly in the caller's tensors if it consists of whole vectors of the
// arithmetic's type; otherwise it is staged in scratch memory.
//
// The loop's parameter (multistep.h).
template <class T, class StoredType> class TapeRows {
 public:
  using Number = T;
  using Stored = StoredType;
  static constexpr bool in_place = false;  // a tape's results must not overlap its arguments

  TapeRows(const Tile& tile, const LoopContext& context, Scratch& scratch)
      : tile_(tile),
        launch_(tile.launch),
        program_(*context.program),
        functions_(context.functions),
        scratch_(scratch),
        draws_(tile.launch.draws, tile.begin) {
    for (const ParamView& param : launch_.params)
      if (param.data != nullptr) is_uniform_ = false;
    if (!program_.prologue.drawn.empty()) is_uniform_ = false;
    zeros_ = scratch.take<T>(granule);
    fetched_ = scratch.take<const Stored*>(program_.inputs + program_.outputs);
    if (zeros_) std::memset(zeros_, 0, granule * sizeof(T));
  }

  bool is_legal() const { return is_legal_; }

  void take_forward(const ForwardLaunch&) {
    temporaries_ = take_rows(larger(program_.prologue.temporaries, program_.step.temporaries));
    bits_ = take_rows(larger(program_.prologue.drawn.size(), program_.step.drawn.size()));
    take_params();
    step_ = take_frame(program_.step, functions_.step);
    inputs_ = take_rows(program_.inputs);
    outputs_ = take_rows(program_.outputs);
    if (!scratch_.counts_only()) bind_hoisted(step_);
  }

  void take_backward(const BackwardLaunch& launch) {
    const Tape& vjp = program_.backward(launch.any_grad_input, launch.any_grad_param);
    temporaries_ = take_rows(larger(larger(program_.prologue.temporaries, program_.epilogue.temporaries),
                                    larger(program_.advance.temporaries, vjp.temporaries)));
    bits_ = take_rows(larger(larger(program_.prologue.drawn.size(), program_.epilogue.drawn.size()),
                             larger(program_.advance.drawn.size(), vjp.drawn.size())));
    take_params();
    step_ = take_frame(program_.advance, functions_.advance);
    vjp_ = take_frame(vjp, functions_.backward);
    epilogue_ = take_frame(program_.epilogue);
    inputs_ = take_rows(program_.inputs);
    grad_outputs_ = take_rows(program_.outputs);
    grad_inputs_ = take_rows(program_.inputs);
    summed_ = launch.any_grad_param ? program_.summed.size() : 0;
    factors_ = take_rows(summed_);
    sums_ = take_rows(summed_);
    grad_params_ = take_rows(program_.params);
    if (scratch_.counts_only()) return;
    bind_hoisted(step_);
    bind_hoisted(vjp_);
    std::memset(sums_, 0, summed_ * padded() * sizeof(T));
  }

  void initial(T* states) const {
    for (std::size_t s = 0; s < program_.states; ++s)
      for (std::int64_t i = 0; i < tile_.padded; ++i) states[s * padded() + i] = static_cast<T>(program_.initial[s]);
  }

  void step(const ForwardLaunch& launch, std::int64_t t, Ranges ranges, T* before, T* after) {
    bind_inputs(step_, t);
    for (std::size_t i = 0; i < program_.inputs; ++i) fetch(tile_.row_after<Stored>(launch.inputs[i], t + 1, 0));
    for (std::size_t k = 0; k < program_.outputs; ++k)
      step_.result(k) = target(launch.outputs[k], t, row_of(outputs_, k).data);
    for (std::size_t s = 0; s < program_.states; ++s) {
      step_.argument(program_.inputs + s) = row_of(before, s);
      step_.result(program_.outputs + s) = row_of(after, s);
    }
    run(step_, ranges, [&](std::int64_t begin, std::int64_t end) {
      for (std::size_t k = 0; k < program_.outputs; ++k)
        write(step_.result(k), row_of(outputs_, k).data, launch.outputs[k], t, begin, end);
    });
  }

  void advance(const BackwardLaunch& launch, std::int64_t t, Ranges ranges, T* before, T* after) {
    bind_inputs(step_, t);
    for (std::size_t i = 0; i < program_.inputs; ++i) fetch(tile_.row_after<Stored>(launch.inputs[i], t + 1, 0));
    for (std::size_t s = 0; s < program_.states; ++s) {
      step_.argument(program_.inputs + s) = row_of(before, s);
      step_.result(s) = row_of(after, s);
    }
    run(step_, ranges);
  }

  void vjp(const BackwardLaunch& launch, std::int64_t t, Ranges ranges, const Segment& segment, T* before, T* grad,
           T* grad_before) {
    bind_inputs(vjp_, t);
    for (std::size_t i = 0; i < program_.inputs; ++i) fetch(tile_.row_later<Stored>(launch.inputs[i], t, segment));
    std::size_t argument = program_.inputs, result = 0;
    for (std::size_t s = 0; s < program_.states; ++s) vjp_.argument(argument++) = row_of(before, s);
    argument += program_.hoisted;
    for (std::size_t k = 0; k < program_.outputs; ++k) {
      vjp_.argument(argument++) = read(launch.grad_outputs[k], t, row_of(grad_outputs_, k).data);
      fetch(tile_.row_after<Stored>(launch.grad_outputs[k], t - 1, tile_.steps - 1));
    }
    for (std::size_t s = 0; s < program_.states; ++s) vjp_.argument(argument++) = row_of(grad, s);

    const std::size_t wanted = launch.any_grad_input ? program_.inputs : 0;
    for (std::size_t k = 0; k < wanted; ++k)
      vjp_.result(result++) = target(launch.grad_inputs[k], t, row_of(grad_inputs_, k).data);
    for (std::size_t s = 0; s < program_.states; ++s) vjp_.result(result++) = row_of(grad_before, s);
    for (std::size_t k = 0; k < summed_; ++k) vjp_.result(result++) = row_of(factors_, k);
    run(vjp_, ranges, [&](std::int64_t begin, std::int64_t end) {
      for (std::size_t k = 0; k < wanted; ++k)
        write(vjp_.result(k), row_of(grad_inputs_, k).data, launch.grad_inputs[k], t, begin, end);
    });
    for (std::size_t k = 0; k < summed_; ++k) {
      T* const sum = row_of(sums_, k).data;
      const T* const more = row_of(factors_, k).data;
      for (const Range& range : ranges)
        for (std::int64_t i = range.first; i < range.last; ++i) sum[i] += more[i];
    }
  }

  void forget(std::int64_t first, std::int64_t last) const {
    for (std::size_t k = 0; k < summed_; ++k)
      std::memset(row_of(sums_, k).data + first, 0, static_cast<std::size_t>(last - first) * sizeof(T));
  }

  void finish(const BackwardLaunch& launch, const T* /*grad*/) {
    for (std::size_t j = 0; j < program_.params; ++j) {
      epilogue_.argument(j) = params_[j];
      epilogue_.result(j) = row_of(grad_params_, j);
    }
    for (std::size_t k = 0; k < program_.factors; ++k) epilogue_.argument(program_.params + k) = {zeros_, 0};
    for (std::size_t k = 0; k < program_.summed.size(); ++k)
      epilogue_.argument(program_.params + program_.summed[k]) = row_of(sums_, k);
    const Range all{0, tile_.padded};
    run(epilogue_, {&all, 1});
    for (std::size_t j = 0; j < program_.params; ++j)
      if (launch.grad_params[j] != nullptr)
        store_numbers<T, T>(row_of(grad_params_, j).data, static_cast<T*>(launch.grad_params[j]) + tile_.begin,
                            tile_.count);
  }

 private:
  // A tape with its rows. The loop binds arguments and results to different rows in each step.
  struct Frame {
    const Tape* tape = nullptr;
    TapeFunction function = nullptr;
    Row<T>* rows = nullptr;
    Kernel<T>* kernels = nullptr;

    Row<T>& argument(std::size_t i) const { return rows[tape->argument(i)]; }
    Row<T>& result(std::size_t i) const { return rows[tape->result(i)]; }
  };

  static std::size_t larger(std::size_t a, std::size_t b) { return a > b ? a : b; }

  std::size_t padded() const { return static_cast<std::size_t>(tile_.padded); }
  T* take_rows(std::size_t n) { return scratch_.template take<T>(n * padded()); }
  Row<T> row_of(T* rows, std::size_t i) const { return {rows + i * padded(), 1}; }

  // Creates a frame whose constants and temporaries are set.
  Frame take_frame(const Tape& tape, TapeFunction function = nullptr) {
    const Frame frame{&tape, function, scratch_.template take<Row<T>>(tape.rows()),
                      scratch_.template take<Kernel<T>>(tape.instructions.size())};
    T* const constants = scratch_.template take<T>(tape.constants.size() * granule);
    if (scratch_.counts_only()) return frame;
    for (std::size_t i = 0; i < tape.instructions.size(); ++i) frame.kernels[i] = kernel_of<T>(tape.instructions[i]);
    for (std::size_t i = 0; i < tape.constants.size(); ++i) {
      T* const row = constants + i * granule;
      const auto vector = vector_of<T>(tape.constants[i]);
      for (std::int64_t k = 0; k < granule; k += vector.size()) vector.store(row + k);
      frame.rows[tape.constant(i)] = {row, 0};
    }
    for (std::size_t i = 0; i < tape.temporaries; ++i) frame.rows[tape.temporary(i)] = row_of(temporaries_, i);
    for (std::size_t i = 0; i < tape.drawn.size(); ++i) frame.rows[tape.bits(i)] = row_of(bits_, i);
    return frame;
  }

  // Draws the random bits of a tape.
  void draw(const Frame& frame, std::int64_t begin, std::int64_t end) const {
    if (!frame.tape->drawn.empty()) draws_.fill(frame.tape->drawn, frame.rows + frame.tape->bits(0), now_, begin, end);
  }

  // Runs the tape on the pieces of the rows, and calls after_piece(begin, end) after each. Prefetches are distributed,
  // with a few cache lines after each instruction: the processor stalls if there are more at once.
  template <class AfterPiece> void run(const Frame& frame, Ranges ranges, const AfterPiece& after_piece) {
    for (const Range& range : ranges) run(frame, range, after_piece);
    fetching_ = 0;
  }
  void run(const Frame& frame, Ranges ranges) {
    run(frame, ranges, [](std::int64_t, std::int64_t) {});
  }
  template <class AfterPiece> void run(const Frame& frame, const Range& range, const AfterPiece& after_piece) {
    constexpr std::int64_t line = line_bytes / static_cast<std::int64_t>(sizeof(Stored));
    const std::int64_t each_piece = frame.function != nullptr ? compiled_piece : piece;
    const auto count = static_cast<std::int64_t>(frame.tape->instructions.size());
    for (std::int64_t begin = range.first; begin < range.last; begin += each_piece) {
      const std::int64_t end = begin + each_piece < range.last ? begin + each_piece : range.last;
      draw(frame, begin, end);
      if (frame.function != nullptr) {
        frame.function(frame.rows, begin, end);
        fetch_lines(begin, end);
      } else {
        const std::int64_t each = ((end - begin) / line / (count > 0 ? count : 1) + 1) * line;
        for (std::int64_t i = 0; i < count; ++i) {
          frame.kernels[i](frame.tape->instructions[static_cast<std::size_t>(i)], frame.rows, begin, end);
          const std::int64_t from = begin + i * each;
          fetch_lines(from, from + each < end ? from + each : end);
        }
      }
      after_piece(begin, end);
    }
  }

  // Registers a row that will be read soon, for run() to prefetch; null has no effect.
  void fetch(const Stored* row) {
    if (row != nullptr) fetched_[fetching_++] = row;
  }
  void fetch_lines(std::int64_t begin, std::int64_t end) const {
    constexpr std::int64_t line = line_bytes / static_cast<std::int64_t>(sizeof(Stored));
    for (std::size_t k = 0; k < fetching_; ++k)
      for (std::int64_t at = begin; at < end; at += line) prefetch(fetched_[k] + at);
  }

  // ---- the caller's memory ----

  static constexpr bool is_arithmetic = std::is_same_v<Stored, T>;
  bool in_caller_memory() const { return is_arithmetic && tile_.padded == tile_.count; }

  // Returns the numbers of row t, copied to `staging` if they cannot be read directly.
  Row<T> read(const SequenceView& view, std::int64_t t, T* staging) const {
    if (view.data == nullptr) return {zeros_, 0};
    if (!Tile::is_dense(view)) {
      const T number = static_cast<T>(static_cast<const Stored*>(view.data)[t * view.time_stride]);
      for (std::int64_t k = 0; k < granule; ++k) staging[k] = number;
      return {staging, 0};
    }
    const Stored* const row = tile_.row<Stored>(view, t);
    if constexpr (is_arithmetic)
      if (in_caller_memory()) return {const_cast<T*>(row), 1};
    load_numbers<T, Stored>(row, staging, tile_.count);
    return {staging, 1};
  }

  void bind_inputs(const Frame& frame, std::int64_t t) {
    now_ = t;
    for (std::size_t i = 0; i < program_.inputs; ++i)
      frame.argument(i) = read(launch_.inputs[i], t, row_of(inputs_, i).data);
  }

  bool streams(const void* data) const {
    return tile_.writing_of(static_cast<const Stored*>(data), launch_.steps) != Writing::cached;
  }

  // Returns the row in which row t of `data` is computed; write() copies it from staging to `data`.
  Row<T> target(void* data, std::int64_t t, T* staging) const {
    if constexpr (is_arithmetic)
      if (data != nullptr && in_caller_memory() && !streams(data)) return {tile_.result<T>(data, t), 1};
    return {staging, 1};
  }
  void write(const Row<T>& row, const T* staging, void* data, std::int64_t t, std::int64_t begin,
             std::int64_t end) const {
    if (data == nullptr || row.data != staging) return;
    Stored* const to = tile_.result<Stored>(data, t) + begin;
    const std::int64_t count = (end < tile_.count ? end : tile_.count) - begin;
    if constexpr (is_arithmetic)
      if (streams(data)) return stream_bytes(to, staging + begin, static_cast<std::size_t>(count) * sizeof(T));
    store_numbers<T, Stored>(staging + begin, to, count);
  }

  // ---- parameters ----

  // Returns a parameter: a row of the tile's neurons if it is a tensor, else one vector for all of them.
  Row<T> load_param(std::size_t j, T* row) {
    const ParamView& param = launch_.params[j];
    if (param.data == nullptr) {
      for (std::int64_t i = 0; i < granule; ++i) row[i] = static_cast<T>(param.number);
      return {row, 0};
    }
    is_legal_ &= load_param_row(param, launch_.cell->params[j], tile_.begin, tile_.count, row);
    return {row, 1};
  }

  // Loads the parameters, and computes the hoisted values: rows if they depend on a tensor.
  void take_params() {
    const std::size_t hoisted_row = is_uniform_ ? granule : padded();
    params_ = scratch_.template take<Row<T>>(program_.params);
    hoisted_ = scratch_.template take<Row<T>>(program_.hoisted);
    T* const hoisted = scratch_.template take<T>(program_.hoisted * hoisted_row);
    T* row = nullptr;
    for (std::size_t j = 0; j < program_.params; ++j) {
      row = scratch_.template take<T>(launch_.params[j].data == nullptr ? granule : param_row_size(tile_.padded));
      if (!scratch_.counts_only()) params_[j] = load_param(j, row);
    }
    const Frame prologue = take_frame(program_.prologue);
    if (scratch_.counts_only()) return;
    for (std::size_t j = 0; j < program_.params; ++j) prologue.argument(j) = params_[j];
    for (std::size_t k = 0; k < program_.hoisted; ++k) prologue.result(k) = {hoisted + k * hoisted_row, 1};
    draw(prologue, 0, static_cast<std::int64_t>(hoisted_row));
    run_tape<T>(program_.prologue, prologue.kernels, prologue.rows, static_cast<std::int64_t>(hoisted_row));
    for (std::size_t k = 0; k < program_.hoisted; ++k)
      hoisted_[k] = {hoisted + k * hoisted_row, program_.hoisted_varies(k, launch_.params) ? 1 : 0};
  }

  void bind_hoisted(const Frame& frame) const {
    for (std::size_t k = 0; k < program_.hoisted; ++k)
      frame.argument(program_.inputs + program_.states + k) = hoisted_[k];
  }

  const Tile& tile_;
  const Launch& launch_;
  const TracedProgram& program_;
  const TapeFunctions functions_;
  Scratch& scratch_;
  const DrawRows<T> draws_;
  std::int64_t now_ = 0;      // the current step
  T* zeros_;                  // a granule
  const Stored** fetched_;    // rows to prefetch
  std::size_t fetching_ = 0;  // how many
  bool is_uniform_ = true;    // true if all neurons have the same parameters
  bool is_legal_ = true;
  T* temporaries_ = nullptr;  // shared by the tapes
  T* bits_ = nullptr;         // random bits, shared by the tapes
  Row<T>*params_ = nullptr, *hoisted_ = nullptr;
  Frame step_, vjp_, epilogue_;  // in a backward pass, step_ is program_.advance
  T *inputs_ = nullptr, *outputs_ = nullptr, *grad_outputs_ = nullptr, *grad_inputs_ = nullptr;  // staging
  std::size_t summed_ = 0;                  // factors with summed gradients
  T *factors_ = nullptr, *sums_ = nullptr;  // [summed], of one step, and summed over all
  T* grad_params_ = nullptr;
};

namespace {

Loop traced_loop(DType type) {
  return with_element(type,
                      []<class Stored>(Stored) { return Multistep<TapeRows<Compute<Stored>, Stored>>::both_ways(); });
}

}  // namespace
}  // namespace CPU_CAPABILITY

Loop SPIKEFORGE_OF_SET(traced_loop)(DType type) { return traced_loop(type); }

}  // namespace spikeforge::cpu
