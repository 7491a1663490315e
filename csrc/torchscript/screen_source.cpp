#include "csrc/torchscript/internal/screen_source.h"
#include "csrc/base/printable.h"
#include "csrc/torchscript/internal/archive.h"
#include "csrc/torchscript/screened.h"

#include <c10/util/Exception.h>
#include <torch/csrc/jit/frontend/parser.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace spikeforge::torchscript {
namespace {

namespace jit = torch::jit;

std::unordered_set<std::string> words_of(const char* text, std::unordered_set<std::string> words) {
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.insert(word);
  return words;
}

const std::unordered_set<std::string>& operators_of_torch() {
  static const auto all = [] {
    std::unordered_set<std::string> names;
#define SPIKEFORGE_OPERATORS(title, text) names = words_of(text, std::move(names));
#include "csrc/torchscript/operators.def"
    return names;
  }();
  return all;
}

// What a saved script writes for properties of tensors, and for what the language does by itself.
const std::unordered_set<std::string>& operators_of_the_language() {
  static const std::unordered_set<std::string> all = words_of(
      "EnumName EnumValue NumToTensor RaiseException StringIndex TupleIndex abs device dtype grad is_cpu is_cuda "
      "is_meta "
      "is_mkldnn is_mps is_nested is_quantized is_sparse is_sparse_csr is_xpu itemsize layout max min name nbytes "
      "raise "
      "rangelist requires_grad type unchecked_unwrap_optional",
      {});
  return all;
}

bool exists(const std::string& library, const std::string& name) {
  return !jit::getAllOperatorsFor(c10::Symbol::fromQualString(library + "::" + name)).empty();
}

bool is_tensors(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return true;
  return std::any_of(type->containedTypes().begin(), type->containedTypes().end(), is_tensors);
}

// Those that compute take or give tensors; the others tell the library where its files are. What public operators are
// lowered to trusts its arguments more.
bool is_ours(const std::string& name) {
  for (const char* lowered : {"_forward", "_backward", "_product", "_grad", "_deliver", "_deliver_"})
    if (name.ends_with(lowered)) return false;
  const auto all = jit::getAllOperatorsFor(c10::Symbol::fromQualString("spikeforge::" + name));
  return !all.empty() && std::all_of(all.begin(), all.end(), [](const auto& one) {
    const auto has_tensors = [](const c10::Argument& argument) { return is_tensors(argument.type()); };
    const auto& schema = one->schema();
    return std::any_of(schema.arguments().begin(), schema.arguments().end(), has_tensors) ||
           std::any_of(schema.returns().begin(), schema.returns().end(), has_tensors);
  });
}

// --- Before the parser and the compiler, which are recursive: how deep they will go.

constexpr std::size_t most_deep = 500, most_indents = 100;

// One operator more in an expression is one level more, to the left or to the right; so is a member, and an elif.
bool goes_deeper(int kind) {
  static const std::unordered_set<int> signs = {'+',
                                                '-',
                                                '*',
                                                '/',
                                                '%',
                                                '@',
                                                '<',
                                                '>',
                                                '~',
                                                '&',
                                                '|',
                                                '^',
                                                '.',
                                                '(',
                                                '[',
                                                '{',
                                                jit::TK_POW,
                                                jit::TK_AND,
                                                jit::TK_OR,
                                                jit::TK_NOT,
                                                jit::TK_EQ,
                                                jit::TK_NE,
                                                jit::TK_LE,
                                                jit::TK_GE,
                                                jit::TK_IS,
                                                jit::TK_IF,
                                                jit::TK_ELSE,
                                                jit::TK_FOR,
                                                jit::TK_IN,
                                                jit::TK_ISNOT,
                                                jit::TK_FLOOR_DIV,
                                                jit::TK_LSHIFT,
                                                jit::TK_RSHIFT};
  return signs.contains(kind);
}

// Returns the levels of all definitions.
std::size_t check_depth(const std::shared_ptr<jit::Source>& source) {
  jit::Lexer lexer(source);
  std::vector<std::size_t> levels = {0};  // of the statement and of the brackets that are open
  std::size_t deep = 0, indents = 0, elifs = 0, all = 0, deepest = 0;
  for (; lexer.cur().kind != jit::TK_EOF; lexer.next()) {
    const int kind = lexer.cur().kind;
    if (kind == jit::TK_NEWLINE || kind == jit::TK_INDENT || kind == jit::TK_DEDENT) {
      levels = {0};
      deep = 0;
      if (kind == jit::TK_INDENT) ++indents;
      if (kind == jit::TK_DEDENT && indents > 0) --indents;
    }
    if (kind == jit::TK_DEF) elifs = 0;
    if (kind == jit::TK_DEF || kind == jit::TK_CLASS_DEF) all += std::exchange(deepest, 0) + 1;
    if (kind == jit::TK_ELIF) ++elifs;
    const bool closes = kind == ')' || kind == ']' || kind == '}';
    if (kind == ',' || closes) {  // what follows stands beside what came before
      deep -= levels.back();
      levels.back() = 0;
    }
    if (closes && levels.size() > 1) levels.pop_back();
    if (goes_deeper(kind)) {
      ++levels.back();
      ++deep;
    }
    if (kind == '(' || kind == '[' || kind == '{') levels.push_back(0);
    if (deep > most_deep || indents > most_indents || elifs > most_deep) refuse("its source is nested too deep");
    deepest = std::max(deepest, deep + indents + elifs);
  }
  return all + deepest;
}

// --- The tree

class Screen {
 public:
  explicit Screen(const AllowedOperators& allowed) : allowed_(allowed) {}

