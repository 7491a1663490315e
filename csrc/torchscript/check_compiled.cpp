#include "csrc/torchscript/internal/check_compiled.h"
#include "csrc/base/printable.h"
#include "csrc/torchscript/internal/archive.h"

#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

namespace spikeforge::torchscript {
namespace {

namespace jit = torch::jit;
using c10::TypeKind;

bool is_one(const c10::TypePtr& type, std::initializer_list<TypeKind> kinds) {
  return std::find(kinds.begin(), kinds.end(), type->kind()) != kinds.end();
}

// The interpreter tells values of these kinds from those of all others, and refuses what it did not expect.
bool is_told_apart(const c10::TypePtr& type) {
  return is_one(type, {TypeKind::TensorType, TypeKind::IntType, TypeKind::FloatType, TypeKind::ComplexType,
                       TypeKind::BoolType, TypeKind::StringType, TypeKind::NoneType, TypeKind::DeviceObjType,
                       TypeKind::ListType, TypeKind::DictType, TypeKind::TupleType, TypeKind::ClassType});
}

// What a list or a tuple holds, and which class an object has, it does not look at.
bool holds_nothing(const c10::TypePtr& type) {
  return is_told_apart(type) &&
         !is_one(type, {TypeKind::ListType, TypeKind::DictType, TypeKind::TupleType, TypeKind::ClassType});
}

bool can_be_taken_for(const c10::TypePtr& from, const c10::TypePtr& to) {
  if (holds_nothing(to) || to->kind() == TypeKind::NumberType || from->isSubtypeOf(*to)) return true;
  if (is_one(from, {TypeKind::OptionalType, TypeKind::UnionType})) {
    const auto parts = from->containedTypes();
    const bool may_be_none = c10::NoneType::get()->isSubtypeOf(*from);
    return (!may_be_none || is_told_apart(to)) &&
           std::all_of(parts.begin(), parts.end(), [&](const auto& part) { return can_be_taken_for(part, to); });
  }
  return is_told_apart(from) && is_told_apart(to) && from->kind() != to->kind();
}

class Graphs {
 public:
  Graphs(const AllowedOperators& allowed, SharedCounts& counts) : allowed_(allowed), counts_(counts) {}

  void look_at(jit::Function& function) {
    const auto* const compiled = jit::tryToGraphFunction(function);
    if (compiled == nullptr) return;
    caller_ = &function;
    look_at(*compiled->graph()->block());
  }

  void look_at(const c10::TypePtr& type) {
    if (depth_of(type) > most_deep_types) refuse("its types are nested too deep");
  }

  // The compiler, and whoever destroys a type, goes as deep again, on a stack that is not ours.
  void check_depth() {
    for (const auto& [caller, callees] : callees_)
      if (depth_of(caller) > most_deep_calls) refuse("its functions call each other too deep");
  }

 private:
  static constexpr int most_deep_calls = 200, most_deep_types = 200;

  void look_at(jit::Block& block) {
    for (const jit::Value* const input : block.inputs()) look_at(input->type());
    for (jit::Node* const node : block.nodes()) {
      look_at(*node);
      for (const jit::Value* const output : node->outputs()) look_at(output->type());
      for (jit::Block* const inner : node->blocks()) look_at(*inner);
      for (const auto attribute : node->attributeNames())
        if (node->kindOf(attribute) == jit::AttributeKind::g) look_at(*node->g(attribute)->block());
    }
  }

  void look_at(jit::Node& node) {
    const std::string library = node.kind().ns().toUnqualString(), name = node.kind().toUnqualString();
    if (node.kind() == c10::prim::unchecked_cast) return look_at_cast(node);
    if (node.kind() == c10::prim::Constant) return look_at_constant(node);
    if (library == "prim") {
      look_at_call(node);
      for (const char* const refused : {"data", "id"})
        if (name == refused && !allowed_.has(library, name)) refuse_operator(library, name);
      return;
    }
    if (!allowed_.has(library, name)) refuse_operator(library, name);
    if (library == "aten") look_at_overload(node, name);
    if (library == "spikeforge") look_at_ours(node, name);
  }

