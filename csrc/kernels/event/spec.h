// Kernels of sparse products: what decides their code, the source they are printed as, and their arguments.
#pragma once

#include <spikeforge/kernels/event/product.h>
#include <spikeforge/jit/kernel_cache.h>

#include <cstdint>
#include <string>

namespace spikeforge::jit {

enum class EventKernel : std::uint8_t {
  pack,
  gather_bits,
  gather,
  limits,
  scatter,
  finish,
  weight_gradient,
  plasticity
};

enum class EventSums : std::uint8_t { counts, floats, fixed };

// The template arguments of Spec in cuda/event.cuh, where they are explained.
struct EventSpec {
  EventKernel kernel{};
  DType weight{};
  event::EntryType entry{};
  event::Values values{};
  bool shared = false;
  std::uint8_t indptr_bytes = 0;
  EventSums sums{};
  std::uint8_t lanes = 32;
  std::uint8_t columns = 1;
  std::uint8_t unroll = 4;
  bool in_shared = false;
  bool transpose = false;

  bool operator==(const EventSpec&) const = default;
};

// What a kernel is compiled for: threads of a block, and blocks that a multiprocessor holds at once.
struct Bounds {
  int threads, blocks;
};
Bounds bounds(const EventSpec& spec);

// The instance of Spec.
std::string print_type(const EventSpec& spec);
KernelSource print_source(const EventSpec& spec);

// A kernel that is one call, `body`(args), of spikeforge::event.
struct EventEntry {
  const char* header;
  std::string name;
  Bounds bounds;
  const char* arguments;  // the struct
  std::string body;       // in which Kernel is the Spec
};
KernelSource print_entry(const EventEntry& entry, const EventSpec& spec);

// ProductArgs in cuda/event.cuh.
struct EventArguments {
  const void* indices = nullptr;
  const void* indptr = nullptr;
  std::int64_t width = 0, rows = 0, cols = 0, connections = 0;
  const void* weights = nullptr;
  const void* x = nullptr;
  void* y = nullptr;
  void* sums = nullptr;
  void* infinities = nullptr;
  void* limits = nullptr;
  void* bits = nullptr;
  void* meeting = nullptr;
  void* tasks = nullptr;
  const void* grad = nullptr;
  const void* slots = nullptr;
  std::int64_t n = 0, words = 0, batches = 0, long_row = 0, chunk = 0, rows_at_once = 0, private_from = 0;
  double least = 0, most = 0;
};

constexpr std::int64_t meeting_bytes = 16;  // of Meeting there
constexpr std::int64_t task_bytes = 24;     // of Task

}  // namespace spikeforge::jit
