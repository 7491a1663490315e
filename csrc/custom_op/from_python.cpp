// Registration of operators from Python, through operators of the namespace spikeforge_custom_op, which
// python/spikeforge/custom_op.py calls. A C++ function is represented by the name of an operator: Python registers its
// functions as operators with a kernel, so that this file does not depend on Python, and all modes and transforms of
// torch apply to a Python function as to any operator. Everything else is a CustomOp.
#include "csrc/base/fork_safe_mutex.h"
#include "csrc/base/hash.h"
#include "csrc/custom_op/custom_op.h"
#include "csrc/custom_op/internal/c_functions.h"
#include "csrc/custom_op/internal/operator.h"
#include "ops/common/library.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

namespace spikeforge::custom_op {

struct DefinitionAccess {
  static Definition& of(CustomOp& op) { return op.definition_; }
};

namespace {

// --- The cache of results: a function in Python costs more than many a kernel, and a network calls it with the same
// shapes all the time.

// The values of a call on which a function of shapes, dtypes and scalars may depend.
class CallKey {
 public:
  // Returns false for a call that has no key: a call with symbolic sizes, or with arguments of rare types.
  bool describe(const Arguments& in);

  bool operator==(const CallKey& other) const { return words_ == other.words_; }
  std::size_t hash() const { return hash64(words_.data(), words_.size() * sizeof words_[0]); }

 private:
  // Precedes each value in a key and has its type, so that 1 and true are different keys.
  enum Word : std::int64_t { tensor = 1, no_tensor, tensors, none, integer, number, truth, text, integers, numbers };

  bool add(const c10::IValue& value);
  bool add(const at::Tensor& t);
  void add(std::int64_t word) { words_.push_back(word); }

