#include "ns_dist/cuda_graphs.h"

#include <fmt/format.h>

namespace ns_dist {

CudaGraphs graphs_of_layers(const Model& model) {
  CudaGraphs graphs;
  const auto add = [&graphs](LayerModule module) { graphs.modules |= set_of(module); };
  add(LayerModule::kAttention);
  if (model.state_space) add(LayerModule::kMamba);
  if (!model.moe || model.moe->first_dense_layers > 0 || model.moe->layers != Experts{}.layers) add(LayerModule::kMlp);
  if (model.moe) add(LayerModule::kMoeRouter), add(LayerModule::kMoePreprocess);
  return graphs;
}

Result<void> read_field(const Field& field, std::string_view text, CudaGraphs& value) {
  CudaGraphs read;
  if (bool step = false; read_field(field, text, step)) {
    read.step = step;
  } else {
    NS_TRY(read.modules, read_set(field, text, names_of<LayerModule>(), "off, on, or MODULE,MODULE..."));
  }
  if (read.records(LayerModule::kMoePreprocess) && !read.records(LayerModule::kMoeRouter)) {
    return fail({ErrorCode::kInvalidInput, "a graph of moe_preprocess begins with moe_router", std::string(field.name),
                 "moe_router beside moe_preprocess", fmt::format("write {}=moe_router,{}", field.name, text)});
  }
  value = read;
  return {};
}

std::string field_text(const CudaGraphs& value) {
  return value.modules == 0 ? field_text(value.step) : set_text(value.modules, names_of<LayerModule>());
}

}  // namespace ns_dist
