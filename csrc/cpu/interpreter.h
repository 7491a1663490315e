// The multistep loop of a traced cell on the CPU: its tapes run over a tile of neurons, whose rows stay in the cache,
// through all steps. What multistep.h is for predefined neurons.
//
// A row of a tile is read and written where the caller's tensors lie if it holds whole vectors of the arithmetic's
// type; else it is staged in scratch memory.
#pragma once

#include <spikeforge/cpu/tape_kernels.h>
#include <spikeforge/cpu/traced_kernels.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

// Hands out pieces of the caller's memory, on cache lines; with no memory, it only counts.
class Arena {
 public:
  explicit Arena(void* memory) : base_(static_cast<char*>(memory)) {}

  template <class T>
  T* take(std::size_t n) {
    T* piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (n * sizeof(T) + 63) / 64 * 64;  // NOLINT(bugprone-sizeof-expression): pieces may hold pointers
    return piece;
  }

  bool counts_only() const { return base_ == nullptr; }
  std::size_t used() const { return used_; }

 private:
  char* base_;
  std::size_t used_ = 0;
};

template <class T>
T number_at(const void* data, DType type, std::int64_t i) {
  switch (type) {
    case DType::f16:
      return static_cast<T>(static_cast<float>(static_cast<const c10::Half*>(data)[i]));
    case DType::bf16:
      return static_cast<T>(static_cast<float>(static_cast<const c10::BFloat16*>(data)[i]));
    case DType::f32:
      return static_cast<T>(static_cast<const float*>(data)[i]);
    default:
      return static_cast<T>(static_cast<const double*>(data)[i]);
  }
}

// A granule of stored numbers, to and from the arithmetic's type.
template <class T, class Stored>
struct Granule {
  static void load(const Stored* from, T* to) {
    using V = at::vec::Vectorized<float>;
    for (std::int64_t i = 0; i < granule; i += V::size()) {
      V x;
      if constexpr (std::is_same_v<Stored, c10::Half>)
        at::vec::load_fp32_from_fp16(from + i, x);
      else
        at::vec::load_fp32_from_bf16(from + i, x);
      x.store(to + i);
    }
  }
  static void store(const T* from, Stored* to) {
    using V = at::vec::Vectorized<float>;
    for (std::int64_t i = 0; i < granule; i += 2 * V::size())
      at::vec::convert_from_float<Stored>(V::loadu(from + i), V::loadu(from + i + V::size())).store(to + i);
  }
};
template <class T>
struct Granule<T, T> {
  static void load(const T* from, T* to) { std::memcpy(to, from, granule * sizeof(T)); }
  static void store(const T* from, T* to) { std::memcpy(to, from, granule * sizeof(T)); }
};

// `to` has room up to the next granule, which is filled with zeros.
template <class T, class Stored>
void load_numbers(const Stored* from, T* to, std::int64_t count) {
  const std::int64_t whole = count / granule * granule;
  for (std::int64_t i = 0; i < whole; i += granule) Granule<T, Stored>::load(from + i, to + i);
  if (whole == count) return;
  Stored rest[granule] = {};
  std::memcpy(static_cast<void*>(rest), from + whole, static_cast<std::size_t>(count - whole) * sizeof(Stored));
  Granule<T, Stored>::load(rest, to + whole);
}

template <class T, class Stored>
void store_numbers(const T* from, Stored* to, std::int64_t count) {
  const std::int64_t whole = count / granule * granule;
  for (std::int64_t i = 0; i < whole; i += granule) Granule<T, Stored>::store(from + i, to + i);
  if (whole == count) return;
  Stored rest[granule];
  Granule<T, Stored>::store(from + whole, rest);
  std::memcpy(static_cast<void*>(to + whole), rest, static_cast<std::size_t>(count - whole) * sizeof(Stored));
}

// Calls f with a value of the type that states have beside arithmetic in T: T itself, or a half type beside float.
template <class T, class F>
void with_state_type(DType type, F&& f) {
  if constexpr (std::is_same_v<T, float>) {
    if (type == DType::f16) return f(c10::Half());
    if (type == DType::bf16) return f(c10::BFloat16());
  }
  f(T());
}

