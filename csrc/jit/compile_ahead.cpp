#include "csrc/jit/compile_ahead.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <signal.h>
#include <unistd.h>

namespace spikeforge::jit {
namespace {

struct Task {
  KernelCache* cache;
  KernelSource source;
  std::string arch;
};

// Threads start with the first task, as many as there are processors beside the caller's, and at most four.
class Workers {
 public:
  void add(Task task) {
    const std::scoped_lock lock(mutex_);
    if (is_over_) return;
    tasks_.push_back(std::move(task));
    if (waiting_ < tasks_.size() && threads_.size() < most_threads()) threads_.emplace_back([this] { work(); });
    changed_.notify_one();
  }

  // Waits for what is compiled at this moment, which gives up soon.
  void end() {
    {
      const std::scoped_lock lock(mutex_);
      is_over_ = true;
      tasks_.clear();
    }
    changed_.notify_all();
    Nvrtc::give_up(true);
    for (std::thread& thread : threads_) thread.join();
    Nvrtc::give_up(false);
  }

  static std::size_t most_threads() {
    static const unsigned processors = std::thread::hardware_concurrency();
    return processors <= 1 ? 0 : std::min(processors - 1, 4U);
  }

 private:
  void work() {
    // Signals are for the program's own threads.
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::unique_lock lock(mutex_);
    while (true) {
      ++waiting_;
      changed_.wait(lock, [this] { return is_over_ || !tasks_.empty(); });
      --waiting_;
      if (is_over_) return;
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      try {
        task.cache->image(task.source, task.arch);
      } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the call that needs the kernel reports it
      }
      lock.lock();
    }
  }

  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::vector<std::thread> threads_;
  std::size_t waiting_ = 0;
  bool is_over_ = false;
};

// A forked child has no threads, and its copy of their mutex may be locked.
bool has_workers() {
  static const pid_t process = ::getpid();
  return process == ::getpid();
}

// Ends the threads.
class Ending {
 public:
  explicit Ending(Workers& workers) : workers_(workers) {}
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;
  ~Ending() {
    if (has_workers()) workers_.end();
  }

 private:
  Workers& workers_;
};

Workers& workers() {
  static Workers& workers = *new Workers;
  return workers;
}

// The compiler creates objects while it compiles, and the process's end destroys these before any older ones. Data of
// the main thread is destroyed before all of them, so only it can arrange for the threads' end.
bool end_is_arranged() {
  static std::atomic<bool> is_arranged = false;
  if (::gettid() == ::getpid()) {
    thread_local const Ending ending(workers());
    is_arranged = true;
  }
  return is_arranged;
}

}  // namespace

void compile_ahead(KernelCache& cache, KernelSource source, std::string arch) {
  if (Workers::most_threads() == 0 || !has_workers() || !cache.can_compile() || !end_is_arranged()) return;
  try {
    workers().add({&cache, std::move(source), std::move(arch)});
  } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): no thread is to be had, and none is needed
  }
}

}  // namespace spikeforge::jit