  int depth_of(const c10::TypePtr& type) {
    const auto [found, is_new] = depth_of_types_.try_emplace(type.get(), 0);
    if (!is_new) return found->second;
    int deepest = 0;
    for (const c10::TypePtr& part : type->containedTypes()) deepest = std::max(deepest, depth_of(part));
    if (const auto of_class = type->cast<c10::ClassType>())
      for (std::size_t i = 0; i < of_class->numAttributes(); ++i)
        deepest = std::max(deepest, depth_of(of_class->getAttribute(i)));
    return depth_of_types_[type.get()] = deepest + 1;
  }

  void look_at_call(const jit::Node& node) {
    if (node.kind() == c10::prim::CallFunction)
      callees_[caller_].push_back(node.input(0)->type()->expectRef<c10::FunctionType>().function());
    if (node.kind() != c10::prim::CallMethod) return;
    if (const auto of_class = node.input(0)->type()->cast<c10::ClassType>())
      if (jit::Function* const method = of_class->findMethod(node.s(c10::attr::name)))
        callees_[caller_].push_back(method);
  }
  int depth_of(jit::Function* function) {
    const auto [found, is_new] = depth_of_functions_.try_emplace(function, 0);
    if (!is_new) return found->second;
    int deepest = 0;
    if (const auto calls = callees_.find(function); calls != callees_.end())
      for (jit::Function* const callee : calls->second) deepest = std::max(deepest, depth_of(callee));
    return depth_of_functions_[function] = deepest + 1;
  }

  void look_at_constant(const jit::Node& node) {
    if (node.hasAttribute(c10::attr::value) && node.kindOf(c10::attr::value) == jit::AttributeKind::t)
      counts_.share(node.t(c10::attr::value));
  }

  static void look_at_cast(const jit::Node& node) {
    const c10::TypePtr from = node.input(0)->type(), to = node.output()->type();
    if (!can_be_taken_for(from, to))
      refuse(
          printable("its source casts " + from->annotation_str() + " to " + to->annotation_str() + " without a check",
                    Lines::one, 400));
  }

  // By the order of NaN, or of a class's own, torch sorts a list beyond its ends.
  static void look_at_overload(const jit::Node& node, const std::string& name) {
    const bool sorts = name == "sort" || name == "msort" || name == "argsort";
    if (sorts && node.input(0)->type()->kind() != TypeKind::TensorType) refuse("its source sorts a list");
  }

  static void look_at_ours(jit::Node& node, const std::string& name) {
    const auto* const schema = node.maybeSchema();
    if (schema == nullptr) refuse_operator("spikeforge", name);
    const auto place = schema->argumentIndexWithName("unchecked");
    if (!place) return;
    const auto value = jit::toIValue(node.input(static_cast<std::size_t>(*place)));
    if (!value || !value->isBool() || value->toBool())
      refuse("it calls spikeforge::" + name + " with unchecked, which a stranger cannot vouch for");
  }

  [[noreturn]] static void refuse_operator(const std::string& library, const std::string& name) {
    refuse("it calls " + printable(library + "::" + name, Lines::one, 200) +
           ", which is not among the operators that a stranger's file may call");
  }

  const AllowedOperators& allowed_;
  SharedCounts& counts_;
  jit::Function* caller_ = nullptr;
  std::unordered_map<jit::Function*, std::vector<jit::Function*>> callees_;
  std::unordered_map<jit::Function*, int> depth_of_functions_;
  std::unordered_map<const c10::Type*, int> depth_of_types_;
};

}  // namespace

void check_compiled(const torch::jit::Module& module, const std::vector<std::string>& classes,
                    const AllowedOperators& allowed, SharedCounts& counts) {
  Graphs graphs(allowed, counts);
  const auto unit = module._ivalue()->compilation_unit();
  for (jit::Function* const function : unit->get_functions()) graphs.look_at(*function);
  for (const std::string& name : classes)
    if (const c10::TypePtr type = unit->get_type(c10::QualifiedName(name))) graphs.look_at(type);
  graphs.check_depth();
}

}  // namespace spikeforge::torchscript
