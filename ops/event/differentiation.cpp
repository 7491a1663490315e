#include <spikeforge/ops/event/differentiation.h>

#include <ATen/core/grad_mode.h>

namespace spikeforge::ops::sparse {

bool is_differentiated(const at::Tensor& t) {
  return (at::GradMode::is_enabled() && t.requires_grad()) || t._fw_grad(/*level=*/0).defined();
}

void save_form(torch::autograd::AutogradContext* ctx, const Form& form) {
  ctx->saved_data["rows"] = form.rows;
  ctx->saved_data["cols"] = form.cols;
  ctx->saved_data["transpose"] = form.transpose;
  ctx->saved_data["matrix"] = form.matrix;
  ctx->saved_data["values"] = std::string(name_of(form.values));
  ctx->saved_data["deterministic"] = form.deterministic;
}

Form saved_form(torch::autograd::AutogradContext* ctx) {
  const auto& data = ctx->saved_data;
  return {data.at("rows").toSymInt(),
          data.at("cols").toSymInt(),
          data.at("transpose").toBool(),
          data.at("matrix").toBool(),
          parse_values(data.at("values").toStringRef()),
          data.at("deterministic").toBool()};
}

Form transposed(Form form) {
  form.transpose = !form.transpose;
  form.values = Values::number;
  return form;
}

}  // namespace spikeforge::ops::sparse