  c10::SmallVector<std::int64_t, 24> words_;
};

bool CallKey::describe(const Arguments& in) {
  for (std::size_t i = 0; i < in.count(); ++i)
    if (!add(in.value(i))) return false;
  return true;
}

bool CallKey::add(const at::Tensor& t) {
  if (!t.defined()) return add(Word::no_tensor), true;
  if (t.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return false;
  add(Word::tensor);
  add(static_cast<std::int64_t>(t.scalar_type()));
  add(t.dim());
  for (const std::int64_t size : t.sizes()) add(size);
  return true;
}

bool CallKey::add(const c10::IValue& value) {
  const auto add_all = [&](Word kind, const auto& list, const auto& word_of) {
    add(kind);
    add(static_cast<std::int64_t>(list.size()));
    for (const auto& element : list) add(word_of(element));
    return true;
  };
  if (value.isTensor()) return add(value.toTensor());
  if (value.isNone()) return add(Word::none), true;
  if (value.isInt()) return add(Word::integer), add(value.toInt()), true;
  if (value.isDouble()) return add(Word::number), add(std::bit_cast<std::int64_t>(value.toDouble())), true;
  if (value.isBool()) return add(Word::truth), add(static_cast<std::int64_t>(value.toBool())), true;
  if (value.isString()) return add_all(Word::text, value.toStringRef(), [](char c) { return std::int64_t{c}; });
  if (value.isIntList()) return add_all(Word::integers, value.toIntVector(), [](std::int64_t i) { return i; });
  if (value.isDoubleList())
    return add_all(Word::numbers, value.toDoubleVector(), [](double d) { return std::bit_cast<std::int64_t>(d); });
  if (!value.isTensorList()) return false;
  const std::vector<at::Tensor> list = value.toTensorVector();
  add(Word::tensors);
  add(static_cast<std::int64_t>(list.size()));
  for (const at::Tensor& t : list)
    if (!add(t)) return false;
  return true;
}

// The results of such a function. Stores at most `most` values, and is cleared when it is full.
template <class T> class Remembered {
 public:
  template <class Make> T get(const Arguments& in, Make&& make) {
    constexpr std::size_t most = 1024;
    CallKey key;
    if (!key.describe(in)) return make();
    {
      const std::scoped_lock lock(mutex_);
      if (const auto at = values_.find(key); at != values_.end()) return at->second;
    }
    T value = make();  // without the lock: Python may wait for another thread
    const std::scoped_lock lock(mutex_);
    if (values_.size() >= most) values_.clear();
    values_.insert_or_assign(std::move(key), value);
    return value;
  }

 private:
  struct Hash {
    std::size_t operator()(const CallKey& key) const { return key.hash(); }
  };
  ForkSafeMutex mutex_;
  std::unordered_map<CallKey, T, Hash> values_;
};

// --- Functions that are operators

// An operator that Python implements. Its entry in the dispatcher exists at least as long as this object.
class Function {
 public:
  explicit Function(const std::string& name)
      : entry_(std::make_shared<c10::RegistrationHandleRAII>(
            c10::Dispatcher::singleton().registerName(c10::OperatorName(name, "")))),
        handle_(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "")) {}

  // Calls the operator with `before`, the call's arguments and `after`. Returns its first result.
  c10::IValue operator()(const Arguments& in, torch::jit::Stack before = {}, torch::jit::Stack after = {}) const {
    torch::jit::Stack stack = std::move(before);
    for (std::size_t i = 0; i < in.count(); ++i) stack.push_back(in.value(i));
    for (c10::IValue& value : after) stack.push_back(std::move(value));
    handle_.callBoxed(stack);
    return std::move(stack.at(0));
  }

 private:
  std::shared_ptr<c10::RegistrationHandleRAII> entry_;
  c10::OperatorHandle handle_;
};

c10::List<at::Tensor> list_of(Tensors tensors) {
  c10::List<at::Tensor> list;
  for (const at::Tensor& t : tensors) list.push_back(t);
  return list;
}

// Wraps a function that returns meta tensors.
ShapeFunction shapes_by(const std::string& name) {
  const auto known = std::make_shared<Remembered<std::vector<Result>>>();
  return [function = Function(name), known](const Arguments& in) {
    return known->get(in, [&] {
      std::vector<Result> results;
      for (const at::Tensor& t : function(in).toTensorVector()) results.push_back({t.sym_sizes(), t.scalar_type()});
      return results;
    });
  };
}

// Wraps a function. Its results must match the shape function, and results that alias are copied: compiled programs
// rely on both.
Compute computed_by(const std::string& name, const char* whose, const ShapeFunction& shapes,
                    const std::shared_ptr<const Operator>& op) {
  return [function = Function(name), whose, shapes, op](const Arguments& in) {
    TensorVector results = function(in).toTensorVector();
    op->check_results(whose, results);
    const std::vector<Result> described = shapes(in);
    TORCH_CHECK_VALUE(described.size() == results.size(), op->name, ": its shape function must describe ",
                      results.size(), results.size() == 1 ? " result" : " results",
                      ", as its schema has, but describes ", described.size());
    TensorVector others;
    for (std::size_t i = 0; i < in.count(); ++i)
      exchanged(op->kinds[i], in.value(i), [&](const at::Tensor& t) {
        if (t.defined()) others.push_back(t);
        return t;
      });
    const at::Device device = others.at(0).device();  // the same for all
    for (std::size_t i = 0; i < results.size(); ++i) {
      at::Tensor& result = results[i];
      TORCH_CHECK_VALUE(result.sym_sizes() == c10::SymIntArrayRef(described[i].sizes), op->name, ": ", whose,
                        " returned result ", i, " the shape ", result.sym_sizes(), ", but its shape function declares ",
                        c10::SymIntArrayRef(described[i].sizes));
      TORCH_CHECK_TYPE(result.scalar_type() == described[i].dtype, op->name, ": ", whose, " returned result ", i,
                       " the dtype ", result.scalar_type(), ", but its shape function declares ", described[i].dtype);
      TORCH_CHECK_VALUE(result.device() == device, op->name, ": ", whose, " returned result ", i, " on ",
                        result.device(), ", but its arguments are on ", device);
      const bool shares = std::ranges::any_of(others, [&](const at::Tensor& t) { return result.is_alias_of(t); });
      result = shares ? result.clone(at::MemoryFormat::Contiguous) : result.contiguous();
      others.push_back(result);
    }
    return results;
  };
}

Jvp jvp_by(const std::string& name) {
  return [function = Function(name)](const Arguments& in, Tensors tangents) {
    c10::List<std::optional<at::Tensor>> list;
    for (const at::Tensor& t : tangents) list.push_back(t.defined() ? std::optional(t) : std::nullopt);
    return function(in, {c10::IValue(std::move(list))}).toTensorVector();
  };
}

Batching batching_by(const std::string& name) {
  return [function = Function(name)](const Arguments& in, std::int64_t size) {
    c10::List<bool> mapped;
    for (std::size_t i = 0; i < in.count(); ++i) mapped.push_back(in.is_mapped(i));
    return function(in, {c10::IValue(size), c10::IValue(std::move(mapped))}).toTensorVector();
  };
}

// Calls the operator itself, if its kernels support an additional dimension. Every tensor is expanded to it.
Batching batched_itself(const std::shared_ptr<const Operator>& op) {
  return [op](const Arguments& in, std::int64_t size) {
    torch::jit::Stack stack;
    for (std::size_t i = 0; i < in.count(); ++i)
      stack.push_back(exchanged(op->kinds[i], in.value(i), [&](const at::Tensor& t) {
        if (!t.defined() || in.is_mapped(i)) return t;
        std::vector<c10::SymInt> sizes = t.sym_sizes().vec();
        sizes.insert(sizes.begin(), size);
        return t.expand_symint(sizes);
      }));
    return op->call(std::move(stack));
  };
}

// --- The definition from Python: a dict of strings, numbers and lists.

class Parts {
 public:
  explicit Parts(const c10::IValue& dict) : dict_(dict.toGenericDict()) {}