// Elements of which a step is done before the next ones: pieces of its rows stay in the first-level cache, however long
// the rows.
constexpr std::int64_t piece = 512;
// Of a compiled tape: few lines are fetched at a time.
constexpr std::int64_t compiled_piece = 128;

template <class T, class Stored>
class Interpreter {
  // A tape with its rows. Arguments and results are bound to other rows as the loop goes on.
  struct Frame {
    const Tape* tape;
    TapeFunction function;
    Row<T>* rows;
    T* constants;
    Kernel<T>* kernels;

    Row<T>& argument(std::size_t i) const { return rows[tape->argument(i)]; }
    Row<T>& result(std::size_t i) const { return rows[tape->result(i)]; }
  };

  const TracedLaunch& launch_;
  const TracedProgram& program_;
  const TapeFunctions functions_;
  Arena& arena_;
  const std::int64_t begin_, count_, padded_;
  T* zeros_;                  // one vector
  T* temporaries_;            // shared by the tapes
  Row<T>* hoisted_;           // [hoisted]
  const Stored** fetched_;    // rows that are read soon, of which run() takes note
  std::size_t fetching_ = 0;  // how many
  bool is_uniform_;           // all neurons have the same parameters

  Interpreter(const TracedLaunch& launch, const TracedProgram& program, const TapeFunctions& functions,
              std::int64_t begin, std::int64_t end, Arena& arena)
      : launch_(launch),
        program_(program),
        functions_(functions),
        arena_(arena),
        begin_(begin),
        count_(end - begin),
        padded_((end - begin + granule - 1) / granule * granule) {
    is_uniform_ = true;
    for (std::size_t j = 0; j < program.params; ++j)
      if (launch.params[j].data != nullptr) is_uniform_ = false;
    zeros_ = arena.template take<T>(granule);
    fetched_ = arena.template take<const Stored*>(program.inputs + program.outputs);
    if (zeros_) std::memset(zeros_, 0, granule * sizeof(T));
  }

  std::int64_t params_padded() const { return is_uniform_ ? granule : padded_; }
  std::int64_t params_step() const { return is_uniform_ ? 0 : 1; }

  T* take_row() { return arena_.template take<T>(static_cast<std::size_t>(padded_)); }
  T* take_rows(std::size_t n) { return arena_.template take<T>(n * static_cast<std::size_t>(padded_)); }
  Row<T> row_of(T* rows, std::size_t i) const { return {rows + i * static_cast<std::size_t>(padded_), 1}; }
  Row<T> zero() const { return {zeros_, 0}; }

  void take_temporaries(std::size_t most) { temporaries_ = take_rows(most); }

  // Constants are in place, and temporaries.
  Frame take_frame(const Tape& tape, TapeFunction function = nullptr) {
    const Frame frame{&tape, function, arena_.template take<Row<T>>(tape.rows()),
                      arena_.template take<T>(tape.constants.size() * granule),
                      arena_.template take<Kernel<T>>(tape.instructions.size())};
    if (arena_.counts_only()) return frame;
    for (std::size_t i = 0; i < tape.instructions.size(); ++i) frame.kernels[i] = kernel_of<T>(tape.instructions[i]);
    for (std::size_t i = 0; i < tape.constants.size(); ++i) {
      T* const row = frame.constants + i * granule;
      const Constant& constant = tape.constants[i];
      const auto vector = constant.is_truth ? Operations<T>::mask(constant.number != 0)
                                            : at::vec::Vectorized<T>(static_cast<T>(constant.number));
      for (std::int64_t k = 0; k < granule; k += vector.size()) vector.store(row + k);
      frame.rows[tape.constant(i)] = {row, 0};
    }
    for (std::size_t i = 0; i < tape.temporaries; ++i) frame.rows[tape.temporary(i)] = row_of(temporaries_, i);
    return frame;
  }