  void look_at(const jit::TreeRef& tree) {
    switch (tree->kind()) {
      case '.':
        return look_at_member(tree);
      case jit::TK_VAR:
        return look_at_name(jit::Var(tree).name().name());
      case jit::TK_APPLY:
        return look_at_call(jit::Apply(tree));
      case jit::TK_STRINGLITERAL:  // which a type may be written as
        if (jit::StringLiteral(tree).text().find("torch.classes") != std::string::npos)
          refuse("its source names a class that is written in C++");
        return;
      default:
        break;
    }
    for (const jit::TreeRef& part : tree->trees()) look_at(part);
    look_at_statement(tree);
  }

 private:
  static void look_at_statement(const jit::TreeRef& tree) {
    if (tree->kind() == jit::TK_DEF) return look_at_setstate(jit::Def(tree));
    if (tree->kind() == jit::TK_DECL) return look_at_type(jit::Decl(tree).return_type());
    if (tree->kind() == jit::TK_ASSIGN) return look_at_type(jit::Assign(tree).type());
    if (tree->kind() == jit::TK_PARAM) {
      look_at_type(jit::Param(tree).type());
      return look_at_value(jit::Param(tree).defaultValue());
    }
    if (tree->kind() == jit::TK_CLASS_DEF)
      for (const jit::Stmt& statement : jit::ClassDef(tree).body())
        if (statement.kind() == jit::TK_ASSIGN) look_at_attribute(jit::Assign(statement.tree()));
  }

  // torch reads text as a type, which nothing here looks into.
  static void look_at_type(const jit::Maybe<jit::Expr>& type) {
    if (type.present()) look_at_type(type.get().tree());
  }
  static void look_at_type(const jit::TreeRef& type) {
    if (type->kind() == jit::TK_STRINGLITERAL) refuse("its source has a type that is written as text");
    for (const jit::TreeRef& part : type->trees()) look_at_type(part);
  }

