// A surrogate chosen at run time, one indirect call a vector. Only the most usual ones have kernels of their own.
#pragma once

#include "csrc/cpu/vec.h"
#include "csrc/kernels/multistep/launch.h"
#include "csrc/neuron/surrogate.h"

namespace spikeforge::cpu {
inline namespace CPU_CAPABILITY {

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

}  // namespace CPU_CAPABILITY
}  // namespace spikeforge::cpu
