#include "shape.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ns_dist/planner.h"
#include "ns_dist/result.h"

namespace ns_dist {
namespace {

// The most context-parallel ranks that can divide the key-value heads of a tensor-parallel rank.
std::int64_t most_inner(const Model& model, const ParallelPlan& plan) {
  std::int64_t heads = model.heads;
  for (const AttentionHeads& of : all_heads(model)) {
    heads = std::gcd(heads, std::gcd(of.heads, model.mla ? of.heads : of.kv_heads));
  }
  return std::gcd(plan.cp, std::max<std::int64_t>(1, heads / plan.tp));
}

// Equal documents with as many pairs of queries and keys as the packed ones: a sequence's tokens times the mean length
// that a token sees.
std::int64_t documents_of(const Training& training) {
  if (training.document_tokens == 0) return 1;
  return std::max<std::int64_t>(1, (training.sequence + training.document_tokens - 1) / training.document_tokens);
}
std::int64_t tokens_of_document(const Training& training) {
  const std::int64_t documents = documents_of(training);
  if (documents == 1) return training.sequence;
  return std::llround(std::sqrt(static_cast<double>(training.sequence) * static_cast<double>(training.document_tokens) /
                                static_cast<double>(documents)));
}

// Bytes of an 8-bit weight with its share of the fp32 factor of a block of 128 x 128 (DeepSeek-V3, arXiv 2412.19437,
// s.3.3.2; TransformerEngine, common/recipe, Float8BlockScaling, w_block_scaling_dim).
constexpr double kBlockScaledWeight = 1 + 4.0 / (128 * 128);

}  // namespace

Shape::Shape(const Model& m, const ParallelPlan& p, const Training& training)
    : model(&m),
      plan(&p),
      dtype(storage_type(training.precision)),
      precision(training.precision),
      element(size_of(dtype) / units::B),
      autocast(autocasts(p, dtype)),
      hidden_dtype(autocast ? DType::kFp32 : dtype),
      hidden_element(size_of(hidden_dtype) / units::B),
      product_element(size_of(product_type(training.precision)) / units::B +
                      scale_bytes(product_type(training.precision), scaling_of(training.precision))),
      weight_element(training.precision == Precision::kFp8Block ? kBlockScaledWeight : product_element),
      tp(p.tp),
      cp(p.cp),
      dp(p.dp),
      ep(p.ep),
      etp(expert_tp(p)),
      sequence_parallel(p.sequence_parallel && p.tp > 1),
      dropout(m.dropout && p.passes != Passes::kForward),
      micro_batch(training.micro_batch),
      sequence(training.sequence),
      hidden(m.hidden),
      documents(documents_of(training)),
      document_tokens(tokens_of_document(training)),
      tokens(training.micro_batch * training.sequence / p.cp),
      sharded_tokens(sequence_parallel ? tokens / p.tp : tokens),
      heads(m.heads / p.tp),
      kv_heads(std::max<std::int64_t>(1, m.kv_heads / p.tp)),
      query_dim(m.mla ? m.mla->nope_head_dim + m.mla->rope_head_dim : m.head_dim),
      value_dim(m.mla ? m.mla->v_head_dim : heads_of(m, false).value_dim()),
      ffn(m.ffn),
      cp_inner(context_inner_ranks(m, p)),
      vocabulary(padded_vocabulary(m.vocabulary, p) / p.tp),
      streams(m.residual_streams),
      prediction_layers(training.mtp ? m.prediction_layers : 0),
      microbatches(std::max<std::int64_t>(1, microbatches_of(p, training))) {
  set_kind(layer_kind(m, 0));
}

void Shape::set_kind(const LayerKind& of) {
  kind = of;
  ffn = of.ffn > 0 ? of.ffn : model->ffn;
  if (model->mla) return;
  const AttentionHeads own = heads_of(*model, of.windowed);
  heads = own.heads / tp;
  kv_heads = std::max<std::int64_t>(1, own.kv_heads / tp);
  query_dim = own.head_dim;
  value_dim = own.value_dim();
  keys_are_values = own.keys_are_values;
}

std::int64_t Shape::layer_table_rows() const {
  return model->per_layer_embeddings ? (model->per_layer_embeddings->vocabulary + tp - 1) / tp : 0;
}

std::int64_t Shape::layer_table_columns() const {
  return model->per_layer_embeddings ? model->layers * model->per_layer_embeddings->width : 0;
}

Shape Shape::whole(const Model& model, const Training& training) {
  static const ParallelPlan kUnsharded;
  Shape shape(model, kUnsharded, training);
  shape.vocabulary = model.vocabulary;
  return shape;
}

LayerKinds layer_kinds(const Model& model) {
  LayerKinds layers;
  layers.of_layer.reserve(static_cast<std::size_t>(model.layers));
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const LayerKind kind = layer_kind(model, layer);
    auto known = std::find(layers.kinds.begin(), layers.kinds.end(), kind);
    if (known == layers.kinds.end()) known = layers.kinds.insert(known, kind);
    layers.of_layer.push_back(static_cast<std::uint16_t>(known - layers.kinds.begin()));
  }
  return layers;
}

