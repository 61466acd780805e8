// Latent attention to keys that an indexer chooses (DeepSeek-V3.2, arXiv 2512.02556; GLM-5), as Megatron-Core computes
// it (experimental_attention_variant/dsa.py and absorbed_mla.py): the up-projection of the keys is applied to the
// queries and that of the values to the output, so that all heads read the same keys, which are the latents and the
// rotated part beside them. Under tensor parallelism each rank has some of the heads and the whole indexer;
// context-parallel ranks gather the keys and those of the indexer.
#include "blocks/chosen_attention.h"

#include <utility>

#include "blocks/indexer.h"
#include "blocks/linear.h"

namespace ns_dist::blocks {
namespace {

// A matrix for each head of this rank, in the storage format (torch.einsum with a part of a parameter).
BlockStep by_head(const Shape& shape, std::string_view name, std::int64_t in, std::int64_t out) {
  return linear(shape, ActivationKind::kAttentionProjections,
                {.name = name,
                 .rows = shape.tokens,
                 .in = in,
                 .out = out,
                 .groups = shape.heads,
                 .unquantized = true,
                 .weights = Split::kColumn});
}

BlockStep index(const Shape& shape) {
  const LatentAttention& mla = *shape.model->mla;
  const Indexer& of = *shape.model->indexer;
  const std::int64_t rows = shape.tokens;
  BlockStep step = indexer(shape, rows, mla.q_rank);
  std::vector<Call> inputs;
  gather(shape, inputs, "attention.index.hidden", bytes_of(shape, rows, shape.hidden) * units::B);
  gather(shape, inputs, "attention.index.latents", bytes_of(shape, rows, mla.q_rank) * units::B);
  step.forward.insert(step.forward.begin(), inputs.begin(), inputs.end());
  index_product(shape, step, "attention.index.keys", rows, of.head_dim, shape.hidden);
  step.forward.push_back(kernel(
      shape, "attention.index.key_norm",
      Normalization{NormalizationKind::kLayerNorm, rows, of.head_dim, Pass::kForward, shape.plan->norm_library}));
  step.parameters.dense += 2 * static_cast<double>(of.head_dim);
  for (const auto& [name, heads] : {std::pair("attention.index.rotary.queries", of.heads),
                                    std::pair("attention.index.rotary.keys", std::int64_t{1})}) {
    step.forward.push_back(
        kernel(shape, name, Elementwise{Elementwise::kRope, rows * heads * mla.rope_head_dim, 1, 1, 3}));
  }
  gather_context(shape, step.forward, "attention.index.keys", rows, of.head_dim);
  choose_keys(shape, step, rows, shape.document_tokens);
  step.again = step.drops_for_input_gradient = set_of(RecomputeModule::kCoreAttention);
  return step;
}

// Queries and keys as the core reads them: products with the latents beside what is rotated.
BlockStep heads(const Shape& shape) {
  const LatentAttention& mla = *shape.model->mla;
  const std::int64_t width = mla.kv_rank + mla.rope_head_dim;
  BlockStep step;
  step.name = "attention.heads";
  const auto add = [&](std::string_view name, const OperatorKind& kind) {
    blocks::add_mirrored(shape, step, name, kind);
  };
  if (shape.model->position == PositionKind::kRotary && shape.kind.rotary) {
    add("attention.rotary.queries",
        Elementwise{Elementwise::kRope, shape.tokens * shape.heads * mla.rope_head_dim, 1, 1, 3});
    add("attention.rotary.keys", Elementwise{Elementwise::kRope, shape.tokens * mla.rope_head_dim, 1, 1, 3});
  }
  add("attention.assemble", Copy{bytes_of(shape, shape.tokens, (shape.heads + 1) * width) * units::B});
  const Bytes latents = bytes_of(shape, shape.tokens, mla.kv_rank) * units::B;
  gather(shape, step.forward, "attention.latents", latents);
  std::vector<Call> back;
  if (shape.cp > 1) {
    // Ranks have a part of the sequence's beginning and one of its end, which are put in order.
    const Bytes all = bytes_of(shape, shape.tokens * shape.cp, width) * units::B;
    gather_context(shape, step.forward, "attention.keys", shape.tokens, width);
    step.forward.push_back(kernel(shape, "attention.keys.reorder", Copy{all}));
    back.push_back(kernel(shape, "attention.keys.backward.reorder", Copy{all}));
    back.push_back({"attention.keys.backward.context.reduce_scatter",
                    Communication{CollectiveKind::kReduceScatter, all, Axis::kContext}});
  }
  step.input_gradient.insert(step.input_gradient.begin(), back.begin(), back.end());
  reduce(shape, step.input_gradient, "attention.latents.grad", latents);
  step.again = step.drops_for_input_gradient = set_of(RecomputeModule::kLatentUpProjection);
  step.kept_as = ActivationKind::kAttentionCore;
  step.kept_for_input_gradient = bytes_of(shape, shape.tokens, (shape.heads + shape.cp) * width);
  return step;
}

}  // namespace

void chosen_latent_core(const Shape& shape, Block& block) {
  const LatentAttention& mla = *shape.model->mla;
  if (shape.kind.chooses_keys) block.steps.push_back(index(shape));
  // What selective recomputation of the up-projections makes again, this one reads.
  constexpr ModuleSet kUp = set_of(RecomputeModule::kLatentUpProjection);
  BlockStep keys_up = by_head(shape, "attention.k_up", mla.nope_head_dim, mla.kv_rank);
  keys_up.again |= kUp;
  keys_up.drops_for_weight_gradient |= kUp;
  block.steps.push_back(std::move(keys_up));
  block.steps.push_back(heads(shape));
  BlockStep core =
      chosen_core(shape, chosen_keys(shape, shape.document_tokens), mla.kv_rank + mla.rope_head_dim, mla.kv_rank);
  core.drops_for_weight_gradient = kUp;
  block.steps.push_back(std::move(core));
  // Megatron-Core counts it to the core.
  BlockStep values_up = by_head(shape, "attention.v_up", mla.kv_rank, mla.v_head_dim);
  values_up.again = values_up.drops_for_weight_gradient = set_of(RecomputeModule::kCoreAttention);
  block.steps.push_back(std::move(values_up));
}

}  // namespace ns_dist::blocks
