#include "csrc/torchscript/internal/modules.h"
#include "csrc/torchscript/torchscript.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/padding.h>
#include <torch/nn/modules/pooling.h>

#include <map>
#include <mutex>

namespace spikeforge {
namespace script {
namespace {

namespace nn = torch::nn;

template <std::size_t D> std::string list(const torch::ExpandingArray<D>& values) {
  return script::list(at::IntArrayRef(*values));
}

// Returns the script of a module that is a single expression of x.
Script expression(const std::string& name, const std::string& value) {
  Script script{.name = name, .forward = "return " + value};
  return script;
}

std::string bias_of(const at::Tensor& bias) { return bias.defined() ? "self.bias" : "None"; }

// Computes torch::nn::functional::linear, which differs from at::linear.
Script linear(const nn::LinearImpl& m) {
  std::string forward = "y = torch.matmul(x, torch.t(self.weight))\n";
  if (m.bias.defined())
    forward =
        "if x.dim() == 2:\n  y = torch.addmm(self.bias, x, torch.t(self.weight))\n"
        "else:\n  y = torch.matmul(x, torch.t(self.weight)) + self.bias\n";
  Script script{.name = "Linear", .forward = forward + "return y"};
  return script;
}

// Returns the padding as numbers if it is equal on both sides, because optimize_for_inference does not accept strings.
template <std::size_t D> std::string padding_of(const nn::detail::ConvNdOptions<D>& options) {
  const auto& padding = options.padding();
  if (std::holds_alternative<torch::ExpandingArray<D>>(padding))
    return list(std::get<torch::ExpandingArray<D>>(padding));
  std::vector<std::int64_t> sides(D, 0);
  if (std::holds_alternative<torch::enumtype::kValid>(padding)) return script::list(sides);
  for (std::size_t d = 0; d < D; ++d) {
    const std::int64_t both = (*options.dilation())[d] * ((*options.kernel_size())[d] - 1);
    if (both % 2 != 0) return "\"same\"";
    sides[d] = both / 2;
  }
  return script::list(sides);
}

template <std::size_t D, class Conv> Script conv(const Conv& m) {
  TORCH_CHECK_NOT_IMPLEMENTED(std::holds_alternative<torch::enumtype::kZeros>(m.options.padding_mode()),
                              "only zeros as padding_mode can be written");
  const std::string d = std::to_string(D);
  return expression("Conv" + d + "d", "torch.conv" + d + "d(x, self.weight, " + bias_of(m.bias) + ", " +
                                          list(m.options.stride()) + ", " + padding_of<D>(m.options) + ", " +
                                          list(m.options.dilation()) + ", " + number(m.options.groups()) + ")");
}

template <std::size_t D, class BatchNorm> Script batch_norm(const BatchNorm& m) {
  const bool tracks = m.options.track_running_stats(), affine = m.options.affine();
  const std::string dims = D == 1 ? "x.dim() == 2 or x.dim() == 3" : "x.dim() == 4";
  const std::string per_channel = "x.numel() // x.size(1)";
  std::string forward = "assert " + dims + ", \"BatchNorm" + std::to_string(D) + "d: wrong number of dimensions\"\n";
  forward += std::string("if ") + (tracks ? "self.training" : "True") + ":\n  assert " + per_channel +
             " != 1, \"BatchNorm: expected more than 1 value per channel when training\"\n";
  std::string momentum = m.options.momentum() ? number(*m.options.momentum()) : "0.0";
  if (tracks) {
    if (!m.options.momentum()) {
      forward += "momentum = 0.0\n";
      momentum = "momentum";
    }
    forward += "if self.training:\n  self.num_batches_tracked.add_(1)\n";
    if (!m.options.momentum()) forward += "  momentum = 1.0 / float(self.num_batches_tracked)\n";
  }
  const std::string weights = affine ? "self.weight, self.bias, " : "None, None, ";
  const std::string statistics = tracks ? "self.running_mean, self.running_var, self.training, " : "None, None, True, ";
  forward +=
      "return torch.batch_norm(x, " + weights + statistics + momentum + ", " + number(m.options.eps()) + ", True)";
  Script script{.name = "BatchNorm" + std::to_string(D) + "d", .forward = forward};
  return script;
}

template <std::size_t D, class Pool> Script max_pool(const Pool& m) {
  const auto& o = m.options;
  const std::string d = std::to_string(D);
  return expression("MaxPool" + d + "d", "torch.max_pool" + d + "d(x, " + list(o.kernel_size()) + ", " +
                                             list(o.stride()) + ", " + list(o.padding()) + ", " + list(o.dilation()) +
                                             ", " + boolean(o.ceil_mode()) + ")");
}

template <std::size_t D, class Pool> Script avg_pool(const Pool& m) {
  const auto& o = m.options;
  const std::string d = std::to_string(D);
  std::string divisor;
  if constexpr (D == 2) divisor = o.divisor_override() ? ", " + number(*o.divisor_override()) : ", None";
  return expression("AvgPool" + d + "d", "torch.avg_pool" + d + "d(x, " + list(o.kernel_size()) + ", " +
                                             list(o.stride()) + ", " + list(o.padding()) + ", " +
                                             boolean(o.ceil_mode()) + ", " + boolean(o.count_include_pad()) + divisor +
                                             ")");
}

Script adaptive_avg_pool1d(const nn::AdaptiveAvgPool1dImpl& m) {
  return expression("AdaptiveAvgPool1d", "torch.adaptive_avg_pool1d(x, " + list(m.options.output_size()) + ")");
}

Script adaptive_avg_pool2d(const nn::AdaptiveAvgPool2dImpl& m) {
  const auto& sizes = *m.options.output_size();
  std::string size;
  for (std::size_t i = 0; i < 2; ++i)
    size +=
        (i ? ", " : "") + (sizes[i] ? number(*sizes[i]) : "x.size(" + std::to_string(static_cast<int>(i) - 2) + ")");
  return expression("AdaptiveAvgPool2d", "torch.adaptive_avg_pool2d(x, [" + size + "])");
}

template <std::size_t D, class Pad> Script constant_pad(const Pad& m) {
  return expression("ConstantPad" + std::to_string(D) + "d",
                    "torch.constant_pad_nd(x, " + list(m.options.padding()) + ", " + number(m.options.value()) + ")");
}

Script flatten(const nn::FlattenImpl& m) {
  return expression("Flatten",
                    "torch.flatten(x, " + number(m.options.start_dim()) + ", " + number(m.options.end_dim()) + ")");
}

Script dropout(const nn::DropoutImpl& m) {
  return expression("Dropout", "torch.dropout(x, " + number(m.options.p()) + ", self.training)");
}

Script sequential(const nn::SequentialImpl& m) {
  std::string forward;
  for (const auto& item : m.named_children()) forward += "x = " + member(item.key()) + ".forward(x)\n";
  Script script{.name = "Sequential", .forward = forward + "return x"};
  return script;
}

template <class M> Known function(const std::string& name, const std::string& call) {
  Script script = expression(name, call);
  return {[script](const nn::Module&) { return script; },
          [](nn::Module& m, const at::Tensor& x) { return dynamic_cast<M&>(m).forward(x); }};
}

template <class M> Known known(Script (*script)(const M&)) {
  return {[script](const nn::Module& m) { return script(dynamic_cast<const M&>(m)); },
          [](nn::Module& m, const at::Tensor& x) -> at::Tensor { return dynamic_cast<M&>(m).forward(x); }};
}

using Table = std::map<std::type_index, Known>;

Table& table() {
  static Table all = {
      {typeid(nn::LinearImpl), known(linear)},
      {typeid(nn::Conv1dImpl), known(conv<1, nn::Conv1dImpl>)},
      {typeid(nn::Conv2dImpl), known(conv<2, nn::Conv2dImpl>)},
      {typeid(nn::BatchNorm1dImpl), known(batch_norm<1, nn::BatchNorm1dImpl>)},
      {typeid(nn::BatchNorm2dImpl), known(batch_norm<2, nn::BatchNorm2dImpl>)},
      {typeid(nn::MaxPool1dImpl), known(max_pool<1, nn::MaxPool1dImpl>)},
      {typeid(nn::MaxPool2dImpl), known(max_pool<2, nn::MaxPool2dImpl>)},
      {typeid(nn::AvgPool1dImpl), known(avg_pool<1, nn::AvgPool1dImpl>)},
      {typeid(nn::AvgPool2dImpl), known(avg_pool<2, nn::AvgPool2dImpl>)},
      {typeid(nn::AdaptiveAvgPool1dImpl), known(adaptive_avg_pool1d)},
      {typeid(nn::AdaptiveAvgPool2dImpl), known(adaptive_avg_pool2d)},
      {typeid(nn::ConstantPad1dImpl), known(constant_pad<1, nn::ConstantPad1dImpl>)},
      {typeid(nn::ConstantPad2dImpl), known(constant_pad<2, nn::ConstantPad2dImpl>)},
      {typeid(nn::FlattenImpl), known(flatten)},
      {typeid(nn::DropoutImpl), known(dropout)},
      {typeid(nn::SequentialImpl), known(sequential)},
      {typeid(nn::IdentityImpl), function<nn::IdentityImpl>("Identity", "x")},
      {typeid(nn::ReLUImpl), function<nn::ReLUImpl>("ReLU", "torch.relu(x)")},
      {typeid(nn::SigmoidImpl), function<nn::SigmoidImpl>("Sigmoid", "torch.sigmoid(x)")},
      {typeid(nn::TanhImpl), function<nn::TanhImpl>("Tanh", "torch.tanh(x)")},
  };
  return all;
}

std::mutex& table_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

const Known* find(const torch::nn::Module& module) {
  const std::lock_guard lock(table_mutex());
  const auto found = table().find(typeid(module));
  return found == table().end() ? nullptr : &found->second;
}

std::string class_name(const torch::nn::Module& module) {
  std::string name = module.name();
  if (const std::size_t end = name.find('<'); end != std::string::npos) name.resize(end);
  name.erase(0, name.rfind(':') + 1);
  return name.ends_with("Impl") ? name.substr(0, name.size() - 4) : name;
}

}  // namespace script

void script_as(std::type_index type, std::function<Script(const torch::nn::Module&)> script,
               std::function<at::Tensor(torch::nn::Module&, const at::Tensor&)> call) {
  const std::lock_guard lock(script::table_mutex());
  script::table().insert_or_assign(type, script::Known{std::move(script), std::move(call)});
}

}  // namespace spikeforge
