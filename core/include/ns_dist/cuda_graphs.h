// What recorded CUDA graphs launch in place of the host.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "ns_dist/fields.h"
#include "ns_dist/model.h"

namespace ns_dist {

// The part of a layer that a kernel or collective belongs to, as Megatron-Core's graphs are divided, with its names
// (docs/user-guide/features/cuda_graph.md, --cuda-graph-modules). kMoe: all of the experts' layer but the two before.
enum class LayerModule : std::uint8_t { kAttention, kMamba, kMlp, kMoeRouter, kMoePreprocess, kMoe };
template <>
inline constexpr auto kEnumeratorNames<LayerModule> =
    std::to_array<std::string_view>({"attn", "mamba", "mlp", "moe_router", "moe_preprocess", "moe"});

// Nothing ("off"), the whole step ("on"), or modules of each layer ("attn,moe_router"), whose neighbors share a graph.
struct CudaGraphs {
  bool step = false;    // the GPU never waits for launches
  EnumSet modules = 0;  // of LayerModule

  bool any() const { return step || modules != 0; }
  // Whether a graph of modules launches this one. The whole experts' layer holds its router and preprocessing.
  bool records(LayerModule module) const {
    const bool of_experts = module == LayerModule::kMoeRouter || module == LayerModule::kMoePreprocess;
    return (modules & (set_of(module) | (of_experts ? set_of(LayerModule::kMoe) : EnumSet()))) != 0;
  }
  friend bool operator==(const CudaGraphs&, const CudaGraphs&) = default;
};
// Of all modules of `model` but its experts, of which the host may read how many tokens each gets.
CudaGraphs graphs_of_layers(const Model& model);
template <>
inline constexpr bool kHasOwnText<CudaGraphs> = true;

// Preprocessing without its router is refused, as Megatron-Core does.
Result<void> read_field(const Field& field, std::string_view text, CudaGraphs& value);
std::string field_text(const CudaGraphs& value);

}  // namespace ns_dist
