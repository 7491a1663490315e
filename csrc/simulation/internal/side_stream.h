// A second stream of a GPU, beside the current one.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace spikeforge::simulation {

class SideStream {
 public:
  explicit SideStream(c10::Device device);
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;
  ~SideStream();

  // The work of `launches` follows earlier work of the current stream, and not later work.
  void run(const std::function<void()>& launches);
  // Later work of the current stream follows it.
  void join();

 private:
  struct Streams;
  std::unique_ptr<Streams> streams_;
};

}  // namespace spikeforge::simulation
