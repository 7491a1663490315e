#include "csrc/custom_op/internal/operator.h"
#include "csrc/custom_op/internal/call_of_user.h"
#include "csrc/custom_op/internal/cuda_kernels.h"
#include "csrc/custom_op/internal/cuda_source.h"
#include "ops/common/plain.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

namespace spikeforge::custom_op {
namespace {

constexpr std::string_view taken_namespaces[] = {"aten",         "prim",     "prims",  "c10d",      "_c10d_functional",
                                                 "higher_order", "inductor", "mkldnn", "quantized", "rngprims",
                                                 "spikeforge"};

c10::FunctionSchema parse(const std::string& text) {
  try {
    return torch::schema(text.c_str());
  } catch (const std::exception& error) {
    TORCH_CHECK_VALUE(
        false, "CustomOp: the schema \"", text,
        "\" cannot be read; it is written like \"mine::scaled(Tensor x, float factor=1.0) -> Tensor\": ", error.what());
  }
}

ArgumentKind kind_of(const c10::Argument& argument) {
  const auto& type = argument.type();
  const auto is = [&](const c10::TypePtr& other) { return *type == *other; };
  if (is(c10::TensorType::get())) return ArgumentKind::tensor;
  if (is(c10::OptionalType::ofTensor())) return ArgumentKind::maybe_tensor;
  if (is(c10::ListType::ofTensors())) return ArgumentKind::tensor_list;
  if (is(c10::ListType::ofOptionalTensors())) return ArgumentKind::maybe_tensor_list;
  if (is(c10::IntType::get())) return ArgumentKind::integer;  // SymInt has this type too
  if (is(c10::FloatType::get()) || is(c10::NumberType::get())) return ArgumentKind::number;
  if (is(c10::BoolType::get())) return ArgumentKind::truth;
  return ArgumentKind::other;
}

std::vector<ArgumentKind> kinds_of(const c10::FunctionSchema& schema) {
  std::vector<ArgumentKind> kinds;
  for (const c10::Argument& argument : schema.arguments()) kinds.push_back(kind_of(argument));
  return kinds;
}

std::size_t place_of(const c10::FunctionSchema& schema, const std::string& argument, const char* source) {
  const auto& all = schema.arguments();
  const auto found = std::ranges::find(all, argument, &c10::Argument::name);
  TORCH_CHECK_VALUE(found != all.end(), schema.name(), ": ", source, " names ", argument, ", which its schema, ",
                    schema, ", does not have");
  return static_cast<std::size_t>(found - all.begin());
}

std::vector<char> differentiable_of(const Definition& definition, const c10::FunctionSchema& schema,
                                    const std::vector<ArgumentKind>& kinds) {
  std::vector<char> is(kinds.size());
  if (!definition.names_differentiable) {
    for (std::size_t i = 0; i < kinds.size(); ++i) is[i] = holds_tensors(kinds[i]);
    return is;
  }
  for (const std::string& argument : definition.differentiable) {
    const std::size_t i = place_of(schema, argument, "differentiable");
    TORCH_CHECK_VALUE(holds_tensors(kinds[i]), schema.name(), ": differentiable names ", argument,
                      ", which is not a tensor");
    is[i] = true;
  }
  return is;
}

std::vector<char> zeroed_of(const Definition& definition, const c10::FunctionSchema& schema) {
  std::vector<char> is(schema.returns().size(), definition.zero_all);
  for (const std::size_t place : definition.zeroed) {
    TORCH_CHECK_VALUE(place < is.size(), schema.name(), ": zero_results names result ", place, ", but there are ",
                      is.size());
    is[place] = true;
  }
  return is;
}

void check_schema(const Definition& definition, const c10::FunctionSchema& schema,
                  const std::vector<ArgumentKind>& kinds) {
  const std::string& name = schema.name();
  const std::size_t colons = name.find("::");
  TORCH_CHECK_VALUE(colons != std::string::npos && colons > 0, "CustomOp: the schema \"", definition.schema,
                    "\" must begin with a namespace, like mine::scaled");
  const std::string space = name.substr(0, colons);
  TORCH_CHECK_VALUE(std::ranges::find(taken_namespaces, space) == std::end(taken_namespaces), name, ": the namespace ",
                    space, " is ", space == "spikeforge" ? "this library's" : "torch's",
                    " own; give the operator another, like mine::", name.substr(colons + 2));
  TORCH_CHECK_VALUE(!schema.is_vararg() && !schema.is_varret(), name, ": its schema must not end in ...");
  TORCH_CHECK_VALUE(std::ranges::count(kinds, ArgumentKind::tensor) > 0, name,
                    ": its schema must have an argument of type Tensor, which determines the device");
  TORCH_CHECK_VALUE(!schema.returns().empty(), name, ": its schema must have a result of type Tensor");
  std::set<std::string> names;
  for (const c10::Argument& argument : schema.arguments()) {
    TORCH_CHECK_VALUE(argument.alias_info() == nullptr, name, ": argument ", argument.name(),
                      " is marked as changed or returned, but a custom operator returns new tensors");
    TORCH_CHECK_VALUE(names.insert(argument.name()).second, name, ": two arguments are called ", argument.name());
  }
  for (const c10::Argument& result : schema.returns()) {
    TORCH_CHECK_VALUE(*result.type() == *c10::TensorType::get() && result.alias_info() == nullptr, name,
                      ": every result must be a new Tensor, without an alias, but one is ", result.type()->repr_str());
    TORCH_CHECK_VALUE(result.name().empty() || names.insert(result.name()).second, name, ": ", result.name(),
                      " names a result and something else");
  }
}

// Throws for an empty std::function, such as one constructed from a null pointer, before any call.
template <class Function> void check_not_empty(const Operator& op, const char* part, const Function* function) {
  TORCH_CHECK_VALUE(function == nullptr || *function, op.name, ": .", part, "(...) was given an empty function");
}

void check_parts(const Operator& op) {
  const Definition& definition = op.definition;
  check_not_empty(op, "cpu", std::get_if<Kernel>(&definition.cpu));
  check_not_empty(op, "compute", std::get_if<Compute>(&definition.cpu));
  check_not_empty(op, "cuda", std::get_if<Kernel>(&definition.cuda));
  check_not_empty(op, "compute", std::get_if<Compute>(&definition.cuda));
  check_not_empty(op, "vjp", std::get_if<Vjp>(&definition.vjp));
  check_not_empty(op, "jvp", definition.jvp ? &*definition.jvp : nullptr);
  check_not_empty(op, "batching", definition.batching ? &*definition.batching : nullptr);
  const bool computes = std::holds_alternative<Compute>(definition.cpu);
  TORCH_CHECK_VALUE(definition.shapes || computes, op.name, ": it has no shape function (shapes)");
  TORCH_CHECK_VALUE(definition.cpu.index() != 0 || definition.cuda.index() != 0, op.name,
                    ": it has no kernel: neither for the CPU (cpu) nor for CUDA (cuda)");
  TORCH_CHECK_VALUE(definition.cpu.index() != 0 || !definition.cpu_for_missing_devices, op.name,
                    ": it has no CPU function to run for missing devices");
  for (const auto& [argument, dtypes] : definition.dtypes)
    TORCH_CHECK_VALUE(holds_tensors(op.kinds[place_of(op.schema, argument, "dtypes")]), op.name, ": dtypes names ",
                      argument, ", which is not a tensor");
}

// Checks a vjp that is an operator: it must return one gradient for each differentiable argument, of the same kind.
void check_vjp_operator(const Operator& op) {
  const auto* const vjp_name = std::get_if<std::string>(&op.definition.vjp);
  if (vjp_name == nullptr) return;
  const auto found = c10::Dispatcher::singleton().findSchema({*vjp_name, ""});
  TORCH_CHECK_VALUE(found.has_value(), op.name, ": its vjp, ", *vjp_name, ", is not registered: register it first");
  const c10::FunctionSchema& vjp = found->schema();

  const auto is_tensor = [](const c10::Argument& a) { return *a.type() == *c10::TensorType::get(); };
  const std::size_t saved = op.definition.save_results ? op.result_count() : 0;
  const std::size_t expected = op.result_count() + op.argument_count() + saved;
  TORCH_CHECK_VALUE(vjp.arguments().size() == expected, op.name, ": its vjp must take ", expected, " arguments (",
                    op.result_count(), " gradients of results, ", op.argument_count(), " arguments of ", op.name,
                    saved > 0 ? ", its results" : "", "), but is ", vjp);
  for (std::size_t i = 0; i < expected; ++i) {
    const bool is_argument = i >= op.result_count() && i < op.result_count() + op.argument_count();
    const c10::Argument& takes = vjp.arguments()[i];
    if (!is_argument) {
      TORCH_CHECK_VALUE(is_tensor(takes), op.name, ": argument ", takes.name(), " of its vjp must be a Tensor, in ",
                        vjp);
      continue;
    }
    const c10::Argument& given = op.schema.arguments()[i - op.result_count()];
    TORCH_CHECK_VALUE(given.type()->isSubtypeOf(*takes.type()), op.name, ": argument ", takes.name(),
                      " of its vjp must be a ", given.type()->repr_str(), ", as argument ", given.name(), " of ",
                      op.name, ", in ", vjp);
  }
  std::vector<bool> lists;
  for (std::size_t i = 0; i < op.argument_count(); ++i)
    if (op.is_differentiable[i])
      lists.push_back(op.kinds[i] == ArgumentKind::tensor_list || op.kinds[i] == ArgumentKind::maybe_tensor_list);
  TORCH_CHECK_VALUE(vjp.returns().size() == lists.size(), op.name, ": its vjp must return ", lists.size(),
                    " gradients, one for each differentiable argument, but is ", vjp);
  for (std::size_t k = 0; k < lists.size(); ++k)
    TORCH_CHECK_VALUE(*vjp.returns()[k].type() == (lists[k] ? *static_cast<c10::TypePtr>(c10::ListType::ofTensors())
                                                            : *static_cast<c10::TypePtr>(c10::TensorType::get())),
                      op.name, ": result ", k, " of its vjp must be a ", lists[k] ? "Tensor[]" : "Tensor", ", but is ",
                      vjp);
}

}  // namespace

Operator::Operator(Definition given)
    : definition(std::move(given)),
      schema(parse(definition.schema)),
      name(schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name())),
      kinds(kinds_of(schema)),
      is_differentiable(differentiable_of(definition, schema, kinds)),
      is_zeroed(zeroed_of(definition, schema)) {
  check_schema(definition, schema, kinds);
  check_parts(*this);
  check_vjp_operator(*this);
  if (const auto* const kernel = std::get_if<CudaKernel>(&definition.cuda))
    cuda_kernels_ = std::make_unique<CudaKernels>(*kernel, *this);
}

