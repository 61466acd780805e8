#include "blocks/local_experts.h"

#include <algorithm>
#include <cmath>

namespace ns_dist::blocks {
namespace {

// Ranks of one expert bring their tokens together.
std::int64_t rows_on_average(const Shape& shape) {
  const std::int64_t sources = shape.etp == shape.tp ? shape.tokens / shape.sharded_tokens : shape.etp;
  return sources * LocalExperts::copies_of_tokens(shape);
}

}  // namespace

LocalExperts::LocalExperts(const Shape& shape)
    : top_k(shape.model->moe->top_k),
      routed(copies_of_tokens(shape)),
      imbalance(busiest_over_mean(*shape.model, *shape.plan)),
      rows(std::llround(imbalance * static_cast<double>(rows_on_average(shape)))),
      width(shape.model->moe->latent > 0 ? shape.model->moe->latent : shape.hidden),
      experts(shape.model->moe->experts / shape.ep),
      ffn(shape.model->moe->expert_ffn / shape.etp),
      one_copy(shape.plan->expert_dispatch != ExpertDispatch::kAllToAll && shape.ep > 1),
      to_all(one_copy && shape.plan->expert_dispatch == ExpertDispatch::kAllGather),
      copies(to_all     ? static_cast<double>(shape.ep)
             : one_copy ? parts_reached(shape.model->moe->routing(), shape.ep)
                        : static_cast<double>(top_k)),
      exchanged(one_copy ? bytes_of(shape, shape.sharded_tokens, width) * copies * units::B
                         : bytes_of(shape, routed, width) * units::B),
      summed(one_copy ? rows : routed),
      gathered(bytes_of(shape, rows, width) * units::B),
      casts_before(shape.plan->fp8_dispatch && shape.ep > 1 && keeps_casts(shape, false)),
      to_experts(casts_before ? shape.product_element / shape.element : 1) {}

std::int64_t LocalExperts::copies_of_tokens(const Shape& shape) {
  const Experts& moe = *shape.model->moe;
  const std::int64_t all = shape.sharded_tokens * moe.top_k;
  if (!pads_experts(*shape.plan)) return all;
  const double share = static_cast<double>(all) / static_cast<double>(moe.experts);
  const auto places = static_cast<std::int64_t>(std::ceil(share * shape.plan->expert_capacity.value));
  return moe.experts * std::min(places, shape.sharded_tokens);  // at most each token once
}

bool writes_experts_out(const Shape& shape) { return shape.plan->written_out && shape.ep == 1 && shape.tp == 1; }
bool experts_in_one_kernel(const Shape& shape) {
  const ParallelPlan& plan = *shape.plan;
  return writes_experts_out(shape) && plan.expert_products == ExpertProducts::kKernel && !plan.fused_permutation &&
         !plan.weighted_activation;
}

void mask_rows(const Shape& shape, BlockStep& step, std::string_view name, std::int64_t elements) {
  add_mirrored(shape, step, concat(name, ".mask"), Elementwise{"mask", elements, 1, 1, 0, true});
}

}  // namespace ns_dist::blocks
