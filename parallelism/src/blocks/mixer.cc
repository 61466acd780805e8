#include "blocks/mixer.h"

#include <string>
#include <utility>

#include "blocks/branch.h"

namespace ns_dist::blocks {

void begin_mixer(const Shape& shape, Block& block, std::string_view branch, Linear in) {
  const std::string name = concat(branch, ".in_proj");
  block.steps.push_back(branch_start(shape, branch));
  in.name = name, in.region = branch;
  in.rows = shape.tokens, in.in = shape.hidden, in.bias = shape.model->bias, in.split = Split::kColumn;
  in.behind_norm = alone_behind_norm(shape);
  in.keeps_original = recomputes(shape, RecomputeModule::kNorm);
  BlockStep step = linear(shape, ActivationKind::kStateSpace, in);
  step.drops_for_weight_gradient = block.steps.back().again;
  block.steps.push_back(std::move(step));
}

void end_mixer(const Shape& shape, Block& block, std::string_view branch, std::int64_t channels) {
  const std::string name = concat(branch, ".out_proj");
  block.steps.push_back(linear(shape, ActivationKind::kStateSpace,
                               {.name = name,
                                .rows = shape.tokens,
                                .in = channels,
                                .out = shape.hidden,
                                .bias = shape.model->bias,
                                .split = Split::kRow,
                                .region = branch}));
  end_branch(shape, block, branch);
}

}  // namespace ns_dist::blocks
