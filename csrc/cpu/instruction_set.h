// The names of functions that are compiled once for each instruction set.
#pragma once

// Declares a function for each instruction set: name_default, name_avx2 and name_avx512.
#define SPIKEFORGE_EACH_SET(result, name, arguments) \
  result name##_default arguments;                   \
  result name##_avx2 arguments;                      \
  result name##_avx512 arguments

// The name of such a function for the instruction set of the compilation.
#if defined(CPU_CAPABILITY_AVX512)
#define SPIKEFORGE_OF_SET(name) name##_avx512
#elif defined(CPU_CAPABILITY_AVX2)
#define SPIKEFORGE_OF_SET(name) name##_avx2
#else
#define SPIKEFORGE_OF_SET(name) name##_default
#endif