  // The tape on one piece of the rows after the other; after_piece(begin, end) follows each. What is fetched meanwhile
  // comes a few lines after each instruction: the processor waits for more at once.
  template <class AfterPiece>
  void run(const Frame& frame, const AfterPiece& after_piece) {
    constexpr std::int64_t line = line_bytes / static_cast<std::int64_t>(sizeof(Stored));
    if (frame.function != nullptr) {
      for (std::int64_t begin = 0; begin < padded_; begin += compiled_piece) {
        const std::int64_t end = begin + compiled_piece < padded_ ? begin + compiled_piece : padded_;
        frame.function(frame.rows, begin, end);
        for (std::size_t k = 0; k < fetching_; ++k)
          for (std::int64_t at = begin; at < end; at += line) prefetch(fetched_[k] + at);
        after_piece(begin, end);
      }
      fetching_ = 0;
      return;
    }
    const auto count = static_cast<std::int64_t>(frame.tape->instructions.size());
    for (std::int64_t begin = 0; begin < padded_; begin += piece) {
      const std::int64_t end = begin + piece < padded_ ? begin + piece : padded_;
      const std::int64_t each = ((end - begin) / line / (count > 0 ? count : 1) + 1) * line;
      for (std::int64_t i = 0; i < count; ++i) {
        frame.kernels[i](frame.tape->instructions[static_cast<std::size_t>(i)], frame.rows, begin, end);
        const std::int64_t from = begin + i * each, to = from + each < end ? from + each : end;
        for (std::size_t k = 0; k < fetching_; ++k)
          for (std::int64_t at = from; at < to; at += line) prefetch(fetched_[k] + at);
      }
      after_piece(begin, end);
    }
    fetching_ = 0;
  }
  void run(const Frame& frame) {
    run(frame, [](std::int64_t, std::int64_t) {});
  }

  // ---- the caller's memory ----

  bool in_place() const { return padded_ == count_; }

  // Whether a [T, N] result is written past the caches.
  bool streams() const {
    return launch_.steps * launch_.neurons * static_cast<std::int64_t>(sizeof(Stored)) >= large_result;
  }

  // The numbers of row t; in `staging` where they cannot be read as they are.
  template <class Element>
  Row<T> read(const SequenceView& view, std::int64_t t, T* staging) const {
    if (view.data == nullptr) return zero();
    const Element* const row = static_cast<const Element*>(view.data) + t * view.time_stride;
    if (view.neuron_stride == 0) {
      const T number = static_cast<T>(*row);
      for (std::int64_t k = 0; k < granule; ++k) staging[k] = number;
      return {staging, 0};
    }
    if constexpr (std::is_same_v<Element, T>)
      if (in_place()) return {const_cast<T*>(row + begin_), 1};
    load_numbers<T, Element>(row + begin_, staging, count_);
    return {staging, 1};
  }

  // Notes a row that is read soon, for run() to fetch: of this tile, or, where there is no such step, row `first` of
  // the next.
  void fetch(const SequenceView& view, std::int64_t t, std::int64_t first) {
    const bool here = t >= 0 && t < launch_.steps;
    if (view.data == nullptr || view.neuron_stride == 0 || (!here && begin_ + count_ >= launch_.neurons)) return;
    fetched_[fetching_++] =
        static_cast<const Stored*>(view.data) + (here ? t : first) * view.time_stride + begin_ + (here ? 0 : count_);
  }

  // Where a result is computed that then belongs at row t of `data`; write() puts it there from staging.
  template <class Element>
  Row<T> target(void* data, std::int64_t t, T* staging) const {
    if constexpr (std::is_same_v<Element, T>)
      if (data != nullptr && in_place() && !streams()) return {static_cast<T*>(data) + t * launch_.neurons + begin_, 1};
    return {staging, 1};
  }
  template <class Element>
  void write(const Row<T>& row, const T* staging, void* data, std::int64_t t, std::int64_t begin,
             std::int64_t end) const {
    if (data == nullptr || row.data != staging) return;
    Element* const to = static_cast<Element*>(data) + t * launch_.neurons + begin_ + begin;
    const std::int64_t count = (end < count_ ? end : count_) - begin;
    if constexpr (std::is_same_v<Element, T>)
      if (streams()) return stream_bytes(to, staging + begin, static_cast<std::size_t>(count) * sizeof(T));
    store_numbers<T, Element>(staging + begin, to, count);
  }

