#include "csrc/nn/stateful.h"
#include "csrc/torchscript/internal/modules.h"
#include "csrc/torchscript/torchscript.h"

#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/parser.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/sugared_value.h>
#include <torch/csrc/jit/ir/constants.h>

#include <set>
#include <unordered_map>

namespace spikeforge {
namespace {

namespace jit = torch::jit;
using torch::nn::Module;

// --- The names that a script's source may use: torch.<operator of aten>, torch.ops.<library>.<operator>, and types.

struct Libraries : jit::SugaredValue {
  std::string kind() const override { return "torch.ops"; }
  std::shared_ptr<SugaredValue> attr(const jit::SourceRange& /*place*/, jit::GraphFunction& /*method*/,
                                     const std::string& library) override {
    return std::make_shared<jit::BuiltinModule>(library);
  }
};

struct Torch : jit::BuiltinModule {
  Torch() : BuiltinModule("aten") {}
  std::shared_ptr<SugaredValue> attr(const jit::SourceRange& place, jit::GraphFunction& method,
                                     const std::string& name) override {
    if (name == "ops") return std::make_shared<Libraries>();
    for (const auto& [type, value] : {std::pair("float32", at::kFloat), std::pair("int64", at::kLong)})
      if (name == type)
        return std::make_shared<jit::SimpleValue>(
            method.graph()->insertConstant(static_cast<std::int64_t>(value), place));
    return BuiltinModule::attr(place, method, name);
  }
};

struct Resolver : jit::Resolver {
  std::shared_ptr<jit::SugaredValue> resolveValue(const std::string& name, jit::GraphFunction& /*method*/,
                                                  const jit::SourceRange& /*place*/) override {
    return name == "torch" ? std::make_shared<Torch>() : nullptr;
  }
};

// --- The source of a class

// A state that is not persistent is stored in a separate module, which is saved and copied without it. It is not a
// buffer, so that no state_dict contains it. The class with the state accesses it as a property.
constexpr const char* holder_suffix = "_state";
constexpr const char* holder_source = R"(
def __getstate__(self) -> bool:
  return self.training

def __setstate__(self, training: bool) -> None:
  self.training = training
  self.value = None

def follow(self, x: Tensor) -> None:
  value = self.value
  if value is not None:
    if value.device != x.device:
      self.value = value.to(x.device)
)";

// Returns the source of the getter and the setter of the property.
std::string property_source(const std::string& state) {
  const std::string value = script::member(state + holder_suffix) + ".value";
  return "def __" + state + "_getter(self) -> Tensor:\n" +            //
         "  value = " + value + "\n" +                                //
         "  return torch.empty([0]) if value is None else value\n" +  //
         "def __" + state + "_setter(self, value: Tensor) -> None:\n" + "  " + value + " = value\n";
}

std::string source_of(const Script& script, const std::vector<std::string>& held,
                      const std::vector<std::string>& stateful_children) {
  std::string arguments = "self";
  for (const std::string& input : script.inputs) arguments += ", " + input + ": Tensor";
  std::string result = "Tensor";
  if (script.outputs != 1) {
    result = "Tuple[Tensor";
    for (std::size_t i = 1; i < script.outputs; ++i) result += ", Tensor";
    result += "]";
  }
  std::string reset, detach;
  for (const std::string& name : script.states) {
    const std::string state = script::member(name);
    reset += state + " = " + state + ".new_empty([0])\n";
    detach += state + " = " + state + ".detach()\n";
  }
  for (const std::string& name : stateful_children) {
    reset += script::member(name) + ".reset()\n";
    detach += script::member(name) + ".detach_state()\n";
  }
  const auto method = [](const std::string& name, const std::string& body) {
    return "def " + name + "(self) -> None:\n" + (body.empty() ? "  pass\n" : script::indented(body));
  };
  const std::string signature = "(" + arguments + ") -> " + result + ":\n";
  std::string follow;  // moves these states to the device of the input
  for (const std::string& state : held)
    follow += script::member(state + holder_suffix) + ".follow(" + script.inputs.at(0) + ")\n";
  const std::string at_rest =
      script.at_rest.empty() ? "" : "\ndef at_rest" + signature + script::indented(script.at_rest);
  return "def forward" + signature + script::indented(follow + script.forward) + at_rest + script.methods + "\n" +
         method("reset", reset) + method("detach_state", detach);
}

// Defines methods and properties in one call, because methods use the properties.
void define(const jit::Module& module, const std::string& source, const std::vector<std::string>& properties) {
  const auto resolver = std::make_shared<Resolver>();
  const auto parsed = [](const std::string& text) {
    jit::Parser parser(std::make_shared<jit::Source>(text));
    std::vector<jit::Def> defs;
    while (parser.lexer().cur().kind != jit::TK_EOF) defs.emplace_back(parser.parseFunction(/*is_method=*/true));
    return defs;
  };
  const std::vector<jit::Def> methods = parsed(source);
  std::vector<jit::Property> all;
  for (const std::string& state : properties) {
    const std::vector<jit::Def> pair = parsed(property_source(state));
    all.push_back(jit::Property::create(pair[0].range(), jit::Ident::create(pair[0].range(), state), pair[0],
                                        jit::Maybe<jit::Def>::create(pair[1].range(), pair[1])));
  }
  const jit::SimpleSelf self(module.type());
  module._ivalue()->compilation_unit()->define(*module.type()->name(), all, {all.size(), resolver}, methods,
                                               {methods.size(), resolver}, &self);
}

// --- Module trees

class Writer {
 public:
  jit::Module write(const Module& module, const std::string& path) {
    if (const auto known = written_.find(&module); known != written_.end()) return known->second;  // a shared module
    const Script script = script_of(module, path);
    jit::Module result(c10::QualifiedName("__torch__.spikeforge." + script.name), unit_, /*shouldMangle=*/true);

    std::set<std::string> names = {"training"};
    result.register_attribute("training", c10::BoolType::get(), module.is_training());
    const auto attribute = [&](const std::string& name) {
      std::string own = script::attribute(name);
      TORCH_CHECK_NOT_IMPLEMENTED(names.insert(own).second, title(module, path), "the name '", name,
                                  "' occurs twice in TorchScript; rename one of the two");
      return own;
    };
    std::vector<std::string> held;
    for (const std::string& state : script.states)
      if (is_persistent(module, state)) {
        result.register_buffer(attribute(state), at::empty({0}));
      } else {
        held.push_back(script::attribute(state));
        result.register_module(attribute(held.back() + holder_suffix), holder());
      }
    for (const auto& item : module.named_parameters(/*recurse=*/false))
      result.register_parameter(attribute(item.key()), item.value(), /*is_buffer=*/false);
    for (const auto& item : module.named_buffers(/*recurse=*/false))
      if (!is_state(script, item.key())) result.register_buffer(attribute(item.key()), item.value());
    for (const auto& [name, tensor] : script.tensors) result.register_buffer(attribute(name), tensor);
    for (const auto& [name, text] : script.texts)
      result.register_attribute(attribute(name), c10::StringType::get(), text);
    std::vector<std::string> stateful;
    for (const auto& item : module.named_children()) {
      const jit::Module child = write(*item.value(), path + "." + item.key());
      result.register_module(attribute(item.key()), child);
      if (has_state_.contains(item.value().get())) stateful.push_back(item.key());
    }
    if (!script.states.empty() || !stateful.empty()) has_state_.insert(&module);
    try {
      define(result, source_of(script, held, stateful), held);
    } catch (const std::exception& error) {
      TORCH_CHECK_NOT_IMPLEMENTED(false, title(module, path), "its source is refused by TorchScript: ", error.what());
    }
    written_.emplace(&module, result);
    return result;
  }