  // Default values, and what stands in a class, are computed while the file is loaded.
  static void look_at_value(const jit::Maybe<jit::Expr>& value) {
    if (value.present() && !is_literal(value.get().tree()))
      refuse("its source computes a default value, or one of a class");
  }
  static void look_at_attribute(const jit::Assign& assign) {
    const bool is_type = assign.lhs_list()[0].kind() == jit::TK_SUBSCRIPT;  // __annotations__["0"] = int
    is_type ? look_at_type(assign.rhs()) : look_at_value(assign.rhs());
  }
  static bool is_literal(const jit::TreeRef& tree) {
    static const std::unordered_set<int> plain = {jit::TK_CONST, jit::TK_STRINGLITERAL, jit::TK_TRUE, jit::TK_FALSE,
                                                  jit::TK_NONE};
    static const std::unordered_set<std::string> numbers = words_of("inf nan infj nanj", {});
    const auto are_literals = [](const auto& trees) {
      return std::all_of(trees.begin(), trees.end(), [](const auto& one) { return is_literal(one); });
    };
    switch (tree->kind()) {
      case jit::TK_VAR:
        return numbers.contains(jit::Var(tree).name().name());
      case '.': {
        const auto words = words_of_path(tree);
        return words && words->size() == 2 && (*words)[0] == "CONSTANTS";
      }
      case jit::TK_UNARY_MINUS:
      case jit::TK_LIST_LITERAL:
      case jit::TK_TUPLE_LITERAL:
      case jit::TK_DICT_LITERAL:
      case jit::TK_LIST:
        return are_literals(tree->trees());
      case jit::TK_APPLY: {  // annotate(List[int], []), torch.device("cpu")
        const jit::Apply call(tree);
        const auto words = words_of_path(call.callee().tree());
        const auto inputs = call.inputs().tree()->trees();
        if (!words || call.attributes().size() != 0) return false;
        if (*words == std::vector<std::string>{"annotate"}) return inputs.size() == 2 && is_literal(inputs[1]);
        return *words == std::vector<std::string>{"torch", "device"} && are_literals(inputs);
      }
      default:
        return plain.contains(tree->kind());
    }
  }

  // A name that stands alone. torch, ops and __torch__ do not: what they lead to is looked at as a whole.
  static void look_at_name(const std::string& name) {
    for (const char* const refused : {"torch", "ops", "__torch__", "print", "fork", "awaitable", "getattr"})
      if (name == refused) refuse("its source uses " + name + " in a way that saved source does not");
  }

  // The words of a.b.c; nothing where it does not begin with a name.
  static std::optional<std::vector<std::string>> words_of_path(jit::TreeRef tree) {
    std::vector<std::string> words;
    while (tree->kind() == '.') {
      const jit::Select select(tree);
      words.push_back(select.selector().name());
      tree = select.value().tree();
    }
    if (tree->kind() != jit::TK_VAR) return std::nullopt;
    words.push_back(jit::Var(tree).name().name());
    std::reverse(words.begin(), words.end());
    return words;
  }

  void look_at_member(const jit::TreeRef& tree) {
    if (const auto words = words_of_path(tree)) {
      const std::vector<std::string>& path = *words;
      if (path[0] == "torch") return check_operator(path, {"aten"}, 1);
      if (path[0] == "ops") return check_operator(path, path.size() > 1 ? path[1] : "", 2);
      if (path[0] == "__torch__") return check_class(path);
    }
    // Of a value: an attribute or a method, or else an operator that takes it first.
    const jit::Select select(tree);
    const std::string name = select.selector().name();
    if (exists("aten", name) && !allowed_.has("aten", name)) refuse_operator("aten", name);
    look_at(select.value().tree());
  }

  void check_operator(const std::vector<std::string>& path, const std::string& library, std::size_t place) const {
    if (path.size() != place + 1) refuse("its source uses " + path[0] + " in a way that saved source does not");
    if (!allowed_.has(library, path[place])) refuse_operator(library, path[place]);
  }

  static void check_class(const std::vector<std::string>& path) {
    if (path.size() > 2 && path[1] == "torch" && path[2] == "classes")
      refuse("it uses a class that is written in C++, " + (path.size() > 3 ? path.back() : ""));
  }

