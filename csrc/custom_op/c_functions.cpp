#include "csrc/custom_op/internal/c_functions.h"
#include "csrc/base/once_map.h"
#include "csrc/cpu/host_compiler.h"
#include "csrc/custom_op/internal/source_parameters.h"

#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <sstream>
#include <string_view>
#include <utility>

namespace spikeforge::custom_op {
namespace {

// The parameters of a call.
class Parameters {
 public:
  Parameters(const Operator& op, Tensors out, const Arguments& in) {
    std::size_t tensors = out.size();
    for (const ArgumentKind kind : op.kinds) tensors += holds_tensors(kind) ? 1 : 0;
    data_.reserve(tensors);
    dims_.reserve(tensors);
    sizes_.reserve(tensors);
    for (std::size_t i = 0; i < op.argument_count(); ++i) {
      switch (op.kinds[i]) {
        case ArgumentKind::integer: integers_.push_back(in.integer(i)); break;
        case ArgumentKind::truth: integers_.push_back(in.flag(i) ? 1 : 0); break;
        case ArgumentKind::number: numbers_.push_back(in.number(i)); break;
        default: add(in.value(i).isNone() ? nullptr : &in.value(i).toTensor(), /*is_result=*/false);
      }
    }
    for (const at::Tensor& t : out) add(&t, /*is_result=*/true);
  }

  void call(CFunction function) {
    function(data_.data(), dims_.data(), sizes_.data(), integers_.data(), numbers_.data());
  }

 private:
  void add(const at::Tensor* t, bool is_result) {
    if (t == nullptr || !t->defined()) {
      data_.push_back(nullptr);
      dims_.push_back(0);
      sizes_.push_back(nullptr);
      return;
    }
    data_.push_back(is_result ? t->mutable_data_ptr() : const_cast<void*>(t->const_data_ptr()));
    dims_.push_back(t->dim());
    sizes_.push_back(const_cast<std::int64_t*>(t->sizes().data()));
  }

  c10::SmallVector<void*, 8> data_;
  c10::SmallVector<std::int64_t, 8> dims_, integers_;
  c10::SmallVector<std::int64_t*, 8> sizes_;
  c10::SmallVector<double, 8> numbers_;
};

// --- At an address

class AtAddresses {
 public:
  AtAddresses(std::map<c10::ScalarType, CFunction> functions, const Operator& op)
      : functions_(std::move(functions)), op_(op) {
    for (std::size_t i = 0; i < op.argument_count(); ++i) {
      if (!holds_tensors(op.kinds[i])) continue;
      if (op.kinds[i] == ArgumentKind::tensor && leading_ == none) leading_ = i;
      if (i != leading_ && !op.definition.dtypes.contains(op.argument_name(i))) of_the_same_dtype_.push_back(i);
    }
  }

  CFunction function_for(const Arguments& in) const {
    const c10::ScalarType dtype = in.value(leading_).toTensor().scalar_type();
    const auto found = functions_.find(dtype);
    if (found == functions_.end()) refuse(dtype);
    for (const std::size_t i : of_the_same_dtype_) {
      const c10::IValue& value = in.value(i);
      TORCH_CHECK_TYPE(!value.isTensor() || value.toTensor().scalar_type() == dtype, op_.name, ": ",
                       op_.argument_name(i), " must be ", dtype, ", as ", op_.argument_name(leading_), " is, but is ",
                       value.toTensor().scalar_type(), ": its CPU function in C supports one dtype; declare ",
                       op_.argument_name(i), "'s dtype in dtypes if it differs");
    }
    return found->second;
  }

 private:
  [[noreturn]] void refuse(c10::ScalarType dtype) const {
    std::string list;
    for (const auto& [offered, function] : functions_)
      list += (list.empty() ? "" : " or ") + std::string(toString(offered));
    TORCH_CHECK_TYPE(false, op_.name, ": ", op_.argument_name(leading_), " must be ", list,
                     " on the CPU, which its functions are for, but is ", dtype);
  }

  static constexpr std::size_t none = -1;
  const std::map<c10::ScalarType, CFunction> functions_;
  const Operator& op_;
  std::size_t leading_ = none;  // the first Tensor
  std::vector<std::size_t> of_the_same_dtype_;
};

// --- C++ source

class OfSource {
 public:
  OfSource(std::string source, std::string entry, const Operator& op)
      : source_(std::move(source)), entry_(std::move(entry)), op_(op) {
    TORCH_CHECK_VALUE(!source_.empty() && !entry_.empty(), op.name,
                      ": its CPU function is C++ source, which needs a text, and the name of a function in it");
  }

