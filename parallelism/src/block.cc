#include "block.h"

#include <algorithm>
#include <iterator>

#include "blocks/branch.h"
#include "blocks/common.h"
#include "blocks/linear.h"
#include "kept_operators.h"

namespace ns_dist {
namespace {

// FLOPs of matrix products, attention and scans, of all pairs of queries and keys and without what ends a product; 0
// for other operators.
double product_flops(Operator op) {
  if (auto* gemm = std::get_if<Gemm>(&op.kind)) {
    gemm->epilogue = Epilogue::kNone;
  } else if (auto* grouped = std::get_if<GroupedGemm>(&op.kind)) {
    grouped->epilogue = Epilogue::kNone;
  } else if (auto* attention = std::get_if<Attention>(&op.kind)) {
    attention->causal = false;
  } else if (!std::holds_alternative<UnknownOperator>(op.kind)) {
    return 0;
  }
  return work_of(op).flops / units::FLOP;
}

}  // namespace

Block layer_block(const Shape& shape, const LayerKind& kind) {
  Shape own = shape;
  own.set_kind(kind);
  Block layer;
  layer.input = layer.around = blocks::hidden_bytes(own, own.sharded_tokens, own.hidden * own.streams);
  if (own.model->per_layer_embeddings) {
    layer.input += blocks::hidden_bytes(own, own.sharded_tokens, own.model->per_layer_embeddings->width);
  }
  // Steps that belong to another module than their block have their own.
  const auto append = [&](Block block, LayerModule module) {
    layer.cached += block.cached;
    if (own.streams > 1) {
      const std::string& first = block.steps.front().name;  // "attention.norm"
      block.steps.insert(block.steps.begin(), blocks::stream_sum(own, first.substr(0, first.find('.')), true));
    }
    for (BlockStep& step : block.steps) step.module = step.module.value_or(module);
    layer.steps.insert(layer.steps.end(), std::move_iterator(block.steps.begin()),
                       std::move_iterator(block.steps.end()));
  };
  if (kind.mixer == Mixer::kAttention) append(attention_block(own), LayerModule::kAttention);
  if (kind.mixer == Mixer::kStateSpace) append(state_space_block(own), LayerModule::kMamba);
  if (kind.mixer == Mixer::kDeltaNet) append(delta_net_block(own), LayerModule::kAttention);
  if (kind.mixer == Mixer::kConvolution) append(short_convolution_block(own), LayerModule::kAttention);
  if (kind.mixer == Mixer::kCompressedAttention) append(compressed_attention_block(own), LayerModule::kAttention);
  if (kind.feed_forward == FeedForward::kDense) append(mlp_block(own), LayerModule::kMlp);
  if (kind.feed_forward == FeedForward::kExperts) append(moe_block(own), LayerModule::kMoe);
  if (own.model->per_layer_embeddings) append(per_layer_block(own), LayerModule::kMlp);
  if (own.plan->recompute == Recompute::kOperators) keep_operators(own, layer);
  return layer;
}

RankParameters parameters_of(const Block& block) {
  RankParameters parameters;
  for (const BlockStep& step : block.steps) parameters += step.parameters;
  return parameters;
}

RankParameters adapters_of(const Block& block) {
  RankParameters parameters;
  for (const BlockStep& step : block.steps) parameters += step.adapters;
  return parameters;
}

RankParameters trained_of(const Block& block) {
  RankParameters parameters;
  for (const BlockStep& step : block.steps) {
    if (!step.frozen) parameters += step.parameters;
  }
  return parameters;
}

// Under autocast frozen weights stay in fp32, as the model was loaded.
RankParameters frozen_of(const Block& block, const Shape& shape, Freezes which) {
  const double trained = bytes_per_parameter(shape.dtype, shape.plan->optimizer_state, shape.plan->weights).weight;
  const double stored = shape.autocast ? trained : shape.element;
  RankParameters frozen;
  for (const BlockStep& step : block.steps) {
    if (which == Freezes::kSteps && !step.frozen) continue;
    frozen += step.parameters * (stored / trained);
    frozen += step.in_4_bits * ((blocks::nf4_bytes(shape.plan->frozen_weights) - stored) / trained);
  }
  frozen.matrices = frozen.expert_matrices = 0;
  return frozen;
}

Matrices matrices_of(const Block& block) {
  Matrices matrices;
  for (const BlockStep& step : block.steps) add(step.matrices, 1, matrices);
  return matrices;
}

namespace {

// What the forward pass keeps of a step that is recomputed with these modules, or with the whole block.
double kept_of(const BlockStep& step, bool full, ModuleSet dropped) {
  if (full) return 0;
  return ((step.drops_for_input_gradient & dropped) == 0 ? step.kept_for_input_gradient : 0) +
         ((step.drops_for_weight_gradient & dropped) == 0 ? step.kept_for_weight_gradient : 0);
}

bool recomputes_all(const Block& block, Recompute recompute) {
  return (recompute == Recompute::kFull || recompute == Recompute::kOperators) && block.input > 0;
}

// Of what operators return.
double kept_outputs(const Block& block, Recompute recompute) {
  double kept = 0;
  if (recompute != Recompute::kOperators) return kept;
  for (const BlockStep& step : block.steps) kept += step.kept_outputs;
  return kept;
}

// Calls add(kind, bytes) for what the block keeps.
template <class Add>
void each_kept(const Block& block, Recompute recompute, ModuleSet modules, Add add) {
  const bool full = recomputes_all(block, recompute);
  const ModuleSet dropped = recompute == Recompute::kSelective ? modules : 0;
  for (const BlockStep& step : block.steps) {
    const double cast = step.cast_for_weight_gradient;
    add(step.kept_as, KeptBytes{kept_of(step, full, dropped), cast > 0 ? cast : step.kept_for_weight_gradient});
    add(ActivationKind::kOutputGradients, KeptBytes{0, step.output_gradient});
  }
  // Korthikanti et al. 2022, table 2: 2 sbh.
  if (full) add(ActivationKind::kCheckpoints, KeptBytes{block.input + kept_outputs(block, recompute), 0});
}

}  // namespace

KeptBytes kept_bytes(const Block& block, Recompute recompute, ModuleSet modules) {
  KeptBytes all;
  each_kept(block, recompute, modules, [&](std::optional<ActivationKind>, const KeptBytes& kept) { all += kept; });
  return all;
}

KeptByKind kept_by_kind(const Block& block, Recompute recompute, ModuleSet modules) {
  KeptByKind by_kind{};
  each_kept(block, recompute, modules, [&](std::optional<ActivationKind> kind, const KeptBytes& kept) {
    if (kept == KeptBytes{}) return;
    NS_EXPECTS(kind.has_value());
    by_kind[static_cast<std::size_t>(*kind)] += kept;
  });
  return by_kind;
}

std::vector<StepRange> recomputed_steps(const Block& block, Recompute recompute, ModuleSet modules) {
  if (recomputes_all(block, recompute)) return {{0, block.steps.size()}};
  std::vector<StepRange> ranges;
  if (recompute != Recompute::kSelective) return ranges;
  bool open = false;  // the last range
  for (std::size_t i = block.steps.size(); i-- > 0;) {
    const BlockStep& step = block.steps[i];
    const bool belongs = ((step.again | step.drops_for_input_gradient | step.drops_for_weight_gradient) & modules) != 0;
    if (belongs && !open) ranges.push_back({i, i + 1});
    if (belongs) ranges.back().first = i;
    open = belongs;
  }
  return ranges;
}

double working_bytes(const Block& block, Recompute recompute, ModuleSet modules, bool splits) {
  const bool full = recomputes_all(block, recompute);
  const ModuleSet dropped = recompute == Recompute::kSelective ? modules : 0;
  const std::vector<StepRange> ranges = recomputed_steps(block, recompute, modules);
  auto range = ranges.begin();  // from the last to the first
  // What operators returned is there already, and most of it is what steps keep.
  double most = 0, again = -kept_outputs(block, recompute), freed = 0;
  for (std::size_t i = block.steps.size(); i-- > 0;) {
    const BlockStep& step = block.steps[i];
    if (range != ranges.end() && i + 1 == range->end) {
      double transient = 0;
      for (std::size_t j = range->first; j < range->end; ++j) {
        again += kept_of(block.steps[j], false, 0) - kept_of(block.steps[j], full, dropped);
        transient = std::max(transient, block.steps[j].transient_forward);
      }
      most = std::max(most, again + transient + block.around - freed);
      ++range;
    }
    most = std::max({most, again + step.transient_backward + block.around - freed, step.transient_forward - freed});
    const double kept = kept_of(step, full, dropped);
    again -= kept_of(step, false, 0) - kept;
    freed += kept;
    if (!splits) continue;
    const double cast = step.cast_for_weight_gradient;
    freed -= (cast > 0 ? cast : step.kept_for_weight_gradient) + step.output_gradient;
  }
  return most;
}

double forward_transient(const Block& block) {
  double most = 0, behind = 0;  // what the steps behind one keep
  for (std::size_t i = block.steps.size(); i-- > 0;) {
    most = std::max(most, block.steps[i].transient_forward - behind);
    behind += kept_of(block.steps[i], false, 0);
  }
  return most;
}

double forward_working_bytes(const Block& block) {
  double transient = 0;
  for (const BlockStep& step : block.steps) transient = std::max(transient, step.transient_forward);
  return kept_bytes(block, Recompute::kNone).after_forward + transient;
}

std::vector<std::size_t> calls_until_kept(const Block& block) {
  std::vector<std::size_t> calls(block.steps.size());
  bool needed = false;  // by a later step
  for (std::size_t i = block.steps.size(); i-- > 0;) {
    const BlockStep& step = block.steps[i];
    if (needed) {
      calls[i] = step.forward.size();
    } else if (step.kept_for_input_gradient + step.kept_for_weight_gradient > 0) {
      calls[i] = step.forward.size() - step.calls_after_kept;
      needed = true;
    }
  }
  return calls;
}

BlockFlops flops_of(const Block& block, ModuleSet modules, double expert_rows) {
  BlockFlops flops;
  const std::vector<std::size_t> until_kept = calls_until_kept(block);
  for (std::size_t i = 0; i < block.steps.size(); ++i) {
    const BlockStep& step = block.steps[i];
    double forward = 0;
    for (std::size_t j = 0; j < step.forward.size(); ++j) {
      const auto* op = std::get_if<Operator>(&step.forward[j].what);
      if (op == nullptr) continue;
      const double of_call = product_flops(*op) * (std::holds_alternative<GroupedGemm>(op->kind) ? expert_rows : 1);
      forward += of_call;
      if (j < until_kept[i]) flops.until_kept += of_call;
      if (std::holds_alternative<Attention>(op->kind)) flops.masked += of_call - work_of(*op).flops / units::FLOP;
    }
    flops.forward += forward;
    if (!step.weight_gradient.empty()) flops.weights += forward;
    if (step.weight_gradient.empty() && step.input_gradient.empty()) flops.alone += forward;
    if ((step.again & modules) != 0) flops.recomputed += forward;
    for (const Call& call : step.repeated) {
      if (const auto* op = std::get_if<Operator>(&call.what)) flops.repeated += product_flops(*op);
    }
  }
  return flops;
}

}  // namespace ns_dist
