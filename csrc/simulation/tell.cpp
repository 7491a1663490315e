#include <spikeforge/simulation/internal/tell.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace spikeforge::simulation {
namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

at::Tensor padded(const at::Tensor& t, std::int64_t length) {
  std::vector<std::int64_t> sizes = t.sizes().vec();
  sizes.back() = length;
  at::Tensor all = at::zeros(sizes, t.options());
  all.narrow(-1, 0, t.size(-1)).copy_(t);
  return all;
}

// Of all ranks, one under the other.
at::Tensor gathered_under(Ranks& ranks, const at::Tensor& own, const std::string& what) {
  std::vector<std::int64_t> sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), ranks.size());
  at::Tensor all = at::empty(sizes, own.options());
  all_gather(ranks, own, all, what);
  return all;
}

}  // namespace

void all_gather(Ranks& ranks, const at::Tensor& own, const at::Tensor& all, const std::string& what) {
  try {
    ranks.all_gather(own, all);
  } catch (const std::exception& error) {
    TORCH_CHECK(false, "Network: rank ", ranks.rank(), " of ", ranks.size(), " did not get ", what,
                " of all others, one of which has failed, is late or does something else: ", first_line(error.what()));
  }
}

std::vector<std::vector<std::int64_t>> told_by_all(Ranks& ranks, const std::vector<std::int64_t>& own,
                                                   c10::Device device, const std::string& what) {
  const at::Tensor all = gathered_under(ranks, at::tensor(own, at::kLong).to(device), what).cpu();
  std::vector<std::vector<std::int64_t>> told;
  for (std::int64_t r = 0; r < ranks.size(); ++r) {
    const auto* const begin = all.const_data_ptr<std::int64_t>() + r * std::ssize(own);
    told.emplace_back(begin, begin + own.size());
  }
  return told;
}

at::Tensor joined(Ranks& ranks, const at::Tensor& own, const at::Tensor& places, std::int64_t whole,
                  const std::string& what) {
  const auto sizes = told_by_all(ranks, {own.size(-1)}, own.device(), what);
  const std::int64_t most = (*std::ranges::max_element(sizes))[0];
  std::vector<std::int64_t> shape = own.sizes().vec();
  shape.back() = whole;
  at::Tensor result = at::zeros(shape, own.options());
  if (most == 0 || result.numel() == 0) return result;
  const at::Tensor all = gathered_under(ranks, padded(own, most), what);
  const at::Tensor all_places = gathered_under(ranks, padded(places.to(own.device()), most), what);
  for (std::int64_t r = 0; r < ranks.size(); ++r) {
    const std::int64_t count = sizes[static_cast<std::size_t>(r)][0];
    result.index_copy_(-1, all_places[r].narrow(0, 0, count), all[r].narrow(-1, 0, count));
  }
  return result;
}

}  // namespace spikeforge::simulation