  [[noreturn]] static void refuse_operator(const std::string& library, const std::string& name) {
    const std::string shown = printable(library + "::" + name, Lines::one, 200);
    if (library != "aten" && library != "prim" && library != "spikeforge")
      refuse("it calls " + shown + ", which is neither of torch nor of spikeforge");
    if (!exists(library, name)) refuse("it calls " + shown + ", which does not exist");
    refuse("it calls " + shown + ", which is not among the operators that a stranger's file may call");
  }

  void look_at_call(const jit::Apply& call) {
    const jit::TreeRef callee = call.callee().tree();
    const std::string name = callee->kind() == jit::TK_VAR ? jit::Var(callee).name().name() : "";
    if (name == "getattr")
      check_getattr(call);
    else
      look_at(callee);
    check_types(name, call);
    for (const jit::TreeRef& argument : call.inputs().tree()->trees()) look_at(argument);
    for (const jit::TreeRef& argument : call.attributes().tree()->trees()) look_at(argument);
  }

  // Written for members whose names are no words, as a Sequential's, and so are no operators'.
  static void check_getattr(const jit::Apply& call) {
    const auto arguments = call.inputs();
    const bool is_plain =
        arguments.size() == 2 && call.attributes().size() == 0 && arguments[1].kind() == jit::TK_STRINGLITERAL;
    if (!is_plain) refuse("its source uses getattr in a way that saved source does not");
    const std::string name = jit::StringLiteral(arguments[1].tree()).text();
    const auto is_letter = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
    if (name.empty() ||
        (std::isdigit(static_cast<unsigned char>(name[0])) == 0 && std::all_of(name.begin(), name.end(), is_letter)))
      refuse("its source uses getattr for " + printable(name, Lines::one, 200) + ", which could be an operator");
  }

  static void check_types(const std::string& name, const jit::Apply& call) {
    const auto inputs = call.inputs().tree()->trees();
    if ((name == "annotate" || name == "unchecked_cast" || name == "uninitialized") && !inputs.empty())
      look_at_type(inputs[0]);
    if (name == "isinstance" && inputs.size() > 1) look_at_type(inputs[1]);
    if (name == "unchecked_cast") check_cast(call);
  }

  // One object taken for another's class is read beyond its end, and so is a tuple taken for a longer one. What values
  // are cast is known once they are compiled (check_compiled.h); but what is made of numbers and text alone is computed
  // by the compiler, before that.
  static void check_cast(const jit::Apply& call) {
    if (call.inputs().size() == 0) return;
    const jit::TreeRef type = call.inputs()[0].tree();
    if (names_class(type)) refuse("its source casts to a class without a check");
    if (names_one_of(type, {"Tuple"}) && !names_one_of(type, {"Tensor", "List", "Dict"}))
      refuse("its source casts to a tuple of numbers without a check");
  }
  static bool names_one_of(const jit::TreeRef& type, const std::unordered_set<std::string>& names) {
    if (type->kind() == jit::TK_VAR) return names.contains(jit::Var(type).name().name());
    return std::any_of(type->trees().begin(), type->trees().end(),
                       [&](const jit::TreeRef& part) { return names_one_of(part, names); });
  }
  static bool names_class(const jit::TreeRef& type) {
    static const std::unordered_set<std::string> plain =
        words_of("Tensor int float bool str number complex Device NoneType Optional List Dict Tuple", {});
    if (type->kind() == '.') return true;
    if (type->kind() == jit::TK_VAR) return !plain.contains(jit::Var(type).name().name());
    return std::any_of(type->trees().begin(), type->trees().end(), names_class);
  }

  // It runs while the file is loaded, before what was loaded can be compared with its classes. So it may only set
  // attributes, to what it was given or to new tensors.
  static void look_at_setstate(const jit::Def& def) {
    if (def.name().name() != "__setstate__") return;
    for (const jit::Stmt& statement : def.statements()) {
      if (statement.kind() == jit::TK_RETURN) {
        if (!is_harmless(jit::Return(statement.tree()).expr().tree())) refuse_setstate();
        continue;
      }
      if (statement.kind() != jit::TK_ASSIGN) refuse_setstate();
      const jit::Assign assign(statement.tree());
      for (const jit::Expr& target : assign.lhs_list()) {
        const auto words = target.kind() == '.' ? words_of_path(target.tree()) : std::nullopt;
        const bool is_attribute = words && words->size() == 2 && (*words)[0] == "self";
        if (!is_attribute && target.kind() != jit::TK_VAR) refuse_setstate();
      }
      if (!assign.rhs().present() || !is_harmless(assign.rhs().get().tree())) refuse_setstate();
    }
  }
  [[noreturn]] static void refuse_setstate() {
    refuse("its source has a __setstate__ that does more than set attributes");
  }