Operator::~Operator() = default;

std::string Operator::result_name(std::size_t i) const {
  const std::string& own = schema.returns()[i].name();
  if (!own.empty()) return own;
  return result_count() == 1 ? "result" : "result" + std::to_string(i);
}

TensorVector Operator::allocate(const Arguments& in, const at::Tensor& leader) const {
  const std::vector<Result> described = call_of_user(name, "its shape function", [&] { return definition.shapes(in); });
  TORCH_CHECK_VALUE(described.size() == result_count(), name, ": its shape function must describe ", result_count(),
                    result_count() == 1 ? " result" : " results", ", as its schema has, but describes ",
                    described.size());
  TensorVector out;
  out.reserve(described.size());
  for (std::size_t i = 0; i < described.size(); ++i) {
    const Result& result = described[i];
    TORCH_CHECK_TYPE(result.dtype < c10::ScalarType::NumOptions && result.dtype != c10::ScalarType::Undefined, name,
                     ": its shape function declares for result ", i, " the dtype ", toString(result.dtype),
                     ", which tensors cannot have");
    for (const c10::SymInt& size : result.sizes)
      TORCH_CHECK_VALUE(size.is_symbolic() || size >= 0, name, ": its shape function declares for result ", i,
                        " the shape ", c10::SymIntArrayRef(result.sizes), ": sizes must not be negative");
    const at::TensorOptions options = at::TensorOptions(leader.device()).dtype(result.dtype);
    out.push_back(is_zeroed[i] ? at::zeros_symint(result.sizes, options) : at::empty_symint(result.sizes, options));
  }
  return out;
}