  bool has(const char* key) const { return dict_.contains(key); }
  std::string text(const char* key) const { return dict_.at(key).toStringRef(); }
  std::int64_t integer(const char* key) const { return dict_.at(key).toInt(); }

  // Returns an empty list if the key is absent, because Python cannot pass an empty list.
  std::vector<std::int64_t> integers(const char* key) const {
    return has(key) ? dict_.at(key).toIntVector() : std::vector<std::int64_t>();
  }
  std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> all;
    if (!has(key)) return all;
    for (const c10::IValue& value : dict_.at(key).toListRef()) all.push_back(value.toStringRef());
    return all;
  }
  bool is_text(const char* key) const { return dict_.at(key).isString(); }

 private:
  c10::Dict<c10::IValue, c10::IValue> dict_;
};

c10::ScalarType dtype_of(std::int64_t number) { return static_cast<c10::ScalarType>(number); }

Dim3 dim3_of(const std::vector<std::int64_t>& numbers) {
  return {.x = numbers.at(0), .y = numbers.at(1), .z = numbers.at(2)};
}

Extent extent_of(const Parts& parts, const char* key) {
  if (!parts.is_text(key)) return dim3_of(parts.integers(key));
  const auto known = std::make_shared<Remembered<std::vector<std::int64_t>>>();
  return [function = Function(parts.text(key)), known](const Arguments& in, Tensors out) {
    return dim3_of(known->get(in, [&] { return function(in, {}, {c10::IValue(list_of(out))}).toIntVector(); }));
  };
}

CudaKernel cuda_of(const Parts& parts) {
  CudaKernel kernel{.source = parts.text("cuda_source"), .entry = parts.text("cuda_entry")};
  kernel.block = extent_of(parts, "cuda_block");
  if (parts.has("cuda_grid"))
    kernel.grid = extent_of(parts, "cuda_grid");
  else if (!parts.is_text("cuda_block"))
    kernel.grid = one_thread_an_element(parts.integers("cuda_block").at(0));
  kernel.shared_bytes = parts.integer("cuda_shared_bytes");
  kernel.options = parts.texts("cuda_options");
  const std::vector<std::string> headers = parts.texts("cuda_headers");  // name, text, name, text, ...
  for (std::size_t i = 0; i + 1 < headers.size(); i += 2) kernel.headers.emplace_back(headers[i], headers[i + 1]);
  return kernel;
}

// Returns the operator that a schema and its dtypes describe.
std::shared_ptr<const Operator> described(const std::string& schema, const Parts& parts) {
  Definition definition;
  definition.schema = schema;
  definition.cpu = Compute([](const Arguments&) { return TensorVector(); });
  if (parts.has("names_differentiable")) {
    definition.names_differentiable = true;
    definition.differentiable = parts.texts("differentiable");
  }
  definition.save_results = parts.has("save_results");
  if (parts.has("dtypes")) {
    const std::vector<std::string> names = parts.texts("dtypes");
    const std::vector<std::int64_t> numbers = parts.integers("dtypes_offered");  // the dtype for each name
    for (std::size_t i = 0; i < names.size(); ++i) definition.dtypes[names[i]].push_back(dtype_of(numbers.at(i)));
  }
  return std::make_shared<const Operator>(std::move(definition));
}

std::map<c10::ScalarType, CFunction> functions_at(const Parts& parts) {
  std::map<c10::ScalarType, CFunction> functions;
  const std::vector<std::int64_t> dtypes = parts.integers("cpu_dtypes"), addresses = parts.integers("cpu_addresses");
  for (std::size_t i = 0; i < dtypes.size(); ++i)
    functions[dtype_of(dtypes[i])] = reinterpret_cast<CFunction>(addresses.at(i));  // NOLINT(performance-no-int-to-ptr)
  return functions;
}

CustomOp custom_op_of(const std::string& schema, const Parts& parts) {
  const std::shared_ptr<const Operator> read = described(schema, parts);
  CustomOp op(schema);
  const ShapeFunction shapes = shapes_by(parts.text("shapes"));
  op.shapes(shapes);
  Definition& definition = DefinitionAccess::of(op);
  if (parts.has("cpu")) definition.cpu = computed_by(parts.text("cpu"), "its CPU function", shapes, read);
  if (parts.has("cpu_addresses")) op.cpu(kernel_at(functions_at(parts), read));
  if (parts.has("cpu_source")) op.cpu(kernel_of_source(parts.text("cpu_source"), parts.text("cpu_entry"), read));
  if (parts.has("cuda")) definition.cuda = computed_by(parts.text("cuda"), "its CUDA function", shapes, read);
  if (parts.has("cuda_source")) op.cuda(cuda_of(parts));
  if (parts.has("copies")) {  // torch's C++ warnings do not reach Python's warnings
    op.cpu_for_missing_devices();
    definition.say_copies = [say = Function(parts.text("copies"))](const Arguments& in) { say(in); };
  }
  if (parts.has("vjp")) op.vjp(parts.text("vjp"));
  if (parts.has("jvp")) op.jvp(jvp_by(parts.text("jvp")));
  if (parts.has("vmap")) op.batching(batching_by(parts.text("vmap")));
  if (parts.has("vmap_batched")) op.batching(batched_itself(read));
  if (parts.has("names_differentiable")) op.differentiable(parts.texts("differentiable"));
  if (parts.has("save_results")) op.save_results();
  if (parts.has("zero_results")) {
    std::vector<std::size_t> places;
    for (const std::int64_t place : parts.integers("zero_results")) places.push_back(static_cast<std::size_t>(place));
    op.zero_results(std::move(places));
  }
  for (const auto& [argument, dtypes] : read->definition.dtypes) op.dtypes(argument, dtypes);
  return op;
}

// --- Schemas of the functions

using ArgumentList = std::vector<c10::Argument>;

c10::Argument plain(const std::string& name, const c10::TypePtr& type) { return {name, type}; }

// Returns the arguments as positional ones without defaults, because torch omits arguments that equal their default.
ArgumentList in_a_row(const Operator& op) {
  ArgumentList row;
  for (const c10::Argument& a : op.schema.arguments()) row.emplace_back(a.name(), a.type(), a.real_type(), a.N());
  return row;
}

std::string schema_of_function(const Operator& op, const std::string& name, const std::string& part) {
  const c10::TypePtr tensor = c10::TensorType::get(), tensors = c10::ListType::ofTensors();
  ArgumentList takes, gives;  // additional arguments have a leading underscore
  const auto tensor_for_each_result = [&](const char* what) {
    for (std::size_t i = 0; i < op.result_count(); ++i) takes.push_back(plain(what + std::to_string(i), tensor));
  };
  const auto take = [&](ArgumentList row) { takes.insert(takes.end(), row.begin(), row.end()); };

  if (part == "vjp") tensor_for_each_result("_gradient");
  if (part == "jvp") takes.push_back(plain("_tangents", c10::ListType::ofOptionalTensors()));
  if (part == "vmap") {
    takes.push_back(plain("_size", c10::IntType::get()));
    takes.push_back(plain("_mapped", c10::ListType::ofBools()));
  }
  take(in_a_row(op));
  if (part == "vjp" && op.definition.save_results) tensor_for_each_result("_result");
  const bool is_extent = part == "grid" || part == "block";
  if (is_extent) takes.push_back(plain("_results", tensors));

  if (part == "vjp") {
    for (std::size_t i = 0; i < op.argument_count(); ++i)
      if (op.is_differentiable[i]) {
        const bool is_list = op.kinds[i] == ArgumentKind::tensor_list || op.kinds[i] == ArgumentKind::maybe_tensor_list;
        gives.push_back(plain("", is_list ? tensors : tensor));
      }
  } else {
    gives.push_back(plain("", is_extent ? static_cast<c10::TypePtr>(c10::ListType::ofInts()) : tensors));
  }
  std::ostringstream text;
  text << c10::FunctionSchema(name, "", std::move(takes), std::move(gives));
  return text.str();
}

// --- Operators of the namespace

// The registered operators. Python holds their handles, which are integers.
class Registered {
 public:
  static Registered& get() {
    static Registered& all = *new Registered();
    return all;
  }

