// Compiled once for each instruction set (CPU_CAPABILITY). The code must not use inline functions of the standard
// library that another file also instantiates: the linker keeps one copy of them, possibly one that an older processor
// cannot execute.
#include "csrc/cpu/element_type.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/multistep/multistep.h"
#include "csrc/cpu/multistep/param_rows.h"
#include "csrc/cpu/numbers.h"
#include "csrc/cpu/scratch.h"
#include "csrc/cpu/tile.h"
#include "csrc/cpu/vec.h"
#include "csrc/kernels/multistep/launch.h"
#include "csrc/neuron/cell.h"
#include "csrc/neuron/cells.h"
#include "csrc/neuron/surrogate.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

// The numbers of a cell that differ between neurons, because they depend on a parameter that is a tensor.
//
// The cell is constructed once from a number type that records whether a value depends on such a parameter, and has the
// size of the vectors that it replaces: both cells have the same layout, so a number is identified by its position.
template <class T> struct Noted {
  static constexpr std::size_t words = sizeof(Vec<T>) / sizeof(std::uint64_t);
  static constexpr std::uint64_t mark = 0x9e3779b97f4a7c15;  // differs from all options and numbers of surrogates

  alignas(Vec<T>) std::uint64_t note[words];

  Noted() = default;
  Noted(double) : note{} {}  // NOLINT(google-explicit-constructor)

  static Noted noting(bool depends) {
    Noted number(0.);
    for (std::uint64_t& word : number.note) word = depends ? mark : 0;
    return number;
  }

  bool depends() const { return note[0] == mark; }

  friend Noted of(Noted a, Noted b) { return noting(a.depends() || b.depends()); }
  friend Noted operator+(Noted a, Noted b) { return of(a, b); }
  friend Noted operator-(Noted a, Noted b) { return of(a, b); }
  friend Noted operator*(Noted a, Noted b) { return of(a, b); }
  friend Noted operator/(Noted a, Noted b) { return of(a, b); }
  friend Noted operator<(Noted a, Noted b) { return of(a, b); }
  friend Noted operator<=(Noted a, Noted b) { return of(a, b); }
  friend Noted operator>=(Noted a, Noted b) { return of(a, b); }
  friend Noted operator-(Noted a) { return a; }
  friend Noted select(Noted condition, Noted a, Noted b) { return of(condition, of(a, b)); }
  friend Noted abs(Noted a) { return a; }
  friend Noted exp(Noted a) { return a; }
  friend Noted log(Noted a) { return a; }
  friend Noted sqrt(Noted a) { return a; }
};

// The numbers of a cell as words of the size of a vector. They follow its options and its surrogate.
template <class Cell, class V, class Surrogate, class Options, class Neuron> struct Words {
  struct OptionsAndSurrogate {
    Options options;
    Surrogate surrogate;
  };
  struct AndEmptyNeuron {
    Options options;
    Surrogate surrogate;
    Neuron neuron;
  };
  using Head = std::conditional_t<std::is_empty_v<Neuron>, AndEmptyNeuron, OptionsAndSurrogate>;
  // A neuron that stores the options starts with a word for them.
  struct Look : Neuron {
    template <class Self> static constexpr bool has_options() {
      return requires { sizeof(Self::options); };
    }
  };
  static constexpr int first =
      static_cast<int>((sizeof(Head) + sizeof(V) - 1) / sizeof(V)) + (Look::template has_options<Look>() ? 1 : 0);
  static constexpr int count = static_cast<int>(sizeof(Cell) / sizeof(V)) - first;
  static_assert(sizeof(Cell) % sizeof(V) == 0 && count > 0 && count <= 32);
};

