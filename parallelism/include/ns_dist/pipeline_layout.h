// What each position of a pipeline holds, in Megatron-Core's notation (--pipeline-model-parallel-layout;
// pipeline_parallel_layer_layout.py, PipelineParallelLayerLayout.from_str).
//
// "Et*3|(tt|)*29m|L": E is the embedding, t a layer, m a layer for multi-token prediction, L the loss. "|" ends a
// position, "*3" repeats the letter or the parentheses before it. Positions follow each other as microbatches pass
// them: under interleaving position i lies on stage i mod pp.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/result.h"

namespace ns_dist {

struct PositionParts {
  std::int64_t layers = 0;
  std::int64_t predictions = 0;  // layers for multi-token prediction
  friend bool operator==(const PositionParts&, const PositionParts&) = default;
};

// By position. The embedding is the first part of the first position, the loss the last part of the last one.
// Errors: what is no such text; an embedding or a loss elsewhere; a layer behind one for multi-token prediction, or
// these at several positions; more than a million letters.
Result<std::vector<PositionParts>> read_pipeline_layout(std::string_view text);

// The shortest text for these: positions alike are written once.
std::string pipeline_layout_text(std::span<const PositionParts> positions);

}  // namespace ns_dist