  std::int64_t add(RegisteredOp op) {
    const std::scoped_lock lock(mutex_);
    ops_.emplace(++last_, std::make_shared<const RegisteredOp>(std::move(op)));
    return last_;
  }

  std::shared_ptr<const RegisteredOp> find(std::int64_t number) const {
    const std::scoped_lock lock(mutex_);
    const auto at = ops_.find(number);
    TORCH_CHECK_VALUE(at != ops_.end(), "spikeforge_custom_op: operator ", number, " no longer exists");
    return at->second;
  }

  void remove(std::int64_t number) {
    std::shared_ptr<const RegisteredOp> op;  // destroyed without the lock
    const std::scoped_lock lock(mutex_);
    if (const auto at = ops_.find(number); at != ops_.end()) {
      op = std::move(at->second);
      ops_.erase(at);
    }
  }

 private:
  mutable ForkSafeMutex mutex_;
  std::map<std::int64_t, std::shared_ptr<const RegisteredOp>> ops_;
  std::int64_t last_ = 0;
};

using torch::jit::Stack;

// (str schema, Dict parts, str name, str part) -> str
void function_schema(Stack& stack) {
  const std::string part = torch::jit::pop(stack).toStringRef(), name = torch::jit::pop(stack).toStringRef();
  const Parts parts(torch::jit::pop(stack));
  const std::string schema = torch::jit::pop(stack).toStringRef();
  torch::jit::push(stack, schema_of_function(*described(schema, parts), name, part));
}

// (str schema, Dict parts) -> int
void register_operator(Stack& stack) {
  const Parts parts(torch::jit::pop(stack));
  const std::string schema = torch::jit::pop(stack).toStringRef();
  torch::jit::push(stack, Registered::get().add(custom_op_of(schema, parts).registered()));
}

// (int number, str arch, Any[] arguments) -> ()
void compile(Stack& stack) {
  const std::vector<c10::IValue> arguments = torch::jit::pop(stack).toListRef().vec();
  const std::string arch = torch::jit::pop(stack).toStringRef();
  Registered::get().find(torch::jit::pop(stack).toInt())->compile(arch, arguments);
}

// (int number) -> ()
void unregister(Stack& stack) { Registered::get().remove(torch::jit::pop(stack).toInt()); }

template <void (*function)(Stack&)> void boxed(const c10::OperatorHandle&, Stack* stack) { function(*stack); }
template <void (*function)(Stack&)> torch::CppFunction kernel() {
  return torch::CppFunction::makeFromBoxedFunction<&boxed<function>>();
}

SPIKEFORGE_REGISTERED(TORCH_LIBRARY_FRAGMENT(spikeforge_custom_op, given), torch::Library& library, C10_UID) {
  library.def("function_schema(str schema, Dict(str, Any) parts, str name, str part) -> str",
              kernel<function_schema>());
  library.def("register_operator(str schema, Dict(str, Any) parts) -> int", kernel<register_operator>());
  library.def("compile(int operator_number, str arch, Any[] arguments) -> ()", kernel<compile>());
  library.def("unregister(int operator_number) -> ()", kernel<unregister>());
}

}  // namespace
}  // namespace spikeforge::custom_op