  void store_states(const Row<T>* states, void* const* targets, std::int64_t t) const {
    for (std::size_t s = 0; s < program_.states; ++s)
      store_numbers<T, T>(states[s].data, static_cast<T*>(targets[s]) + t * launch_.neurons + begin_, count_);
  }

  T* checkpoint(const void* checkpoints, std::int64_t t, std::size_t s) const {
    const std::int64_t row =
        (t / launch_.checkpoint_length - 1) * static_cast<std::int64_t>(program_.states) + static_cast<std::int64_t>(s);
    return static_cast<T*>(const_cast<void*>(checkpoints)) + row * launch_.neurons + begin_;
  }

  void load_initial(std::size_t s, T* state) const {
    const StateView& given = launch_.initial[s];
    if (given.data == nullptr) {
      for (std::int64_t i = 0; i < padded_; ++i) state[i] = static_cast<T>(program_.initial[s]);
      return;
    }
    with_state_type<T>(given.type, [&](auto stored) {
      load_numbers<T>(static_cast<const decltype(stored)*>(given.data) + begin_, state, count_);
    });
  }

  // ---- parameters ----

  void load_param(const ParamView& param, T* row) const {
    for (std::int64_t i = 0; i < params_padded(); ++i) {
      const std::int64_t neuron = begin_ + (i < count_ ? i : 0);
      row[i] = param.data == nullptr ? static_cast<T>(param.number)
                                     : number_at<T>(param.data, param.type, (neuron / param.inner) % param.count);
    }
  }

  // Parameters lie in `params`, what is hoisted of them in hoisted_.
  void take_params(T*& params) {
    const auto row = static_cast<std::size_t>(params_padded());
    params = arena_.template take<T>(program_.params * row);
    hoisted_ = arena_.template take<Row<T>>(program_.hoisted);
    T* const numbers = arena_.template take<T>(program_.hoisted * row);
    const Frame prologue = take_frame(program_.prologue);
    if (arena_.counts_only()) return;
    for (std::size_t j = 0; j < program_.params; ++j) {
      load_param(launch_.params[j], params + j * row);
      prologue.argument(j) = {params + j * row, 1};
    }
    for (std::size_t k = 0; k < program_.hoisted; ++k) {
      prologue.result(k) = {numbers + k * row, 1};
      hoisted_[k] = {numbers + k * row, params_step()};
    }
    run_tape<T>(program_.prologue, prologue.kernels, prologue.rows, params_padded());
  }

  void bind_hoisted(const Frame& frame) const {
    for (std::size_t k = 0; k < program_.hoisted; ++k)
      frame.argument(program_.inputs + program_.states + k) = hoisted_[k];
  }

  static std::size_t larger(std::size_t a, std::size_t b) { return a > b ? a : b; }

  // ---- forward ----

