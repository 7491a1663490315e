#include "csrc/custom_op/custom_op.h"
#include "csrc/base/fork_safe_mutex.h"
#include "csrc/custom_op/internal/call_of_user.h"
#include "csrc/custom_op/internal/operator.h"

#include <torch/library.h>

#include <cstdio>
#include <mutex>
#include <set>

namespace spikeforge {
namespace custom_op {

// A kernel for the dispatcher, which keeps the operator.
template <void (*kernel)(const DispatchedCall&)> class DispatchKernel final : public c10::OperatorKernel {
 public:
  explicit DispatchKernel(std::shared_ptr<const Operator> op) : op_(std::move(op)) {}
  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    kernel({op_, handle, keys, *stack});
  }

 private:
  const std::shared_ptr<const Operator> op_;
};

class Registration {
 public:
  explicit Registration(std::shared_ptr<const Operator> custom)
      : op(std::move(custom)), library_(torch::Library::FRAGMENT, name_space(), std::nullopt, __FILE__, __LINE__) {
    // An exception in this constructor destroys library_, and thereby everything registered so far.
    library_.def(c10::FunctionSchema(op->schema), {at::Tag::pt2_compliant_tag});
    add<call_on_cpu>(c10::DispatchKey::CPU);
    add<call_on_cuda>(c10::DispatchKey::CUDA);
    add<call_on_meta>(c10::DispatchKey::Meta);
    add<call_with_autograd>(c10::DispatchKey::Autograd);
    add<call_batched>(c10::DispatchKey::FuncTorchBatched);
  }

  const std::shared_ptr<const Operator> op;

 private:
  std::string name_space() const { return op->schema.name().substr(0, op->schema.name().find("::")); }
  template <void (*kernel)(const DispatchedCall&)> void add(c10::DispatchKey key) {
    const std::string local_name = op->name.substr(op->name.find("::") + 2);
    auto function = torch::CppFunction::makeFromBoxedFunctor(std::make_unique<DispatchKernel<kernel>>(op));
    library_.impl(local_name.c_str(), torch::dispatch(key, std::move(function)));
  }

  torch::Library library_;
};

namespace {

// Keeps the dispatcher's entry of an operator during the lifetime of the process. Operator handles are pointers to it,
// and Python caches the handle of torch.ops.mine.scaled: a call through an old handle raises an error if the operator
// was removed, and calls the new operator if it was registered again.
void keep_entry(const c10::OperatorName& name) {
  static std::set<std::string>& kept = *new std::set<std::string>();
  if (kept.insert(name.name + "." + name.overload_name).second)
    new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerName(name));
}

ForkSafeMutex& registering() {
  static ForkSafeMutex& mutex = *new ForkSafeMutex();
  return mutex;
}

// Checks the types of arguments, and adds defaults.
torch::jit::Stack stack_of(const Operator& op, std::vector<c10::IValue> arguments) {
  const auto& described = op.schema.arguments();
  std::size_t needed = described.size();
  while (needed > 0 && described[needed - 1].default_value().has_value()) --needed;
  TORCH_CHECK_VALUE(arguments.size() >= needed && arguments.size() <= described.size(), op.name, ": takes ",
                    needed == described.size() ? "" : std::to_string(needed) + " to ", described.size(),
                    " arguments, but was given ", arguments.size(), "; its schema is ", op.schema);
  op.schema.checkAndNormalizeInputs(arguments);
  return arguments;
}

}  // namespace

AtLoad::AtLoad(std::vector<CustomOp> (*operators)()) {
  try {
    const std::vector<CustomOp> all = call_of_user("SPIKEFORGE_OPERATORS", "its body", operators);
    for (const CustomOp& op : all) {
      try {
        registered_.push_back(op.registered());
      } catch (const std::exception& error) {
        std::fprintf(stderr, "spikeforge: the operator \"%s\" was not registered: %s\n", op.schema().c_str(),
                     error.what());
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "spikeforge: operators were not registered: %s\n", error.what());
  }
}

}  // namespace custom_op

using namespace custom_op;

RegisteredOp CustomOp::registered() const {
  auto op = std::make_shared<const Operator>(definition_);
  const std::scoped_lock lock(registering());
  const c10::OperatorName name = op->schema.operator_name();
  TORCH_CHECK_VALUE(
      !c10::Dispatcher::singleton().findSchema(name).has_value(), op->name,
      ": an operator of this name is registered already; use another name, or destroy the handle of the other "
      "operator first");
  auto registration = std::make_unique<Registration>(std::move(op));
  keep_entry(name);
  return RegisteredOp(std::move(registration));
}

RegisteredOp::RegisteredOp(std::unique_ptr<Registration> registration) : registration_(std::move(registration)) {}
RegisteredOp::RegisteredOp(RegisteredOp&&) noexcept = default;
RegisteredOp& RegisteredOp::operator=(RegisteredOp&&) noexcept = default;
RegisteredOp::~RegisteredOp() = default;

const std::string& RegisteredOp::name() const { return registration_->op->name; }

std::vector<at::Tensor> RegisteredOp::operator()(std::vector<c10::IValue> arguments) const {
  const Operator& op = *registration_->op;
  return op.call(stack_of(op, std::move(arguments)));
}

void RegisteredOp::compile(const std::string& arch, std::vector<c10::IValue> arguments) const {
  const Operator& op = *registration_->op;
  op.compile(arch, stack_of(op, std::move(arguments)));
}

}  // namespace spikeforge
