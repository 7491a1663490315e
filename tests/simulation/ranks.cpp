// Networks shared by several ranks, which are threads here, give the same spikes as one rank.
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

// Runs f on each of this number of ranks.
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
    if (!same(gathered(made.network, mine), expected)) said += "spikes or states; ";
    if (mine.steps.numel() == expected.steps.numel()) said += "one rank has all neurons; ";
    const std::vector<at::Tensor> now = made.network.state();
    for (std::size_t i = 0; i < state.size(); ++i)
      if (!at::equal(now[i], state[i])) said += "state " + std::to_string(i) + "; ";
    TestNetwork other = shared_network(own);
    other.network.load_state(state);
    if (!same(gathered(other.network, simulate(other.network, 20)), later)) said += "what follows; ";
  });
  for (const std::string& said : wrong) CHECK(said.empty());
}

}  // namespace spikeforge::test