  void forward(const TracedForwardLaunch& launch) {
    take_temporaries(larger(program_.prologue.temporaries, program_.step.temporaries));
    T* params;
    take_params(params);
    const Frame step = take_frame(program_.step, functions_.step);
    T* const input_staging = take_rows(program_.inputs);
    T* const output_staging = take_rows(program_.outputs);
    T* const state_numbers = take_rows(2 * program_.states);
    Row<T>* states = arena_.template take<Row<T>>(program_.states);
    Row<T>* next_states = arena_.template take<Row<T>>(program_.states);
    if (arena_.counts_only()) return;

    for (std::size_t s = 0; s < program_.states; ++s) {
      states[s] = row_of(state_numbers, 2 * s);
      next_states[s] = row_of(state_numbers, 2 * s + 1);
    }
    for (std::size_t s = 0; s < program_.states; ++s) load_initial(s, states[s].data);
    bind_hoisted(step);
    for (std::int64_t t = 0; t < launch.steps; ++t) {
      if (launch.checkpoints != nullptr && t > 0 && t % launch.checkpoint_length == 0)
        for (std::size_t s = 0; s < program_.states; ++s)
          store_numbers<T, T>(states[s].data, checkpoint(launch.checkpoints, t, s), count_);
      for (std::size_t i = 0; i < program_.inputs; ++i) {
        step.argument(i) = read<Stored>(launch.inputs[i], t, row_of(input_staging, i).data);
        fetch(launch.inputs[i], t + 1, 0);
      }
      for (std::size_t k = 0; k < program_.outputs; ++k)
        step.result(k) = target<Stored>(launch.outputs[k], t, row_of(output_staging, k).data);
      for (std::size_t s = 0; s < program_.states; ++s) {
        step.argument(program_.inputs + s) = states[s];
        step.result(program_.outputs + s) = next_states[s];
      }
      run(step, [&](std::int64_t begin, std::int64_t end) {
        for (std::size_t k = 0; k < program_.outputs; ++k)
          write<Stored>(step.result(k), row_of(output_staging, k).data, launch.outputs[k], t, begin, end);
      });
      if (launch.store_states) store_states(next_states, launch.states.data(), t);
      Row<T>* const before = states;
      states = next_states;
      next_states = before;
    }
    if (!launch.store_states) store_states(states, launch.states.data(), 0);
    end_of_stream();
  }

  // ---- backward: segments from the last to the first, each recomputed from its checkpoint ----

  struct Backward {
    const TracedBackwardLaunch& launch;
    bool with_inputs, with_params;
    std::int64_t segment;
    Frame advance, vjp;
    T* before;  // [segment, states]: the states before each step of the segment
    T* staging;
    T* input_staging;        // [inputs]
    T* grad_output_staging;  // [outputs]
    T* grad_input_staging;   // [inputs]
    T* grad_factors;         // [summed], of one step
    T* sums;                 // [summed]
    Row<T>* grad_states;
    Row<T>* next_grad_states;
  };

  static bool any(const std::span<void* const>& pointers) {
    for (std::size_t i = 0; i < pointers.size(); ++i)
      if (pointers[i] != nullptr) return true;
    return false;
  }

  void backward(const TracedBackwardLaunch& launch) {
    const bool with_inputs = any(launch.grad_inputs), with_params = any(launch.grad_params);
    const Tape& vjp = program_.backward(with_inputs, with_params);
    take_temporaries(larger(larger(program_.prologue.temporaries, program_.epilogue.temporaries),
                            larger(program_.advance.temporaries, vjp.temporaries)));
    T* params;
    take_params(params);
    const std::int64_t segment = launch.checkpoint_length < launch.steps ? launch.checkpoint_length : launch.steps;
    const std::size_t summed = with_params ? program_.summed.size() : 0;
    Backward b{launch,
               with_inputs,
               with_params,
               segment,
               take_frame(program_.advance, functions_.advance),
               take_frame(vjp, functions_.backward),
               take_rows(static_cast<std::size_t>(segment) * program_.states),
               take_row(),
               take_rows(program_.inputs),
               take_rows(program_.outputs),
               take_rows(program_.inputs),
               take_rows(summed),
               take_rows(summed),
               arena_.template take<Row<T>>(program_.states),
               arena_.template take<Row<T>>(program_.states)};
    T* const grad_state_numbers = take_rows(2 * program_.states);
    const Frame epilogue = take_frame(program_.epilogue);
    T* const grad_params = take_rows(program_.params);
    if (arena_.counts_only()) return;

    bind_hoisted(b.advance);
    bind_hoisted(b.vjp);
    std::memset(b.sums, 0, summed * static_cast<std::size_t>(padded_) * sizeof(T));
    for (std::size_t s = 0; s < program_.states; ++s) {
      b.grad_states[s] = row_of(grad_state_numbers, 2 * s);
      b.next_grad_states[s] = row_of(grad_state_numbers, 2 * s + 1);
      std::memset(b.grad_states[s].data, 0, static_cast<std::size_t>(padded_) * sizeof(T));
    }
    if (!launch.store_states) add_grad_states(b, 0);
    const std::int64_t last = launch.steps == 0 ? -1 : (launch.steps - 1) / segment * segment;
    for (std::int64_t t0 = last; t0 >= 0; t0 -= segment) {
      const std::int64_t t1 = t0 + segment < launch.steps ? t0 + segment : launch.steps;
      recompute(b, t0, t1);
      for (std::int64_t t = t1 - 1; t >= t0; --t) step_back(b, t, t - t0);
    }
    for (std::size_t s = 0; s < program_.states; ++s)
      if (launch.grad_initial[s] != nullptr)
        with_state_type<T>(launch.initial[s].type, [&](auto stored) {
          store_numbers<T>(b.grad_states[s].data, static_cast<decltype(stored)*>(launch.grad_initial[s]) + begin_,
                           count_);
        });
    if (with_params) finish_params(b, epilogue, params, grad_params);
    end_of_stream();
  }

