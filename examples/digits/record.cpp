#include "record.h"

#include <ATen/ops/nonzero.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "error.h"

namespace {

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.flush();
  if (!file) throw UserError(fmt::format("cannot write {}: {}", path, std::strerror(errno)));
}

// A tensor of one or two dimensions as JSON lists.
std::string json(const at::Tensor& tensor) {
  if (tensor.dim() == 0) return fmt::format("{:g}", tensor.item<double>());
  std::string list;
  for (int64_t i = 0; i < tensor.size(0); ++i) list += fmt::format("{}{}", i ? "," : "", json(tensor[i]));
  return fmt::format("[{}]", list);
}

}  // namespace

void check_writable(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw UserError(fmt::format("cannot make the folder {}: {}", folder, error.message()));
  const std::string probe = folder + "/.writable";
  write_file(probe, "");
  std::filesystem::remove(probe, error);
}

void write_learning_curve(const std::string& path, const std::vector<Epoch>& epochs) {
  std::string text = "epoch,train_loss,train_accuracy,test_loss,test_accuracy,samples_per_second\n";
  for (const Epoch& e : epochs) {
    text += fmt::format("{},{:.6f},{:.6f},{:.6f},{:.6f},{:.1f}\n", e.number, e.train_loss, e.train_accuracy,
                        e.test_loss, e.test_accuracy, e.samples_per_second);
  }
  write_file(path, text);
}

void write_raster(const std::string& path, const Raster& raster) {
  std::string layers;
  for (const Layer& layer : raster.layers) {
    if (!layers.empty()) layers += ",\n";
    layers += fmt::format(R"(  {{"name": "{}", "neurons": {}, "spikes": {}}})", layer.name, layer.spikes.size(1),
                          json(layer.spikes.nonzero()));
  }
  const at::Tensor& output = raster.layers.back().spikes;
  write_file(path,
             fmt::format("{{\"label\": {}, \"steps\": {},\n\"image\": {},\n\"counts\": {},\n\"layers\": [\n{}\n]}}\n",
                         raster.label, output.size(0), json(raster.image), json(output.sum(0)), layers));
}