// Returns a bit for each word that depends on a noted parameter. Noting(params, surrogate, options) is a cell with the
// layout of the cell over vectors.
template <class Noting, int first, class T, class Surrogate, class Options>
std::uint32_t noted_words(const Noted<T>* params, const Surrogate& surrogate, const Options& options) {
  constexpr int size = sizeof(Noted<T>);
  const Noting cell(params, surrogate, options);
  const Noted<T> noted = Noted<T>::noting(true);
  std::uint32_t words = 0;
  for (int i = 0; i < static_cast<int>(sizeof cell) / size; ++i)
    if (std::memcmp(reinterpret_cast<const char*>(&cell) + i * size, &noted, size) == 0) {
      if (i < first) __builtin_trap();  // the layout differs from that of Words
      words |= 1u << (i - first);
    }
  return words;
}

// A surrogate chosen at run time, with one indirect call per vector. Only the most common surrogates have separate
// kernels.
template <class F> class AnySurrogate {
 public:
  explicit AnySurrogate(const Launch& launch)
      : functions_(functions(launch.form.surrogate)), args_(launch.surrogate_args.data()) {}

  F gradient(F x) const { return functions_.gradient(x, args_); }
  F primitive(F x) const { return functions_.primitive(x, args_); }

 private:
  struct Functions {
    F (*gradient)(F, const double*);
    F (*primitive)(F, const double*);
  };

  template <template <class> class Surrogate> static constexpr Functions functions_of() {
    return {[](F x, const double* args) { return Surrogate<F>(args).gradient(x); },
            [](F x, const double* args) { return Surrogate<F>(args).primitive(x); }};
  }

  static Functions functions(SurrogateKind kind) {
    switch (kind) {
#define SPIKEFORGE_SURROGATE(name, Struct, ...) \
  case SurrogateKind::name:                     \
    return functions_of<Struct>();
#include "csrc/neuron/surrogate.def"
#undef SPIKEFORGE_SURROGATE
    }
    return functions_of<NoSurrogate>();
  }

  Functions functions_;
  const double* args_;
};

template <class Surrogate> Surrogate make_surrogate(const Launch& launch) {
  if constexpr (std::is_constructible_v<Surrogate, const Launch&>) {
    return Surrogate(launch);
  } else {
    return Surrogate(launch.surrogate_args.data());
  }
}

// The number of vectors that are collected before they are written past the caches, a few KiB.
constexpr std::int64_t staging_vectors = 128;

// The options of a spiking forward pass, which calls no surrogate. The compiler moves tests of the other options out of
// the loop.
struct SpikingOptions {
  static constexpr bool spiking = true;
  bool hard_reset, detach_reset, decay_input;

  SpikingOptions(const CellForm& o)
      : hard_reset(o.hard_reset), detach_reset(o.detach_reset), decay_input(o.decay_input) {}
};

// The options of most training runs.
struct UsualOptions {
  static constexpr bool hard_reset = true, spiking = true, decay_input = true;
  bool detach_reset;

  UsualOptions(const CellForm& o) : detach_reset(o.detach_reset) {}
  static bool serve(const CellForm& o) { return o.hard_reset && o.spiking && o.decay_input; }
};