  // The states before step t0 + i.
  Row<T> before(const Backward& b, std::int64_t i, std::size_t s) const {
    return row_of(b.before, static_cast<std::size_t>(i) * program_.states + s);
  }

  void add_grad_states(const Backward& b, std::int64_t t) const {
    using V = at::vec::Vectorized<T>;
    for (std::size_t s = 0; s < program_.states; ++s) {
      if (b.launch.grad_states[s].data == nullptr) continue;
      const Row<T> upstream = read<T>(b.launch.grad_states[s], t, b.staging);
      T* const sum = b.grad_states[s].data;
      for (std::int64_t at = 0; at < padded_; at += V::size())
        (V::loadu(sum + at) + V::loadu(upstream.data + at * upstream.step)).store(sum + at);
    }
  }

  void recompute(const Backward& b, std::int64_t t0, std::int64_t t1) {
    for (std::size_t s = 0; s < program_.states; ++s) {
      T* const first = before(b, 0, s).data;
      t0 == 0 ? load_initial(s, first) : load_numbers<T, T>(checkpoint(b.launch.checkpoints, t0, s), first, count_);
    }
    for (std::int64_t t = t0; t + 1 < t1; ++t) {
      for (std::size_t i = 0; i < program_.inputs; ++i) {
        b.advance.argument(i) = read<Stored>(b.launch.inputs[i], t, row_of(b.input_staging, i).data);
        fetch(b.launch.inputs[i], t + 1, 0);
      }
      for (std::size_t s = 0; s < program_.states; ++s) {
        b.advance.argument(program_.inputs + s) = before(b, t - t0, s);
        b.advance.result(s) = before(b, t - t0 + 1, s);
      }
      run(b.advance);
    }
  }

  // Of what recompute() reads of the next segment, as in multistep.h.
  void fetch_later(const Backward& b, const SequenceView& input, std::int64_t t, std::int64_t i) {
    const std::int64_t t0 = t - i, row = launch_.steps - 1 - t;
    if (t0 > 0) return fetch(input, t0 - 1 - i, 0);
    if (row >= (launch_.steps - 1) / b.segment * b.segment) fetch(input, -1, row);
  }

