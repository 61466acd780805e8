// The linear layers of experts.
#pragma once

#include <cstdint>
#include <string_view>

#include "blocks/linear.h"
#include "blocks/local_experts.h"

namespace ns_dist::blocks {

// One linear layer of all experts of this rank. It keeps its input as it reads it: rows come together before the layer
// (Megatron-Core, token_dispatcher.py; explicit_expert_comm), and nothing gathers them again.
struct GroupedLinear {
  std::string_view name;
  std::int64_t in = 1, out = 1;
  Split weights = Split::kLocal;                         // over the ranks of an expert
  bool keeps_original = false;                           // Linear::keeps_original
  bool input_is_cast = false, gradient_is_cast = false;  // came in the products' format, in one layout
  bool reads_hidden = false;                             // rows are hidden states
};
BlockStep grouped_linear(const Shape& shape, const LocalExperts& size, const GroupedLinear& layer);

}  // namespace ns_dist::blocks