  static bool is_harmless(const jit::TreeRef& tree) {
    if (tree->kind() == '.') {
      const auto words = words_of_path(tree);
      static const std::unordered_set<std::string> makers = words_of("empty zeros ones full device", {});
      return words && words->size() == 2 && (*words)[0] == "torch" && makers.contains((*words)[1]);
    }
    static const std::unordered_set<int> plain = {
        jit::TK_VAR,   jit::TK_APPLY,  jit::TK_LIST,       jit::TK_LIST_LITERAL,  jit::TK_CONST,
        jit::TK_NONE,  jit::TK_TRUE,   jit::TK_FALSE,      jit::TK_STRINGLITERAL, jit::TK_ATTRIBUTE,
        jit::TK_IDENT, jit::TK_STRING, jit::TK_UNARY_MINUS};
    const bool calls_a_name = tree->kind() == jit::TK_APPLY && tree->tree(0)->kind() != '.';
    if (!plain.contains(tree->kind()) || calls_a_name) return false;
    return std::all_of(tree->trees().begin(), tree->trees().end(), is_harmless);
  }

  const AllowedOperators& allowed_;
};

}  // namespace

bool AllowedOperators::has(const std::string& library, const std::string& name) const {
  if (std::find(beyond_.begin(), beyond_.end(), library + "::" + name) != beyond_.end()) return true;
  if (library == "spikeforge") return is_ours(name);
  if (library == "prim") return operators_of_the_language().contains(name);
  if (library != "aten") return false;
  const bool in_place = name.ends_with('_') && !name.ends_with("__");
  return operators_of_torch().contains(name) ||
         (in_place && operators_of_torch().contains(name.substr(0, name.size() - 1)));
}

Definitions screen_source(const std::string& source, const AllowedOperators& allowed) {
  if (!source.ends_with('\n')) refuse("its source does not end with a line");  // torch's lexer looks one sign further
  try {
    const auto text = std::make_shared<jit::Source>(source);
    Definitions definitions{.levels = check_depth(text), .classes = {}};
    Screen screen(allowed);
    // As torch's importer reads it: a version, imports of other records, classes and functions.
    jit::Parser parser(text);
    jit::Lexer& lexer = parser.lexer();
    if (lexer.cur().kind == jit::TK_IDENT && lexer.cur().text() == "op_version_set")
      while (lexer.next().kind != jit::TK_NEWLINE) {
      }
    while (lexer.cur().kind != jit::TK_EOF) {
      if (lexer.nextIf(jit::TK_IMPORT)) {
        while (lexer.next().kind != jit::TK_NEWLINE) {
        }
      } else if (lexer.cur().kind == jit::TK_CLASS_DEF) {
        const jit::TreeRef definition = parser.parseClass();
        screen.look_at(definition);
        definitions.classes.push_back(jit::ClassDef(definition).name().name());
      } else if (lexer.cur().kind == jit::TK_DEF) {
        screen.look_at(parser.parseFunction(/*is_method=*/false));
      } else {
        refuse("its source has something else than classes and functions");
      }
    }
    return definitions;
  } catch (const ScreeningError&) {
    throw;
  } catch (const std::exception& error) {  // of the lexer and of the parser
    const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
    std::string words = of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
    words.erase(0, std::min(words.find_first_not_of('\n'), words.size()));
    refuse("its source is no TorchScript: " + printable(words.substr(0, words.find('\n'))));
  }
}

}  // namespace spikeforge::torchscript