// Rows of a predefined neuron: its struct over vectors of neurons, compiled for the most common choices. The loop's
// parameter (multistep.h). Neuron::Cell<F, Surrogate, Options> is the cell over the arithmetic type F, and
// Neuron::Law<F, Options> is the neuron in it.
template <class Neuron, class T, class StoredType> class CompiledRows {
  using V = Vec<T>;
  template <class Surrogate, class Options> using CellOf = typename Neuron::template Cell<V, Surrogate, Options>;
  template <class Surrogate, class Options>
  using WordsOf = Words<CellOf<Surrogate, Options>, V, Surrogate, Options, typename Neuron::template Law<V, Options>>;
  using Cell = CellOf<NoSurrogate<V>, SpikingOptions>;  // sufficient except for a step and its derivative
  using CellWords = WordsOf<NoSurrogate<V>, SpikingOptions>;
  static constexpr int lanes = V::lanes;
  typedef typename V::Simd __attribute__((may_alias)) Word;  // of a cell
  static constexpr int S = Cell::n_states;
  static constexpr int P = Cell::n_params;
  static_assert(Cell::n_inputs == 1 && Cell::n_outputs == 1 && granule % lanes == 0);

 public:
  using Number = T;
  using Stored = StoredType;
  static constexpr bool in_place = true;

  CompiledRows(const Tile& tile, const LoopContext&, Scratch& scratch)
      : tile_(tile),
        launch_(tile.launch),
        scratch_(scratch),
        full_(tile.count / lanes),
        tail_(static_cast<int>(tile.count % lanes)),
        vectors_(full_ + (tail_ > 0)) {
    std::size_t rows = 0;
    for (const ParamView& param : launch_.params) rows += param.data != nullptr ? 1 : 0;
    has_own_ = rows > 0;
    if (!has_own_) return;
    own_words_ = own_words();
    own_ = scratch.take<V>(size(__builtin_popcount(own_words_) * vectors_));
    T* const params = scratch.take<T>(rows * param_row_size(tile_.padded));
    if (!scratch.counts_only()) make_own(params);
  }

  bool is_legal() const { return is_legal_; }

  void take_forward(const ForwardLaunch& launch) {
    choose_step<true>();
    x_ = take_row(!Tile::is_dense(launch.inputs[0]));
  }

  void take_backward(const BackwardLaunch& launch) {
    choose_step<false>();
    launch.any_grad_param ? choose_vjp<true>() : choose_vjp<false>();
    x_ = take_row(!Tile::is_dense(launch.inputs[0]));
    grad_y_ = take_row(!Tile::is_dense(launch.grad_outputs[0]));
    grad_x_ = take_row(launch.grad_inputs[0] == nullptr);
    grad_param_ = scratch_.take<V>(size(vectors_ * P));
    if (scratch_.counts_only() || !launch.any_grad_param) return;
    for (std::int64_t i = 0; i < vectors_ * P; ++i) grad_param_[i] = V(0);
  }

  void initial(T* states) const {
    with_cells([&](auto&& cells) {
      for (std::int64_t v = 0; v < vectors_; ++v) {
        V state[S];
        cells[v].initial(state);
        for (int s = 0; s < S; ++s) store_row<T>(states + s * tile_.padded + v * lanes, state[s]);
      }
    });
  }

  void step(const ForwardLaunch& launch, std::int64_t t, Ranges ranges, const T* before, T* after) const {
    const Stored* const x = row_of(launch.inputs[0], t, x_);
    auto* const y = static_cast<Stored*>(launch.outputs[0]);
    const Stored* const next = tile_.template row_after<Stored>(launch.inputs[0], t + 1, 0);
    run<true>(step_of(ranges, x, next, before, after, tile_.template result<Stored>(y, t)),
              tile_.writing_of(y, launch.steps));
  }

  void advance(const BackwardLaunch& launch, std::int64_t t, Ranges ranges, const T* before, T* after) const {
    const Stored* const x = row_of(launch.inputs[0], t, x_);
    const Stored* const next = tile_.template row_after<Stored>(launch.inputs[0], t + 1, 0);
    run<false>(step_of(ranges, x, next, before, after, nullptr), Writing::cached);
  }

  void vjp(const BackwardLaunch& launch, std::int64_t t, Ranges ranges, const Segment& segment, const T* before,
           T* grad, T* /*grad_before*/) const {
    const Stored* const x = row_of(launch.inputs[0], t, x_);
    const Stored* const grad_y = row_of(launch.grad_outputs[0], t, grad_y_);
    const Stored* const after = tile_.template row_after<Stored>(launch.grad_outputs[0], t - 1, tile_.steps - 1);
    const Stored* const later = tile_.template row_later<Stored>(launch.inputs[0], t, segment);
    auto* const grad_x = static_cast<Stored*>(launch.grad_inputs[0]);
    run({.launch = &launch_,
         .own = own_of(0),
         .ranges = ranges,
         .x = x,
         .grad_y = grad_y,
         .after = after != nullptr ? after : grad_y,
         .later = later != nullptr ? later : x,
         .before = before,
         .grad_state = grad,
         .stride = tile_.padded,
         .grad_param = grad_param_,
         .grad_x = grad_x == nullptr ? grad_x_ : tile_.template result<Stored>(grad_x, t)},
        tile_.writing_of(grad_x, launch.steps));
  }

  void forget(std::int64_t first, std::int64_t last) const {
    for (std::int64_t i = first; i < last; ++i)
      for (int j = 0; j < P; ++j) grad_param_[i / lanes * P + j].value[i % lanes] = 0;
  }

  void finish(const BackwardLaunch& launch, const T* grad) const {
    with_cells([&](auto&& cells) {
      for (std::int64_t v = 0; v < vectors_; ++v) {
        V* const grad_param = grad_param_ + v * P;
        V grad_own[S];
        for (int s = 0; s < S; ++s) grad_own[s] = load_row<T>(grad + s * tile_.padded + v * lanes);
        cells[v].finish(grad_own, grad_param);
        for (int j = 0; j < P; ++j)
          if (launch.grad_params[j] != nullptr)
            store_some(static_cast<T*>(launch.grad_params[j]) + tile_.begin + v * lanes, grad_param[j],
                       v < full_ ? lanes : tail_);
      }
    });
  }

 private:
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

  // ---- cells: one for all neurons, except for the numbers that depend on a tensor, which are rows ----
  //
  // One cell per vector would need five times the memory of a row of 1 / tau, and would not stay in the caches.

  // The vectors of a parameter, consecutive or (with step 0) always the same one, and their legal range.
  struct ParamRow {
    const T* at;
    std::int64_t step;
    V least, most;
    V number;  // the vector for step 0
  };

  ParamRow param_row(int j, T*& free) const {
    const ParamView& param = launch_.params[j];
    const CellParam& described = launch_.cell->params[static_cast<std::size_t>(j)];
    const LegalRange range = described.range(sizeof(T) == 8 ? DType::f64 : DType::f32);
    ParamRow row{.at = nullptr, .step = 0, .least = range.least, .most = range.most, .number = param.number};
    if (param.data == nullptr) return row;
    row.step = lanes;
    row.at = param_in_place<T>(param, tile_.begin, tile_.count, tail_ == 0);
    if (row.at == nullptr) {
      row.at = free;
      load_param_row(param, tile_.begin, tile_.count, free);
      free += param_row_size(tile_.padded);
    }
    return row;
  }

  // Computes the per-neuron numbers of the tile's neurons.
  void make_own(T* free) {
    ParamRow rows[P];
    for (int j = 0; j < P; ++j) {
      rows[j] = param_row(j, free);
      if (rows[j].step == 0) rows[j].at = reinterpret_cast<const T*>(&rows[j].number);
    }
    own_words_ == 1 ? make_words<true>(rows) : make_words<false>(rows);
  }

  // Computes the per-neuron words. With `only_first`, the compiler removes the computation of the other words.
  template <bool only_first> void make_words(const ParamRow (&rows)[P]) {
    const SpikingOptions options(launch_.form);
    auto legal = V(0) <= V(0);  // everywhere
    for (std::int64_t v = 0; v < vectors_; ++v) {
      V params[P];
      for (int j = 0; j < P; ++j) {
        params[j] = load_row<T>(rows[j].at + v * rows[j].step);
        if (rows[j].step != 0)
          legal = {legal.bits & (rows[j].least <= params[j]).bits & (params[j] <= rows[j].most).bits};
      }
      const Cell cell(params, NoSurrogate<V>(nullptr), options);
      constexpr int count = only_first ? 1 : CellWords::count;
      V* own = own_ + v;
#pragma GCC unroll 32
      for (int w = 0; w < count; ++w)
        if (only_first || (own_words_ >> w & 1) != 0) {
          *own = reinterpret_cast<const Word*>(&cell)[CellWords::first + w];
          own += vectors_;
        }
    }
    for (int i = 0; i < lanes; ++i) is_legal_ = is_legal_ && legal.bits[i] != 0;
  }

  // ---- rows in the memory of the caller ----

  Stored* take_row(bool needed) const { return scratch_.take<Stored>(needed ? size(tile_.padded) : 0); }

  // Returns step t of a sequence. A sequence that is missing, or expanded from one element, is written to `row`.
  const Stored* row_of(const SequenceView& view, std::int64_t t, Stored* row) const {
    if (Tile::is_dense(view)) return tile_.template row<Stored>(view, t);
    const Stored value = view.data ? static_cast<const Stored*>(view.data)[t * view.time_stride] : Stored(0);
    for (std::int64_t i = 0; i < vectors_ * lanes; ++i) row[i] = value;
    return row;
  }

  static void copy(const void* from, int count, void* to, std::size_t element) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * element);
  }

  template <class Element> static void store_some(Element* p, V x, int count) {
    if (count == lanes) return store_row<T>(p, x);
    Element padded[lanes];
    store_row<T>(padded, x);
    copy(padded, count, p, sizeof(Element));
  }

  // Returns the vector after the full ones, as a separate row.
  const Stored* tail_of(const Stored* row, Stored (&padded)[lanes]) const {
    std::memset(static_cast<void*>(padded), 0, sizeof padded);
    copy(row + full_ * lanes, tail_, padded, sizeof(Stored));
    return padded;
  }

  void store_tail(Stored* row, const Stored* values) const { copy(values, tail_, row + full_ * lanes, sizeof(Stored)); }

  // Writes a vector. The branch is cheap: without streaming, the loop is not bound by memory.
  static void write(Stored* p, V x, bool stream) {
    if (stream) [[likely]] {
      stream_row<T>(p, x);
    } else {
      store_row<T>(p, x);
    }
  }

  // ---- row kernels: one step of a number of vectors ----
  //
  // Not inlined, so that tails share the code. The processor overlaps memory latency only with instructions in its
  // window: hence the kernels for the most common choices. LIF, float32, T=16, N=2^20, backward, in times of a copy of
  // the same number of bytes: 2.0 with the options tested for each vector, 1.7 with those of UsualOptions known at
  // compile time.

  // The per-neuron numbers of a tile: a row for each word.
  struct Own {
    const V* rows;
    std::int64_t stride;  // from one row to the next
    std::uint32_t words;
  };

  // Returns the per-neuron numbers from vector v on.
  Own own_of(std::int64_t v) const { return {own_ + (has_own_ ? v : 0), vectors_, own_words_}; }

  std::uint32_t own_words() const {
    using Noting = typename Neuron::template Cell<Noted<T>, NoSurrogate<V>, SpikingOptions>;
    static_assert(sizeof(Noting) == sizeof(Cell));
    Noted<T> params[P];
    for (int j = 0; j < P; ++j) params[j] = Noted<T>::noting(launch_.params[j].data != nullptr);
    return noted_words<Noting, CellWords::first>(params, NoSurrogate<V>(nullptr), SpikingOptions(launch_.form));
  }

  // The common cell of all neurons, as a local copy that no store can alias.
  template <class Surrogate, class Options> class CommonCell {
   public:
    using Made = CellOf<Surrogate, Options>;

    CommonCell(const Launch& launch, const Own&) : cell_(make(launch)) {}
    const Made& operator[](std::int64_t) const { return cell_; }

    // Constructs the cell, once per row. Without inlining, the call would take 2 % of a small operator.
    [[gnu::always_inline]] static Made make(const Launch& launch) {
      V params[P];
      for (int j = 0; j < P; ++j) params[j] = V(launch.params[j].data != nullptr ? 1 : launch.params[j].number);
      return Made(params, make_surrogate<Surrogate>(launch), Options(launch.form));
    }

   private:
    Made cell_;
  };

  // The same with separate numbers per vector, if a parameter is a tensor. All numbers are read for each vector, also
  // the common ones, so that the cell is constructed in registers for any set of separate numbers.
  template <class Surrogate, class Options> class OwnCells {
   public:
    using Made = CellOf<Surrogate, Options>;

    OwnCells(const Launch& launch, const Own& own) : cell_(CommonCell<Surrogate, Options>::make(launch)) {
      const V* next = own.rows;
      for (int w = 0; w < Layout::count; ++w) {
        const bool is_own = (own.words >> w & 1) != 0;
        rows_[w] =
            reinterpret_cast<const char*>(is_own ? next : reinterpret_cast<const V*>(&cell_) + Layout::first + w);
        masks_[w] = is_own ? ~std::size_t{0} : 0;
        if (is_own) next += own.stride;
      }
    }
    OwnCells(const OwnCells&) = delete;
    OwnCells& operator=(const OwnCells&) = delete;

    Made operator[](std::int64_t vector) const {
      Made made = cell_;
#pragma GCC unroll 32
      for (int w = 0; w < Layout::count; ++w)
        reinterpret_cast<Word*>(&made)[Layout::first + w] =
            *reinterpret_cast<const Word*>(rows_[w] + (size(vector) * sizeof(V) & masks_[w]));
      return made;
    }

   private:
    using Layout = WordsOf<Surrogate, Options>;
    static_assert(Layout::count == CellWords::count);

    const Made cell_;
    const char* rows_[Layout::count];
    std::size_t masks_[Layout::count];  // masks of the byte offset of a vector: 0 for common numbers
  };

  // The same if only the first word is separate per vector, which is 1 / tau for most neurons.
  template <class Surrogate, class Options> class OwnFirst {
   public:
    using Made = CellOf<Surrogate, Options>;

    OwnFirst(const Launch& launch, const Own& own)
        : cell_(CommonCell<Surrogate, Options>::make(launch)), row_(reinterpret_cast<const Word*>(own.rows)) {}

    Made operator[](std::int64_t vector) const {
      Made made = cell_;
      reinterpret_cast<Word*>(&made)[WordsOf<Surrogate, Options>::first] = row_[vector];
      return made;
    }

   private:
    const Made cell_;
    const Word* row_;
  };

  // Calls use(cells) with the cells of all vectors, which have no surrogate.
  template <class Use> void with_cells(const Use& use) const {
    const Own own = own_of(0);
    if (has_own_)
      use(OwnCells<NoSurrogate<V>, SpikingOptions>(launch_, own));
    else
      use(CommonCell<NoSurrogate<V>, SpikingOptions>(launch_, own));
  }

  // Return the vectors of a range among the first `vectors` of a row.
  static std::int64_t first_vector(const Range& range) { return range.first / lanes; }
  static std::int64_t last_vector(const Range& range, std::int64_t vectors) {
    return range.last / lanes < vectors ? range.last / lanes : vectors;
  }

  struct Step {
    const Launch* launch;
    Own own;
    Ranges ranges;
    const Stored *x, *after;  // the row to read next
    const T* before;
    T* state;             // may be `before`
    std::int64_t stride;  // from the row of one state to the next
    Stored* y;
    bool stream = false;  // past the caches
    std::int64_t vectors = 0;
  };

  template <class Cells, bool outputs> [[gnu::noinline]] static void step_row(const Step& step) {
    const auto [launch, own, ranges, x, after, before, state, stride, y, stream, vectors] = step;
    const Cells cells(*launch, own);
    for (const Range& range : ranges) {
      const std::int64_t last = last_vector(range, vectors);
      for (std::int64_t v = first_vector(range); v < last; ++v) {
        prefetch(after + v * lanes);
        V now[S];
        for (int s = 0; s < S; ++s) now[s] = load_row<T>(before + s * stride + v * lanes);
        const V in = load_row<T>(x + v * lanes);
        V out;
        const auto& cell = cells[v];
        cell.step(&in, now, &out);
        for (int s = 0; s < S; ++s) store_row<T>(state + s * stride + v * lanes, now[s]);
        if constexpr (outputs) write(y + v * lanes, out, stream);
      }
    }
  }

  struct VjpStep {
    const Launch* launch;
    Own own;
    Ranges ranges;
    const Stored *x, *grad_y, *after, *later;  // the rows to read next, and in the next segment
    const T* before;
    T* grad_state;
    std::int64_t stride;
    V* grad_param;  // [vectors, P]
    Stored* grad_x;
    bool stream = false;  // past the caches
    std::int64_t vectors = 0;
  };

  template <class Cells, bool with_params> [[gnu::noinline]] static void vjp_row(const VjpStep& step) {
    const auto [launch, own, ranges, x, grad_y, after, later, before, grad_state, stride, grad_param, grad_x, stream,
                vectors] = step;
    const Cells cells(*launch, own);
    for (const Range& range : ranges) {
      const std::int64_t last = last_vector(range, vectors);
      for (std::int64_t v = first_vector(range); v < last; ++v) {
        prefetch(after + v * lanes);
        prefetch(later + v * lanes);
        const V in = load_row<T>(x + v * lanes), grad_out = load_row<T>(grad_y + v * lanes);
        V state[S], grad[S], params[P] = {};
        for (int s = 0; s < S; ++s) state[s] = load_row<T>(before + s * stride + v * lanes);
        for (int s = 0; s < S; ++s) grad[s] = load_row<T>(grad_state + s * stride + v * lanes);
        if constexpr (with_params)
          for (int j = 0; j < P; ++j) params[j] = grad_param[v * P + j];
        V grad_in;
        const auto& cell = cells[v];
        cell.vjp(&in, state, &grad_out, grad, &grad_in, params);
        for (int s = 0; s < S; ++s) store_row<T>(grad_state + s * stride + v * lanes, grad[s]);
        if constexpr (with_params)
          for (int j = 0; j < P; ++j) grad_param[v * P + j] = params[j];
        write(grad_x + v * lanes, grad_in, stream);
      }
    }
  }

  template <bool outputs> void choose_step() {
    if (launch_.form.spiking)
      step_ = !has_own_         ? step_row<CommonCell<NoSurrogate<V>, SpikingOptions>, outputs>
              : own_words_ == 1 ? step_row<OwnFirst<NoSurrogate<V>, SpikingOptions>, outputs>
                                : step_row<OwnCells<NoSurrogate<V>, SpikingOptions>, outputs>;
    else
      step_ = has_own_ ? step_row<OwnCells<AnySurrogate<V>, CellForm>, outputs>
                       : step_row<CommonCell<AnySurrogate<V>, CellForm>, outputs>;
  }

  template <class Surrogate, class Options, bool with_params> void use_for_vjps() {
    vjp_ = has_own_ ? vjp_row<OwnCells<Surrogate, Options>, with_params>
                    : vjp_row<CommonCell<Surrogate, Options>, with_params>;
  }

  template <bool with_params> void choose_vjp() {
    if (UsualOptions::serve(launch_.form)) {
      if (launch_.form.surrogate == SurrogateKind::sigmoid)
        return use_for_vjps<Sigmoid<V>, UsualOptions, with_params>();
      if (launch_.form.surrogate == SurrogateKind::atan) return use_for_vjps<Atan<V>, UsualOptions, with_params>();
    }
    use_for_vjps<AnySurrogate<V>, CellForm, with_params>();
  }

  Step step_of(Ranges ranges, const Stored* x, const Stored* after, const T* before, T* state, Stored* y) const {
    return {.launch = &launch_,
            .own = own_of(0),
            .ranges = ranges,
            .x = x,
            .after = after != nullptr ? after : x,
            .before = before,
            .state = state,
            .stride = tile_.padded,
            .y = y};
  }

  // Returns the same step from vector v on.
  Step from(Step step, std::int64_t v) const {
    step.own.rows += has_own_ ? v : 0;
    step.x += v * lanes;
    step.after += v * lanes;
    step.before += v * lanes;
    step.state += v * lanes;
    step.y += v * lanes;
    return step;
  }

  VjpStep from(VjpStep step, std::int64_t v) const {
    step.own.rows += has_own_ ? v : 0;
    step.x += v * lanes;
    step.grad_y += v * lanes;
    step.after += v * lanes;
    step.later += v * lanes;
    step.before += v * lanes;
    step.grad_state += v * lanes;
    step.grad_param += v * P;
    step.grad_x += v * lanes;
    return step;
  }

  static Stored*& result_of(Step& step) { return step.y; }
  static Stored*& result_of(VjpStep& step) { return step.grad_x; }

  // Runs the full vectors, in pieces of `staging_vectors` if they are staged.
  template <class AnyStep> void run_full(void (*kernel)(const AnyStep&), const AnyStep& step, Writing writing) const {
    if (writing != Writing::staged) {
      if (full_ > 0) kernel(step);
      return;
    }
    alignas(line_bytes) Stored staging[staging_vectors * lanes];
    for (std::int64_t v = 0; v < full_; v += staging_vectors) {
      AnyStep piece = from(step, v);
      piece.vectors = full_ - v < staging_vectors ? full_ - v : staging_vectors;
      Stored* target = result_of(piece);
      result_of(piece) = staging;
      kernel(piece);
      stream_bytes(target, staging, static_cast<std::size_t>(piece.vectors) * sizeof(Stored) * lanes);
    }
  }

  template <bool outputs> void run(Step step, Writing writing) const {
    step.stream = writing == Writing::streamed;
    step.vectors = full_;
    run_full(step_, step, writing);
    if (tail_ == 0) return;
    Stored x[lanes], y[lanes];
    Step last = from(step, full_);
    last.x = last.after = tail_of(step.x, x);
    last.y = y;
    last.stream = false;
    last.ranges = {&tail_range, 1};
    last.vectors = 1;
    step_(last);
    if constexpr (outputs) store_tail(step.y, y);
  }

  void run(VjpStep step, Writing writing) const {
    step.stream = writing == Writing::streamed;
    step.vectors = full_;
    run_full(vjp_, step, writing);
    if (tail_ == 0) return;
    Stored x[lanes], grad_y[lanes], grad_x[lanes];
    VjpStep last = from(step, full_);
    last.x = last.after = last.later = tail_of(step.x, x);
    last.grad_y = tail_of(step.grad_y, grad_y);
    last.grad_x = grad_x;
    last.stream = false;
    last.ranges = {&tail_range, 1};
    last.vectors = 1;
    vjp_(last);
    store_tail(step.grad_x, grad_x);
  }

  static constexpr Range tail_range{0, lanes};

  const Tile& tile_;
  const Launch& launch_;
  Scratch& scratch_;
  const std::int64_t full_;  // vectors whose lanes are all neurons
  const int tail_;           // the number of neurons after them
  const std::int64_t vectors_;
  bool has_own_ = false;  // true if a parameter is a tensor
  bool is_legal_ = true;  // true if its values are legal
  V* own_ = nullptr;      // [own words, vectors]
  std::uint32_t own_words_ = 0;
  void (*step_)(const Step&) = nullptr;
  void (*vjp_)(const VjpStep&) = nullptr;
  Stored *x_ = nullptr, *grad_y_ = nullptr;  // to which row_of writes
  Stored* grad_x_ = nullptr;                 // the target if the gradient is not wanted
  V* grad_param_ = nullptr;                  // [vectors, P]
};

namespace {

template <template <class, class> class Neuron> struct CellsOf {
  template <class F, class Options> using Law = Neuron<F, Options>;
  template <class F, class Surrogate, class Options>
  using Cell = SpikingCell<F, Neuron<F, Options>, Surrogate, Options>;
};

Loop predefined_loop(NeuronKind kind, DType type) {
  return with_kind(kind, [&]<NeuronKind each>() {
    return with_element(type, []<class Stored>(Stored) {
      return Multistep<CompiledRows<CellsOf<NeuronStruct<each>::template type>, Compute<Stored>, Stored>>::both_ways();
    });
  });
}

}  // namespace
}  // namespace CPU_CAPABILITY

Loop SPIKEFORGE_OF_SET(predefined_loop)(NeuronKind kind, DType type) { return predefined_loop(kind, type); }

}  // namespace spikeforge::cpu
