// Networks that ranks share, which are threads here: the spikes of one.
#include "ops/kernel_pack.h"

#include <ATen/ops/equal.h>

#include <barrier>
#include <functional>
#include <memory>
#include <thread>

#include "tests/catch.h"
#include "tests/simulation/neurons.h"

namespace spikeforge::test {
namespace {

// Threads that share memory.
struct Meeting {
  explicit Meeting(std::int64_t ranks) : barrier(ranks), told(static_cast<std::size_t>(ranks)) {}
  std::barrier<> barrier;
  std::vector<at::Tensor> told;
};

class Thread : public Ranks {
 public:
  Thread(std::shared_ptr<Meeting> meeting, std::int64_t rank) : meeting_(std::move(meeting)), rank_(rank) {}
  std::int64_t rank() const override { return rank_; }
  std::int64_t size() const override { return std::ssize(meeting_->told); }
  void all_gather(const at::Tensor& own, const at::Tensor& all) override {
    meeting_->told[static_cast<std::size_t>(rank_)] = own;
    meeting_->barrier.arrive_and_wait();
    for (std::int64_t r = 0; r < size(); ++r) all[r].copy_(meeting_->told[static_cast<std::size_t>(r)].view_as(all[r]));
    meeting_->barrier.arrive_and_wait();
  }

 private:
  const std::shared_ptr<Meeting> meeting_;
  const std::int64_t rank_;
};

// The work of each of so many ranks.
void on_ranks(std::int64_t ranks, const std::function<void(const std::shared_ptr<Ranks>&)>& f) {
  const auto meeting = std::make_shared<Meeting>(ranks);
  std::vector<std::thread> threads;
  for (std::int64_t r = 0; r < ranks; ++r) threads.emplace_back([&, r] { f(std::make_shared<Thread>(meeting, r)); });
  for (std::thread& thread : threads) thread.join();
}

TestNetwork shared_network(const std::shared_ptr<Ranks>& ranks) {
  return test_network(true, {.seed = 3, .dtype = at::kDouble, .ranks = ranks});
}

SimulateOptions options_of(const TestNetwork& made) {
  return {.states = {{made.a, "v", {0, 59, 30}}, {made.b, "v", {3}}, {made.c, "v", {14, 0}}}};
}

bool are_same(const Recording& one, const Recording& other) {
  bool same = at::equal(one.steps, other.steps) && at::equal(one.neurons, other.neurons);
  for (std::size_t i = 0; i < one.states.size(); ++i) same = same && at::equal(one.states[i], other.states[i]);
  return same;
}

}  // namespace

TEST_CASE("ranks that share a network fire as one does, and go on from each other's states") {
  TestNetwork alone = shared_network(nullptr);
  const Recording expected = simulate(alone.network, 70, options_of(alone));
  const std::vector<at::Tensor> state = alone.network.state();
  const Recording later = simulate(alone.network, 20);
  REQUIRE(expected.steps.numel() > 100);
  const std::int64_t ranks = GENERATE(2, 3, 7);
  std::vector<std::string> wrong(static_cast<std::size_t>(ranks));
  on_ranks(ranks, [&](const std::shared_ptr<Ranks>& own) {
    TestNetwork made = shared_network(own);
    std::string& said = wrong[static_cast<std::size_t>(own->rank())];
    const Recording mine = simulate(made.network, 70, options_of(made));
    if (!are_same(gathered(made.network, mine), expected)) said += "spikes or states; ";
    if (mine.steps.numel() == expected.steps.numel()) said += "one rank has all neurons; ";
    const std::vector<at::Tensor> now = made.network.state();
    for (std::size_t i = 0; i < state.size(); ++i)
      if (!at::equal(now[i], state[i])) said += "state " + std::to_string(i) + "; ";
    TestNetwork other = shared_network(own);
    other.network.load_state(state);
    if (!are_same(gathered(other.network, simulate(other.network, 20)), later)) said += "what follows; ";
  });
  for (const std::string& said : wrong) CHECK(said.empty());
}

TEST_CASE("ranks that step by operators give the bits of those that do not") {
  TestNetwork alone = shared_network(nullptr);
  const Recording expected = simulate(alone.network, 40, options_of(alone));
  bool same[2] = {};
  on_ranks(2, [&](const std::shared_ptr<Ranks>& own) {
    TestNetwork made = shared_network(own);
    record_kernels({"sm_90"});
    same[own->rank()] = are_same(gathered(made.network, simulate(made.network, 40, options_of(made))), expected);
  });
  CHECK(same[0]);
  CHECK(same[1]);
}

TEST_CASE("connections of ranks are those of one, in the network's numbers") {
  const Connectivity whole = shared_network(nullptr).network.connectivity();
  CHECK(at::equal(whole.indices, shared_network(nullptr).network.build().indices));
  at::Tensor counted[2];
  on_ranks(2, [&](const std::shared_ptr<Ranks>& own) {
    const Connectivity mine = shared_network(own).network.connectivity();
    counted[own->rank()] = mine.indptr.diff();
  });
  CHECK(at::equal(counted[0].add(counted[1]), whole.indptr.diff()));
}

TEST_CASE("ranks that make different calls all say so, and step nothing") {
  TestNetwork alone = shared_network(nullptr);
  simulate(alone.network, 10);
  const Recording expected = simulate(alone.network, 20);
  std::vector<std::string> said[2];
  bool goes_on[2] = {};
  on_ranks(2, [&](const std::shared_ptr<Ranks>& own) {
    const std::int64_t rank = own->rank();
    TestNetwork made = shared_network(own), other = shared_network(own);
    other.network.build();
    const Recording first = simulate(made.network, 10);
    const auto call = [&](const std::function<void()>& of_first, const std::function<void()>& of_second) {
      try {
        rank == 0 ? of_first() : of_second();
        said[rank].emplace_back("nothing");
      } catch (const c10::Error& error) {
        said[rank].emplace_back(error.what_without_backtrace());
      }
    };
    call([&] { simulate(made.network, 5); }, [&] { simulate(made.network, 6); });
    call([&] { simulate(made.network, 5); }, [&] { simulate(other.network, 5); });
    call([&] { simulate(made.network, 5); }, [&] { gathered(made.network, first); });
    goes_on[rank] = are_same(gathered(made.network, simulate(made.network, 20)), expected);
  });
  CHECK(said[0] == said[1]);
  CHECK(said[0] ==
        std::vector<std::string>{
            "Network: rank 1 of 2 simulates steps 10 to 15, but rank 0 steps 10 to 14: all ranks must make "
            "the same calls",
            "Network: rank 1 of 2 simulates, but of another network than rank 0: all ranks must make the "
            "same calls, in the same order",
            "Network: rank 1 of 2 gathers spikes that it recorded, but rank 0 simulates: all ranks must make "
            "the same calls"});
  CHECK(goes_on[0]);
  CHECK(goes_on[1]);
}

}  // namespace spikeforge::test
