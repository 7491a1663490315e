#include "csrc/cpu/multistep/print_tapes.h"
#include "csrc/codegen/lines.h"
#include "csrc/graph/internal/number_text.h"

#include <string_view>
#include <vector>

namespace spikeforge::cpu {
namespace {

using codegen::Lines;

std::string_view function_of(const Instruction& instruction) {
  switch (instruction.multiply_add) {
    case MultiplyAdd::sum: return "multiply_add";
    case MultiplyAdd::minus_product: return "subtract_product";
    case MultiplyAdd::minus_addend: return "product_less";
    case MultiplyAdd::no: break;
  }
  return graph::info(instruction.op).name;
}

// Prints a tape as a function, in which each row is a local r<row>.
void print(Lines& line, const Tape& tape, const std::string& function) {
  std::vector<bool> is_read(tape.rows());
  for (const Instruction& instruction : tape.instructions)
    for (int i = 0; i < operands_of(instruction); ++i) is_read[instruction.operands[i]] = true;
  const auto is_argument = [&](std::uint32_t row) { return row < tape.arguments; };

  line("");
  line("extern \"C\" SPIKEFORGE_SEEN void {}(const void* given, std::int64_t begin, std::int64_t end) {{", function);
  line("  [[maybe_unused]] const auto* const rows = static_cast<const Row<T>*>(given);");
  for (std::uint32_t row = 0; row < tape.constant(0); ++row)
    if (!is_argument(row) || is_read[row]) line("  const Row<T> row{0} = rows[{0}];", row);
  for (std::uint32_t row = tape.constant(0); row < tape.temporary(0); ++row)
    if (is_read[row]) line("  const V r{0} = V::loadu(rows[{0}].data);", row);
  line("  for (std::int64_t at = begin; at < end; at += V::size()) {{");
  for (std::uint32_t row = 0; row < tape.arguments; ++row)
    if (is_read[row]) line("    const V r{0} = V::loadu(row{0}.data + at * row{0}.step);", row);
  std::vector<bool> is_declared(tape.rows());
  int surrogates = 0;
  for (const Instruction& instruction : tape.instructions) {
    std::string call;
    if (instruction.op == graph::Op::surrogate_gradient) {
      std::string args;
      for (const double arg : instruction.surrogate_args)
        args += fmt::format("{}{}", args.empty() ? "" : ", ", graph::text_of(arg));
      line("    constexpr double args{}[] = {{{}}};", surrogates, args);
      call = fmt::format("surrogate_gradient<T, {}>(r{}, args{})", struct_of(instruction.surrogate),
                         instruction.operands[0], surrogates++);
    } else {
      for (int i = 0; i < operands_of(instruction); ++i)
        call += fmt::format("{}r{}", i == 0 ? "" : ", ", instruction.operands[i]);
      call = fmt::format("Operations<T>::{}({})", function_of(instruction), call);
    }
    line("    {}r{} = {};", is_declared[instruction.result] ? "" : "V ", instruction.result, call);
    is_declared[instruction.result] = true;
  }
  for (std::size_t k = 0; k < tape.results; ++k) line("    r{0}.store(row{0}.data + at);", tape.result(k));
  line("  }}");
  line("}}");
}

}  // namespace

std::string print_tapes(std::span<const NamedTape> tapes, DType type) {
  Lines line;
  line("#include <spikeforge/cpu/operations.h>");
  line("");
  line("#define SPIKEFORGE_SEEN __attribute__((visibility(\"default\")))");
  line("");
  line("namespace spikeforge::cpu {{");
  line("using T = {};", type == DType::f64 ? "double" : "float");
  line("using V = at::vec::Vectorized<T>;");
  for (const NamedTape& tape : tapes) print(line, *tape.tape, tape.function);
  line("}}  // namespace spikeforge::cpu");
  return line.take();
}

}  // namespace spikeforge::cpu