  CFunction function_for(Tensors out, const Arguments& in) {
    const auto check = [&](const std::string& name, const at::Tensor& t) {
      TORCH_CHECK_VALUE(!t.defined() || t.dim() <= 8, op_.name, ": ", name, " has ", t.dim(),
                        " dimensions, but a CPU source takes at most 8");
    };
    for (std::size_t i = 0; i < op_.argument_count(); ++i)
      if (holds_tensors(op_.kinds[i])) check(op_.argument_name(i), tensor_or_none(in.value(i)));
    for (std::size_t i = 0; i < out.size(); ++i) check(op_.result_name(i), out[i]);
    return compiled_.get(key_of_dtypes(op_, out, in), [&] { return compile(out, in); }).value->function;
  }

 private:
  struct Compiled {
    cpu::SharedObject object;
    CFunction function;
  };

  Compiled compile(Tensors out, const Arguments& in) const {
    const cpu::HostCompiler* const compiler = cpu::HostCompiler::asked_for();
    TORCH_CHECK(compiler != nullptr, op_.name,
                ": its CPU function is C++ source, which SPIKEFORGE_HOST_COMPILER=0 forbids to compile; give a Python "
                "function or the address of a compiled one");
    try {
      cpu::SharedObject object = compiler->load(op_.name, print(out, in));
      const auto function = reinterpret_cast<CFunction>(object.find("spikeforge_custom_op"));
      return {std::move(object), function};
    } catch (const std::runtime_error& error) {
      TORCH_CHECK(false, op_.name, ": its CPU source was not compiled: ", error.what(), line_of(error.what()));
    }
  }

  // Returns the source line of an error. The compiler cannot show it, because the source is not in a file.
  std::string line_of(std::string_view message) const {
    const std::size_t at = message.find(op_.name + ":");
    if (at == std::string_view::npos) return "";
    const int number = std::atoi(message.data() + at + op_.name.size() + 1);
    std::istringstream lines(source_);
    std::string line;
    int read = 0;
    while (read < number && std::getline(lines, line)) ++read;
    return number > 0 && read == number ? fmt::format("\n{:>6} | {}", number, line) : "";
  }

  std::string print(Tensors out, const Arguments& in) const {
    using Kind = CudaParameter::Kind;
    const std::vector<CudaParameter> parameters = parameters_of(op_, out, in, &ElementType::host, "CPU sources");
    std::vector<std::string> values;
    std::size_t tensors = 0, integers = 0, numbers = 0;
    for (const CudaParameter& parameter : parameters) {
      switch (parameter.kind) {
        case Kind::integer: values.push_back(fmt::format("integers[{}]", integers++)); break;
        case Kind::truth: values.push_back(fmt::format("integers[{}] != 0", integers++)); break;
        case Kind::number: values.push_back(fmt::format("numbers[{}]", numbers++)); break;
        default: values.push_back(fmt::format("{{data[{0}], dims[{0}], sizes[{0}]}}", tensors++));
      }
    }
    const std::string caller = fmt::format(
        "extern \"C\" __attribute__((visibility(\"default\"))) void spikeforge_custom_op(\n"
        "    void** data, std::int64_t* dims, std::int64_t** sizes, std::int64_t* integers, double* numbers) "
        "{{\n"
        "  {}({});\n"
        "}}\n",
        entry_, fmt::join(values, ", "));
    return print_types("spikeforge/custom_op/internal/host_array.h", source_, parameters) +
           fmt::format("#line 1 \"{}\"\n", op_.name) + print_program(source_, entry_, parameters, caller);
  }

  const std::string source_, entry_;
  const Operator& op_;
  OnceMap<std::string, Compiled, std::hash<std::string>> compiled_;
};

}  // namespace

Kernel kernel_at(const std::map<c10::ScalarType, CFunction>& functions, const std::shared_ptr<const Operator>& op) {
  op->check_no_lists("a CPU function of C", "A Python function takes any");
  const auto kernel = std::make_shared<const AtAddresses>(functions, *op);
  return [op, kernel](Tensors out, const Arguments& in) { Parameters(*op, out, in).call(kernel->function_for(in)); };
}

Kernel kernel_of_source(const std::string& source, const std::string& entry,
                        const std::shared_ptr<const Operator>& op) {
  op->check_no_lists("a CPU function of C", "A Python function takes any");
  op->check_names_of_types();
  const auto kernel = std::make_shared<OfSource>(source, entry, *op);
  return
      [op, kernel](Tensors out, const Arguments& in) { Parameters(*op, out, in).call(kernel->function_for(out, in)); };
}

}  // namespace spikeforge::custom_op