  // Step t, the i-th of its segment.
  void step_back(Backward& b, std::int64_t t, std::int64_t i) {
    if (b.launch.store_states) add_grad_states(b, t);
    std::size_t argument = 0, result = 0;
    for (std::size_t k = 0; k < program_.inputs; ++k) {
      b.vjp.argument(argument++) = read<Stored>(b.launch.inputs[k], t, row_of(b.input_staging, k).data);
      fetch_later(b, b.launch.inputs[k], t, i);
    }
    for (std::size_t s = 0; s < program_.states; ++s) b.vjp.argument(argument++) = before(b, i, s);
    argument += program_.hoisted;
    for (std::size_t k = 0; k < program_.outputs; ++k) {
      b.vjp.argument(argument++) = read<Stored>(b.launch.grad_outputs[k], t, row_of(b.grad_output_staging, k).data);
      fetch(b.launch.grad_outputs[k], t - 1, launch_.steps - 1);
    }
    for (std::size_t s = 0; s < program_.states; ++s) b.vjp.argument(argument++) = b.grad_states[s];

    if (b.with_inputs)
      for (std::size_t k = 0; k < program_.inputs; ++k)
        b.vjp.result(result++) = target<Stored>(b.launch.grad_inputs[k], t, row_of(b.grad_input_staging, k).data);
    for (std::size_t s = 0; s < program_.states; ++s) b.vjp.result(result++) = b.next_grad_states[s];
    const std::size_t first_factor = result;
    const std::size_t summed = b.with_params ? program_.summed.size() : 0;
    for (std::size_t k = 0; k < summed; ++k) b.vjp.result(result++) = row_of(b.grad_factors, k);
    run(b.vjp, [&](std::int64_t begin, std::int64_t end) {
      for (std::size_t k = 0; b.with_inputs && k < program_.inputs; ++k)
        write<Stored>(b.vjp.result(k), row_of(b.grad_input_staging, k).data, b.launch.grad_inputs[k], t, begin, end);
    });

    using V = at::vec::Vectorized<T>;
    for (std::size_t k = 0; k < summed; ++k) {
      const T* const more = b.vjp.result(first_factor + k).data;
      T* const sum = row_of(b.sums, k).data;
      for (std::int64_t at = 0; at < padded_; at += V::size())
        (V::loadu(sum + at) + V::loadu(more + at)).store(sum + at);
    }
    Row<T>* const done = b.grad_states;
    b.grad_states = b.next_grad_states;
    b.next_grad_states = done;
  }

  void finish_params(const Backward& b, const Frame& epilogue, T* params, T* grad_params) {
    const auto row = static_cast<std::size_t>(params_padded());
    for (std::size_t j = 0; j < program_.params; ++j) {
      epilogue.argument(j) = {params + j * row, params_step()};
      epilogue.result(j) = row_of(grad_params, j);
    }
    for (std::size_t k = 0; k < program_.factors; ++k) epilogue.argument(program_.params + k) = zero();
    for (std::size_t k = 0; k < program_.summed.size(); ++k)
      epilogue.argument(program_.params + program_.summed[k]) = row_of(b.sums, k);
    run(epilogue);
    for (std::size_t j = 0; j < program_.params; ++j)
      if (b.launch.grad_params[j] != nullptr)
        store_numbers<T, T>(row_of(grad_params, j).data, static_cast<T*>(b.launch.grad_params[j]) + begin_, count_);
  }

 public:
  static std::size_t forward_scratch(const TracedForwardLaunch& launch, const TracedProgram& program,
                                     std::int64_t neurons) {
    Arena arena(nullptr);
    Interpreter(launch, program, {}, 0, neurons, arena).forward(launch);
    return arena.used();
  }

  static void run_forward(const TracedForwardLaunch& launch, const TracedProgram& program,
                          const TapeFunctions& functions, std::int64_t begin, std::int64_t end, void* scratch) {
    Arena arena(scratch);
    Interpreter(launch, program, functions, begin, end, arena).forward(launch);
  }

  static std::size_t backward_scratch(const TracedBackwardLaunch& launch, const TracedProgram& program,
                                      std::int64_t neurons) {
    Arena arena(nullptr);
    Interpreter(launch, program, {}, 0, neurons, arena).backward(launch);
    return arena.used();
  }

  static void run_backward(const TracedBackwardLaunch& launch, const TracedProgram& program,
                           const TapeFunctions& functions, std::int64_t begin, std::int64_t end, void* scratch) {
    Arena arena(scratch);
    Interpreter(launch, program, functions, begin, end, arena).backward(launch);
  }
};

}  // namespace CPU_CAPABILITY
}  // namespace spikeforge::cpu