std::vector<std::int64_t> layers_of_kinds(const LayerKinds& layers) {
  std::vector<std::int64_t> counts(layers.kinds.size());
  for (const std::uint16_t kind : layers.of_layer) ++counts[kind];
  return counts;
}

DType gradient_type(const ParallelPlan& plan, DType dtype) {
  return sums_in_fp32(plan.grad_accumulation) || plan.weights == WeightStorage::kFp32 ? DType::kFp32 : dtype;
}

double share_of_rank(const RankParameters& held, const ParallelPlan& plan) {
  if (plan.zero == ZeroStage::kNone) return held.total();
  return held.dense / static_cast<double>(sharing_replicas(plan, false)) +
         held.experts / static_cast<double>(sharing_replicas(plan, true));
}

RankParameters replicated(RankParameters held, const ParallelPlan& plan) {
  if (replicas(plan, false) == 1) held.dense = held.matrices = 0;
  if (replicas(plan, true) == 1) held.experts = held.expert_matrices = 0;
  return held;
}

std::int64_t sharing_replicas(const ParallelPlan& plan, bool experts) {
  const std::int64_t all = replicas(plan, experts);
  if (plan.shard == 0) return all;
  // There are as many sets of experts as of all else (torchtitan, parallel_dims.py, efsdp; Megatron-Core,
  // parallel_state.py, num_distributed_optimizer_instances).
  const std::int64_t sets = plan.dp * plan.cp / plan.shard;
  return all / std::gcd(all, sets);
}

RankGroup tensor_group(const ParallelPlan& plan, const Mesh& mesh, Rank representative) {
  return {representative, {{plan.tp, mesh.stride("tp")}}};
}

RankGroup context_group(const ParallelPlan& plan, const Mesh& mesh, Rank representative) {
  return {representative, {{plan.cp, mesh.stride("cp")}}};
}

std::int64_t context_inner_ranks(const Model& model, const ParallelPlan& plan) {
  if (plan.cp == 1 || has_sparse_attention(model)) return 1;
  switch (plan.cp_comm) {
    case ContextExchange::kRing:
    case ContextExchange::kAllGather:
      break;
    case ContextExchange::kAllToAll:
      return plan.cp;
    case ContextExchange::kHierarchical:
      return plan.cp_inner > 0 ? plan.cp_inner : most_inner(model, plan);
  }
  return 1;
}

RankGroup context_inner_group(const Mesh& mesh, Rank representative, std::int64_t inner) {
  return {representative, {{inner, mesh.stride("cp")}}};
}

RankGroup context_pair(const ParallelPlan& plan, const Mesh& mesh, Rank representative, std::int64_t inner) {
  const std::int64_t ring = plan.cp / inner;
  return {representative, {{2, mesh.stride("cp") * inner * (ring % 2 == 0 ? ring / 2 : 1)}}};
}

std::int64_t usual_cp_inner(const Model& model, const ParallelPlan& plan, std::int64_t node) {
  if (plan.cp_comm != ContextExchange::kHierarchical || plan.tp < 1 || plan.cp < 1 || !rank_order(plan)) return 0;
  const std::int64_t most = most_inner(model, plan), stride = plan.cp == 1 ? 1 : mesh_of(plan).stride("cp");
  std::int64_t inner = most;
  while (inner > 1 && (inner * stride > node || most % inner != 0)) --inner;
  return inner;
}

namespace {

// Digits of rank numbers, innermost first.
using Digits = std::vector<Stride>;

bool experts_are_neighbours(const ParallelPlan& plan) {
  const auto order = rank_order(plan);
  NS_EXPECTS(order.has_value());
  return std::find(order->begin(), order->end(), "ep") < std::find(order->begin(), order->end(), "dp");
}

// Takes `ranks` out of `digits`, innermost or outermost first; what is left stays.
Digits take(Digits& digits, std::int64_t ranks, bool innermost) {
  Digits taken;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    Stride& digit = digits[innermost ? i : digits.size() - 1 - i];
    const std::int64_t part = std::gcd(ranks, digit.count);
    if (part == 1) continue;
    const std::int64_t rest = digit.count / part;
    taken.push_back({part, innermost ? digit.stride : digit.stride * rest});
    digit = {rest, innermost ? digit.stride * part : digit.stride};
    ranks /= part;
  }
  std::erase_if(digits, [](const Stride& digit) { return digit.count == 1; });
  if (!innermost) std::reverse(taken.begin(), taken.end());
  return taken;
}

