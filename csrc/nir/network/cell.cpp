#include "csrc/nir/network/cell.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spikeforge::nir {
namespace {

class CellText {
 public:
  explicit CellText(const CellOptions& options) : options_(options) {}

  void operator()(const Scale& n) {
    add("scale", n.scale);
    line("return x * scale");
  }

  void operator()(const Threshold& n) {
    add("threshold", n.threshold);
    line("return {}", spike("x - threshold"));
  }

  void operator()(const I& n) {
    add("r", n.r);
    states_ = "v";
    line("h = v + {} * r * x", dt());
    integrate();
  }

  void operator()(const LI& n) {
    membrane(n, "tau", n.tau, "x");
    integrate();
  }

  void operator()(const IF& n) {
    add("r", n.r);
    states_ = "v";
    line("{} = v + {}r * x", charged(n), options_.if_scaling == IfScaling::ode ? dt() + " * " : "");
    fire(n);
  }

  void operator()(const LIF& n) {
    membrane(n, "tau", n.tau, "x");
    fire(n);
  }

  void operator()(const CubaLI& n) {
    current(n);
    integrate();
  }

  void operator()(const CubaLIF& n) {
    current(n);
    fire(n);
  }

  // Others are modules, or no computation.
  template <class N> void operator()(const N&) {}

  Cell cell(std::string_view name) {
    std::string names;
    for (const auto& param : cell_.params) names += fmt::format("{}{}", names.empty() ? "" : ", ", param.first);
    cell_.text = fmt::format("neuron {}(x; {}; {}) {{\n{}}}\n", name, states_, names, body_);
    return std::move(cell_);
  }
  bool is_empty() const { return body_.empty(); }

 private:
  template <class... Arguments> void line(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    body_ += "  " + fmt::format(format, std::forward<Arguments>(arguments)...) + "\n";
  }
  void add(std::string_view name, const Array& array) { cell_.params.emplace_back(name, array); }

  std::string dt() const { return fmt::format("{}", options_.dt); }
  bool is_delayed() const {
    return options_.reset == Reset::subtract_delayed || options_.reset == Reset::subtract_twice;
  }
  bool fires_at_threshold() const { return options_.comparison == Comparison::ge; }
  // The name of the membrane before a delayed reset, if the neuron fires.
  template <class N> std::string_view charged(const N& n) const {
    return requires { n.v_threshold; }
    &&is_delayed() ? "u" : "h";
  }

  std::string spike(std::string_view at) const {
    const Surrogate& surrogate = options_.surrogate;
    return fmt::format("{}({}, {}{})", fires_at_threshold() ? "spike" : "spike_strict", at, surrogate.name,
                       surrogate.args.empty() ? "" : fmt::format("({})", fmt::join(surrogate.args, ", ")));
  }

  // tau dv/dt = (v_leak - v) + r i
  template <class N> void membrane(const N& n, std::string_view tau, const Array& value, std::string_view input) {
    add(tau, value);
    add("r", n.r);
    add("v_leak", n.v_leak);
    if (states_.empty()) states_ = "v";
    line("{} = v + {} / {} * (v_leak - v + r * {})", charged(n), dt(), tau, input);
  }

  // tau_syn di/dt = -i + w_in x
  template <class N> void current(const N& n) {
    states_ = "v, i";
    add("tau_syn", n.tau_syn);
    if (n.w_in) add("w_in", *n.w_in);
    line("j = i + {} / tau_syn * ({} - i)", dt(), n.w_in ? "w_in * x" : "x");
    line("i' = j");
    membrane(n, "tau_mem", n.tau_mem, options_.cuba_current == CubaCurrent::updated ? "j" : "i");
  }

  void integrate() {
    line("return h");
    line("v' = h");
  }

  template <class N> void fire(const N& n) {
    add("v_threshold", n.v_threshold);
    const std::string_view above = fires_at_threshold() ? ">=" : ">";
    if (is_delayed()) line("h = where(v {} v_threshold, u - v_threshold, u)", above);
    line("s = {}", spike("h - v_threshold"));
    line("return s");
    switch (options_.reset) {
      case Reset::file:
        if (n.v_reset) add("v_reset", *n.v_reset);
        line("v' = select(s, {}, h)", n.v_reset ? "v_reset" : "0");
        break;
      case Reset::zero: line("v' = select(s, 0, h)"); break;
      case Reset::subtract: line("v' = select(s, h - v_threshold, h)"); break;
      case Reset::subtract_delayed: line("v' = h"); break;
      case Reset::subtract_twice:
        line("v' = where(v {} v_threshold, select(s, h, h + v_threshold), select(s, h - v_threshold, h))", above);
        break;
    }
  }

  const CellOptions& options_;
  Cell cell_;
  std::string states_, body_;
};

}  // namespace

std::optional<Cell> cell_of(const Kind& kind, const CellOptions& options) {
  CellText text(options);
  return std::visit(
      [&]<class N>(const N& n) -> std::optional<Cell> {
        text(n);
        if (text.is_empty()) return {};
        return text.cell(N::type);
      },
      kind);
}

}  // namespace spikeforge::nir
