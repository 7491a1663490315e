#include "csrc/nn/monitor.h"
#include "csrc/nn/npy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <stdexcept>

#include <sys/stat.h>

namespace spikeforge::nn {
namespace {

// Does not use std::filesystem, because libtorch.so exports an older copy of it.
void make_folders(const std::string& path) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string folder = path.substr(0, end);
    if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST)
      throw std::runtime_error("cannot make the folder " + folder + ": " + std::strerror(errno));
    if (end == std::string::npos) return;
  }
}

}  // namespace

void Recording::expect(std::int64_t steps) { capacity_ = std::max(capacity_, length_ + steps); }

void Recording::add(const at::Tensor& sequence) {
  const at::NoGradGuard no_grad;
  const std::int64_t steps = sequence.size(0);
  if (length_ + steps > capacity_) capacity_ = std::max(length_ + steps, 2 * length_);
  if (!rows_.defined() || rows_.size(0) < capacity_) {
    std::vector<std::int64_t> shape = sequence.sizes().vec();
    shape[0] = capacity_;
    const at::Tensor longer = at::empty(shape, sequence.options());
    if (length_ > 0) longer.narrow(0, 0, length_).copy_(rows_.narrow(0, 0, length_));
    rows_ = longer;
  }
  TORCH_CHECK_VALUE(rows_.sizes().slice(1) == sequence.sizes().slice(1), "a recording of values of shape ",
                    rows_.sizes().slice(1), " cannot be continued with values of shape ", sequence.sizes().slice(1));
  rows_.narrow(0, length_, steps).copy_(sequence);
  length_ += steps;
}

at::Tensor Recording::rows() const { return rows_.defined() ? rows_.narrow(0, 0, length_) : rows_; }

Monitor::Monitor(Composite network, const Names& names) : network_(std::move(network)), names_(names) {
  for (const std::string& name : names_) recordings_.push_back(network_->record(name));
}

at::Tensor Monitor::operator[](const std::string& name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  TORCH_CHECK_VALUE(found != names_.end(), "Monitor: '", name, "' is not recorded, but ", c10::Join(", ", names_));
  return recordings_[found - names_.begin()]->rows();
}

void Monitor::write_npy(const std::string& folder) const {
  make_folders(folder);
  for (const std::string& name : names_)
    if (const at::Tensor rows = (*this)[name]; rows.defined()) nn::write_npy(c10::str(folder, "/", name, ".npy"), rows);
}

void Monitor::write_csv(const std::string& file) const {
  std::vector<at::Tensor> columns;  // [steps, elements] for each name
  std::ofstream out(file);
  out.precision(std::numeric_limits<double>::max_digits10);
  out << "step";
  for (const std::string& name : names_) {
    const at::Tensor rows = (*this)[name];
    if (!rows.defined()) continue;
    columns.push_back(rows.reshape({rows.size(0), rows.numel() / std::max<std::int64_t>(rows.size(0), 1)})
                          .to(at::kCPU, at::kDouble)
                          .contiguous());
    TORCH_CHECK_VALUE(columns.back().size(0) == columns[0].size(0), "Monitor: '", name, "' has ",
                      columns.back().size(0), " steps, but '", names_[0], "' has ", columns[0].size(0));
    for (std::int64_t i = 0; i < columns.back().size(1); ++i) out << ',' << name << '[' << i << ']';
  }
  out << '\n';
  const std::int64_t steps = columns.empty() ? 0 : columns[0].size(0);
  for (std::int64_t t = 0; t < steps; ++t) {
    out << t;
    for (const at::Tensor& column : columns) {
      const double* row = column.const_data_ptr<double>() + t * column.size(1);
      for (std::int64_t i = 0; i < column.size(1); ++i) out << ',' << row[i];
    }
    out << '\n';
  }
  out.flush();
  if (!out) throw std::runtime_error("cannot write " + file + ": " + std::strerror(errno));
}

}  // namespace spikeforge::nn