// Context- and data-parallel ranks, in the order of the mesh; with `experts` those of other experts' tensor-parallel
// groups.
Digits replica_digits(const ParallelPlan& plan, const Mesh& mesh, bool experts) {
  const std::int64_t etp = expert_tp(plan);
  Digits digits;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.name == "cp" || axis.name == "dp") digits.push_back({axis.size, axis.stride});
    if (axis.name == "tp" && experts && etp < plan.tp) digits.push_back({axis.size / etp, axis.stride * etp});
  }
  std::erase_if(digits, [](const Stride& digit) { return digit.count == 1; });
  if (experts && etp > plan.tp) take(digits, etp / plan.tp, true);
  return digits;
}

Digits copy_digits(const ParallelPlan& plan, const Mesh& mesh, bool experts) {
  Digits digits = replica_digits(plan, mesh, experts);
  if (experts) take(digits, plan.ep, experts_are_neighbours(plan));
  return digits;
}

RankGroup group_of(Rank representative, Digits digits) {
  if (digits.empty()) digits.push_back({1, 1});
  return {representative, std::move(digits)};
}

}  // namespace

RankGroup expert_tensor_group(const ParallelPlan& plan, const Mesh& mesh, Rank representative) {
  const std::int64_t etp = expert_tp(plan);
  RankGroup group{representative, {{std::min(etp, plan.tp), mesh.stride("tp")}}};
  if (etp <= plan.tp) return group;
  Digits others = replica_digits(plan, mesh, false);
  const Digits taken = take(others, etp / plan.tp, true);
  if (plan.tp == 1) group.strides.clear();
  group.strides.insert(group.strides.end(), taken.begin(), taken.end());
  return group;
}

RankGroup expert_group(const ParallelPlan& plan, const Mesh& mesh, Rank representative) {
  Digits digits = replica_digits(plan, mesh, true);
  return group_of(representative, take(digits, plan.ep, experts_are_neighbours(plan)));
}

GroupReach group_reach(const ParallelPlan& plan) {
  if (!rank_order(plan)) return {};
  const Mesh mesh = mesh_of(plan);
  const auto reach = [](const RankGroup& group) {
    std::int64_t farthest = 1;
    for (const Stride& stride : group.strides) {
      if (stride.count > 1) farthest = std::max(farthest, stride.count * stride.stride);
    }
    return farthest;
  };
  return {reach(tensor_group(plan, mesh, 0)), reach(context_group(plan, mesh, 0)), reach(expert_group(plan, mesh, 0)),
          reach(expert_tensor_group(plan, mesh, 0))};
}

OnOneStage on_one_stage(const ParallelPlan& plan) {
  static const ParallelPlan kDefault;
  OnOneStage on{plan};
  ParallelPlan& one = on.plan;
  one.pp = 1;
  one.dp = plan.dp * plan.pp;
  one.vpp = kDefault.vpp;
  one.schedule = kDefault.schedule;
  // FSDP takes the first gradients as the sum, and may have weights that no other ZeRO has.
  one.zero = is_fsdp(plan) ? plan.zero : shards_gradients(plan) ? ZeroStage::kGradients : ZeroStage::kNone;
  one.shard = 0;
  divide_evenly(one);
  one.offload_weights = one.overlap_grad_reduce = one.overlap_param_gather = false;
  one.grad_buckets = kDefault.grad_buckets;
  const Mesh mesh = mesh_of(plan), mesh_of_one = mesh_of(one);
  on.collectives = tensor_group(plan, mesh, 0) == tensor_group(one, mesh_of_one, 0) &&
                   context_group(plan, mesh, 0) == context_group(one, mesh_of_one, 0) &&
                   expert_tensor_group(plan, mesh, 0) == expert_tensor_group(one, mesh_of_one, 0) &&
                   expert_group(plan, mesh, 0) == expert_group(one, mesh_of_one, 0);
  return on;
}

ReplicaGroups replica_groups(const ParallelPlan& plan, const Mesh& mesh, Rank representative, bool experts) {
  Digits digits = copy_digits(plan, mesh, experts);
  const std::int64_t sharing = plan.zero == ZeroStage::kNone ? 1 : sharing_replicas(plan, experts);
  Digits taken = take(digits, sharing, true);
  return {group_of(representative, std::move(taken)), group_of(representative, std::move(digits))};
}

}  // namespace ns_dist