void Operator::check_no_lists(const char* taker, const char* otherwise) const {
  for (std::size_t i = 0; i < argument_count(); ++i)
    TORCH_CHECK_VALUE(kinds[i] != ArgumentKind::other && kinds[i] != ArgumentKind::tensor_list &&
                          kinds[i] != ArgumentKind::maybe_tensor_list,
                      name, ": argument ", argument_name(i), " of type ", schema.arguments()[i].type()->repr_str(),
                      " cannot be given to ", taker, ": it takes Tensor, Tensor?, int, float, Scalar and bool. ",
                      otherwise);
}

void Operator::check_names_of_types() const {
  const auto check = [&](const std::string& tensor) {
    TORCH_CHECK_VALUE(!is_keyword(tensor + "_t"), name, ": the dtype of ", tensor, " would be called ", tensor,
                      "_t in a source, which is a word of C++; give the tensor another name");
  };
  for (std::size_t i = 0; i < argument_count(); ++i)
    if (holds_tensors(kinds[i])) check(argument_name(i));
  for (std::size_t i = 0; i < result_count(); ++i) check(result_name(i));
}

void Operator::check_results(const char* whose, const TensorVector& results) const {
  TORCH_CHECK_VALUE(results.size() == result_count(), name, ": ", whose, " must return ", result_count(),
                    result_count() == 1 ? " tensor" : " tensors", ", one for each result, but returned ",
                    results.size());
  for (std::size_t i = 0; i < results.size(); ++i)
    TORCH_CHECK_VALUE(results[i].defined(), name, ": ", whose, " returned an undefined tensor for result ", i);
}