 private:
  // True if the state is registered as a buffer, whose name is that of the state or an identifier derived from it.
  static bool is_persistent(const Module& module, const std::string& state) {
    const auto buffers = module.named_buffers(/*recurse=*/false);
    return std::any_of(buffers.begin(), buffers.end(), [&](const auto& buffer) {
      return buffer.key() == state || script::identifier(buffer.key()) == state;
    });
  }

  jit::Module holder() {
    jit::Module result(c10::QualifiedName("__torch__.spikeforge.State"), unit_, /*shouldMangle=*/true);
    result.register_attribute("training", c10::BoolType::get(), true);
    result.register_attribute("value", c10::OptionalType::create(c10::TensorType::get()), c10::IValue());
    define(result, holder_source, {});
    return result;
  }

  // True if a buffer has the name of a state, or its identifier.
  static bool is_state(const Script& script, const std::string& name) {
    const auto has = [&](const std::string& state) {
      return std::find(script.states.begin(), script.states.end(), state) != script.states.end();
    };
    return has(name) || has(script::identifier(name));
  }

  static std::string title(const Module& module, const std::string& path) {
    return "to_torchscript: " + path + " (" + script::class_name(module) + "): ";
  }

  static Script script_of(const Module& module, const std::string& path) {
    try {
      if (const auto* stateful = dynamic_cast<const nn::Stateful*>(&module)) return stateful->script();
      if (const script::Known* known = script::find(module)) return known->script(module);
    } catch (const c10::Error& error) {
      TORCH_CHECK_NOT_IMPLEMENTED(false, title(module, path), error.what_without_backtrace());
    }
    TORCH_CHECK_NOT_IMPLEMENTED(false, title(module, path), "it has no TorchScript form; define one by script_as");
    return {};
  }

