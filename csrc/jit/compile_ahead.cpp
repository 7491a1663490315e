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

// Background threads, started with the first tasks: at most four, and one processor remains for the caller.
class Workers {
 public:
  void add(Task task) {
    const std::scoped_lock lock(mutex_);
    if (is_over_) return;
    tasks_.push_back(std::move(task));
    if (waiting_ < tasks_.size() && threads_.size() < most_threads()) threads_.emplace_back([this] { work(); });
    changed_.notify_one();
  }

  // Drops pending tasks and joins the threads. Compilations in progress stop after the current pass.
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
    // Signals are delivered only to the threads of the program.
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

  std::mutex mutex_;  // guards all members below
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::vector<std::thread> threads_;
  std::size_t waiting_ = 0;
  bool is_over_ = false;
};

// Returns false in a forked child, which has no threads, and whose copy of the mutex may be locked.
bool has_workers() {
  static const pid_t process = ::getpid();
  return process == ::getpid();
}

// Ends the threads in its destructor.
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

// Arranges that the threads end before static objects are destroyed; returns false if that is not possible. The
// compiler creates static objects while it compiles, and at exit these are destroyed before older ones. Thread-local
// data of the main thread is destroyed before all of them, so only the main thread can arrange the end.
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
  } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): a thread is not available, and not required
  }
}

}  // namespace spikeforge::jit