// --- Calls

void Operator::check_dtypes(Values values) const {
  if (definition.dtypes.empty()) return;
  for_each_tensor(values, [&](std::size_t i, const at::Tensor& t) {
    const auto allowed = definition.dtypes.find(argument_name(i));
    if (!t.defined() || allowed == definition.dtypes.end()) return;
    if (std::ranges::find(allowed->second, t.scalar_type()) != allowed->second.end()) return;
    TORCH_CHECK_TYPE(false, name, ": ", argument_name(i), " must be ", c10::Join(" or ", allowed->second), ", but is ",
                     t.scalar_type());
  });
}

const at::Tensor& Operator::prepare(torch::jit::Stack& stack) const {
  const Values values = this->values(stack);
  check_dtypes(values);
  const at::Tensor* leader = nullptr;
  bool are_plain = true;
  std::size_t leading = 0;
  for (std::size_t i = 0; i < values.size() && leader == nullptr; ++i)
    if (kinds[i] == ArgumentKind::tensor) {
      leader = &values[i].toTensor();
      leading = i;
    }
  for_each_tensor(values, [&](std::size_t i, const at::Tensor& t) {
    if (!t.defined()) {
      TORCH_CHECK_VALUE(kinds[i] == ArgumentKind::maybe_tensor || kinds[i] == ArgumentKind::maybe_tensor_list, name,
                        ": ", argument_name(i), " is an undefined tensor");
      return;
    }
    TORCH_CHECK_VALUE(t.device() == leader->device(), name, ": ", argument_name(i), " must be on ", leader->device(),
                      ", the device of ", argument_name(leading), ", but is on ", t.device());
    TORCH_CHECK_TYPE(t.layout() == c10::kStrided, name, ": ", argument_name(i),
                     " must be a dense tensor, but its layout is ", t.layout());
    are_plain = are_plain && ops::is_plain(t);
  });
  if (!are_plain) {
    const std::size_t first = stack.size() - argument_count();
    for (std::size_t i = 0; i < argument_count(); ++i)
      if (holds_tensors(kinds[i]))
        stack[first + i] =
            exchanged(kinds[i], stack[first + i], [](const at::Tensor& t) { return t.defined() ? ops::plain(t) : t; });
  }
  return this->values(stack)[leading].toTensor();
}