  std::shared_ptr<jit::CompilationUnit> unit_ = std::make_shared<jit::CompilationUnit>();
  std::unordered_map<const Module*, jit::Module> written_;
  std::set<const Module*> has_state_;
};

// --- The example

// Restores the generator's state, so that the module and the script draw the same random numbers and later draws are
// unaffected.
class SameNumbers {
 public:
  explicit SameNumbers(c10::Device device)
      : generator_(at::globalContext().defaultGenerator(device)), state_(generator_.get_state()) {}
  ~SameNumbers() { rewind(); }
  SameNumbers(const SameNumbers&) = delete;
  SameNumbers& operator=(const SameNumbers&) = delete;
  void rewind() { generator_.set_state(state_); }

 private:
  at::Generator generator_;
  at::Tensor state_;
};

nn::Tensors run_example(Module& module, at::TensorList example) {
  if (auto* stateful = dynamic_cast<nn::Stateful*>(&module)) return stateful->run(example, example[0].size(0));
  return {script::find(module)->call(module, example[0])};
}

nn::Tensors run_example(jit::Module& script, at::TensorList example) {
  const jit::IValue result = script.forward(std::vector<jit::IValue>(example.begin(), example.end()));
  if (result.isTensor()) return {result.toTensor()};
  nn::Tensors all;
  for (const jit::IValue& value : result.toTupleRef().elements()) all.push_back(value.toTensor());
  return all;
}

bool agree(const at::Tensor& a, const at::Tensor& b, bool compare_values) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type() || a.device() != b.device()) return false;
  if (!compare_values) return true;
  return (a.eq(b).logical_or(a.ne(a).logical_and(b.ne(b)))).all().item<bool>();
}

// True if a module occurs twice in the tree. In a copy it becomes two modules with separate states.
bool is_used_twice(const Module& module) {
  std::set<const Module*> seen;
  bool twice = false;
  module.apply([&](const Module& m) { twice = !seen.insert(&m).second || twice; });
  return twice;
}

void check(const Module& module, const jit::Module& script, at::TensorList example) {
  const at::NoGradGuard no_grad;
  const std::shared_ptr<Module> copy = module.clone();
  nn::reset_state(*copy);
  jit::Module script_copy = script.deepcopy();
  SameNumbers numbers(example[0].device());
  const nn::Tensors expected = run_example(*copy, example);
  numbers.rewind();
  const nn::Tensors actual = run_example(script_copy, example);
  const bool compare_values = example[0].is_cpu() && !is_used_twice(module);
  bool same = expected.size() == actual.size();
  for (std::size_t i = 0; same && i < expected.size(); ++i) same = agree(expected[i], actual[i], compare_values);
  TORCH_CHECK_VALUE(same, "to_torchscript: net (", script::class_name(module),
                    "): the script's results on the example are not the module's; a class derived from one of "
                    "spikeforge::nn that changes its results must override script()");
}

}  // namespace

torch::jit::Module to_torchscript(const Module& module, at::TensorList example) {
  TORCH_CHECK_VALUE(!example.empty() && example[0].defined(), "to_torchscript: the example has no tensor");
  jit::Module script = Writer().write(module, "net");
  check(module, script, example);
  return script;
}

}  // namespace spikeforge
