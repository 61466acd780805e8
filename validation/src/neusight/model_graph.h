// Operator graphs of whole models, as graph_nodes and graph_ops describe them.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "ns_dist/result.h"

namespace ns_dist {

using TensorShape = std::vector<std::int64_t>;
double elements_of(const TensorShape& shape);

enum class ModelPhase : std::size_t { kForward, kBackward, kAccumulate };
inline constexpr std::size_t kModelPhases = 3;

// One operator that a node runs in a phase; dimensions that the operator does not have are 0.
struct ModelOperator {
  std::string op;  // "Linear", "BMM", "VECadd", "MEM", "ALLREDUCE", ...
  std::int64_t b = 0, m = 0, n = 0, k = 0, h = 0;
  double elements = 0, in_elements = 0, out_elements = 0;
};

struct ModelNode {
  std::int64_t index = 0;
  std::string name, kind;  // "transformer_h_0_ln_1", "VECln"
  bool in_layer = false;   // runs in every layer
  std::vector<TensorShape> inputs;
  TensorShape output;
  std::vector<std::int64_t> previous;
  std::array<std::vector<ModelOperator>, kModelPhases> operators;
};

struct ModelGraph {
  std::vector<ModelNode> nodes;  // by index
  const ModelNode* find(std::int64_t index) const;
};

// Reads both tables; rows that cannot be read go to `mistakes`, so do tensors without elements where the kernels of a
// node are rows of its last dimension (tables, normalizations, products). Errors: a table that cannot be read.
Result<std::map<std::string, ModelGraph, std::less<>>> read_model_graphs(const std::filesystem::path& nodes,
                                                                         const std::filesystem::path& operators,
                                                                         std::vector<Error>& mistakes);

}  // namespace ns_dist