void Operator::replace(torch::jit::Stack& stack, TensorVector results) const {
  torch::jit::drop(stack, argument_count());
  for (at::Tensor& t : results) stack.emplace_back(std::move(t));
}

void Operator::run_on_cpu(torch::jit::Stack& stack) const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      definition.cpu.index() != 0, name,
      " has a kernel for CUDA only: define it with one for the CPU (cpu), or call it with CUDA tensors");
  const at::Tensor& leader = prepare(stack);
  const Arguments in = arguments(values(stack));
  if (const auto* const compute = std::get_if<Compute>(&definition.cpu)) {
    TensorVector results = call_of_user(name, "its function", [&] { return (*compute)(in); });
    check_results("its function", results);
    if (cuda_kernels_ != nullptr) cuda_kernels_->note(in, results);
    return replace(stack, std::move(results));
  }
  TensorVector out = allocate(in, leader);
  c10::SmallVector<std::int64_t, 8> numels;
  for (const at::Tensor& t : out) numels.push_back(t.numel());
  if (cuda_kernels_ != nullptr) cuda_kernels_->note(in, out);
  call_of_user(name, "its CPU function", [&] { std::get<Kernel>(definition.cpu)(out, in); });
  for (std::size_t i = 0; i < out.size(); ++i)
    TORCH_CHECK_VALUE(out[i].numel() == numels[i], name, ": its CPU function resized result ", i, ", from ", numels[i],
                      " to ", out[i].numel(), " elements; the shape function determines the sizes");
  replace(stack, std::move(out));
}

void Operator::run_on_cpu_by_copies(torch::jit::Stack& stack) const {
  const at::Device device = prepare(stack).device();
  std::call_once(warned_of_copies_, [&] {
    if (definition.say_copies) return definition.say_copies(arguments(values(stack)));
    TORCH_WARN(name, " has no kernel for ", device,
               ": its CPU function runs on copies of the arguments, and its "
               "results are copied back");
  });
  const std::size_t first = stack.size() - argument_count();
  for (std::size_t i = 0; i < argument_count(); ++i)
    stack[first + i] =
        exchanged(kinds[i], stack[first + i], [](const at::Tensor& t) { return t.defined() ? t.cpu() : t; });
  run_on_cpu(stack);
  for (std::size_t i = stack.size() - result_count(); i < stack.size(); ++i) stack[i] = stack[i].toTensor().to(device);
}

TensorVector Operator::call(torch::jit::Stack stack) const {
  c10::Dispatcher::singleton()
      .findSchemaOrThrow(schema.name().c_str(), schema.overload_name().c_str())
      .callBoxed(stack);
  TensorVector results;
  for (c10::IValue& value : stack) results.push_back(std::move(value).toTensor());
  return results;
}

void call_on_cpu(const DispatchedCall& call) { call.op->run_on_cpu(call.stack); }

void call_on_meta(const DispatchedCall& call) {
  const Operator& op = *call.op;
  const Values values = op.values(call.stack);
  op.check_dtypes(values);
  const Arguments in = op.arguments(values);
  at::Tensor leader;
  op.for_each_tensor(values, [&](std::size_t i, const at::Tensor& t) {
    if (!leader.defined() && op.kinds[i] == ArgumentKind::tensor) leader = t;
  });
  TORCH_CHECK_VALUE(leader.defined(), op.name, ": an argument is an undefined tensor");
  op.replace(call.stack, op.allocate(in, leader));
}

}  // namespace spikeforge::custom_op
