#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ns_dist/layer_division.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"
#include "pipeline.h"
#include "shape.h"

namespace ns_dist {
namespace {

constexpr double kMostScores = 1e18;
constexpr std::int64_t kMostMicrobatches = 10'000'000;
// Passes that are written out, of all stages: those of warm-up and cool-down and of one round between them. Each takes
// some 40 bytes with its loops; 256 stages of 16 chunks have 4 million.
constexpr double kMostPasses = 6e6;
// What a pass through one part of the model writes out one by one: three nodes for each part of the keys in the ring of
// context parallelism, five for each cross-entropy of the log. The clocks keep their states for every node.
constexpr std::int64_t kMostRing = 1'024;
constexpr std::int64_t kMostMetrics = 1'000;
constexpr std::int64_t kMostMuonSteps = 100;  // four nodes for each matrix of a layer

struct Dimension {
  std::string_view name;
  std::int64_t ParallelPlan::*degree;
};
constexpr std::array<Dimension, 5> kDimensions = {{{"tp", &ParallelPlan::tp},
                                                   {"cp", &ParallelPlan::cp},
                                                   {"ep", &ParallelPlan::ep},
                                                   {"dp", &ParallelPlan::dp},
                                                   {"pp", &ParallelPlan::pp}}};

struct Checker {
  std::vector<Error> errors;

  void fail_at(std::string where, std::string message, std::string expected = "", std::string hint = "") {
    errors.push_back(
        {ErrorCode::kInfeasible, std::move(message), std::move(where), std::move(expected), std::move(hint)});
  }
  void in_range(const char* where, std::int64_t value, std::int64_t most) {
    if (value >= 1 && value <= most) return;
    fail_at(where, fmt::format("{} is out of range", value), fmt::format("a whole number from 1 to {}", most));
  }
  // `part` must divide `whole`; says message(), and which values near `part` do, and divide `also`, too.
  template <class Message>
  void divides(const char* where, std::int64_t part, std::int64_t whole, const Message& message, std::int64_t also = 0,
               const std::string& otherwise = "") {
    if (part < 1 || whole < 1 || whole % part == 0) return;
    const std::int64_t both = std::gcd(whole, also);
    std::int64_t below = part, above = part;
    while (both % below != 0) --below;
    while (above < both && both % above != 0) ++above;
    const std::string choice = above <= both && above != below ? fmt::format("{0}={1} or {0}={2}", where, below, above)
                                                               : fmt::format("{}={}", where, below);
    fail_at(where, message(), fmt::format("a divisor of {}", whole), fmt::format("use {}{}", choice, otherwise));
  }
};

// What tensor parallelism divides: heads, widths and tokens.
class TensorParts {
 public:
  TensorParts(const Model& model, const ParallelPlan& plan, const Training& training) : model_(model), plan_(plan) {
    const auto add = [&](bool divided, std::int64_t whole, const char* what, Spared spared = Spared::kNever) {
      if (divided && whole > 0) parts_[count_++] = {whole, what, spared};
    };
    for (const AttentionHeads& of : all_heads(model)) add(true, of.heads, "the {} attention heads of {}");
    if (model.ffn_of_layers.empty()) {
      add(has_layers(model, &LayerKind::feed_forward, FeedForward::kDense), model.ffn, "the MLP width {} of {}");
    } else {
      std::int64_t common = 0;
      for (std::int64_t layer = 0; layer < model.layers; ++layer) {
        const LayerKind kind = layer_kind(model, layer);
        if (kind.feed_forward == FeedForward::kDense) common = std::gcd(common, kind.ffn > 0 ? kind.ffn : model.ffn);
      }
      add(true, common, "{}, which divides all MLP widths of {}");
    }
    const std::int64_t shared = model.moe ? model.moe->shared_experts * model.moe->shared_expert_ffn : 0;
    add(has_layers(model, &LayerKind::feed_forward, FeedForward::kExperts), shared,
        "the width {} of the shared experts of {}");
    // Groups of Mamba-2 heads are copied where there are fewer of them than ranks.
    const bool scans = model.state_space && has_layers(model, &LayerKind::mixer, Mixer::kStateSpace);
    add(scans, scans ? model.state_space->heads : 0, "the {} Mamba-2 heads of {}");
    const bool deltas = model.delta_net && has_layers(model, &LayerKind::mixer, Mixer::kDeltaNet);
    add(deltas, deltas ? model.delta_net->key_heads : 0, "the {} key heads of the delta rule of {}");
    add(model.compressed.has_value(), model.compressed ? model.compressed->output_groups : 0,
        "the {} groups of heads of {}");
    add(has_layers(model, &LayerKind::mixer, Mixer::kConvolution), model.hidden,
        "the {} channels of the convolutions of {}");
    add(training.mtp, model.hidden, "the hidden size {} of multi-token prediction of {}");
    add(model.moe && plan.etp == 0, model.moe ? model.moe->expert_ffn : 0, "the width {} of the experts of {}",
        Spared::kByExperts);
    // A sequence that cp does not divide is refused with cp.
    const bool split = plan.cp > 1 && training.sequence % plan.cp == 0;
    add(plan.sequence_parallel, split ? training.sequence / plan.cp : training.sequence,
        split ? "the {} tokens of a sequence that a context-parallel rank has, which sequence parallelism does"
              : "the {} tokens of a sequence, which sequence parallelism does",
        Spared::kByTokens);
  }

  // Every refusal names the nearest degrees that suit everything, and where tokens or experts alone do not suit, that
  // they need not be divided.
  void check(Checker& check) const {
    const std::int64_t tp = plan_.tp;
    std::string hint;
    for (std::size_t i = 0; i < count_; ++i) {
      if (parts_[i].whole % tp == 0) continue;
      if (hint.empty()) hint = nearest();
      check.fail_at("plan/tp",
                    fmt::format("tp {} does not divide {}", tp,
                                fmt::format(fmt::runtime(parts_[i].what), parts_[i].whole, model_.name)),
                    fmt::format("a divisor of {}", parts_[i].whole), hint);
    }
    if (!suits_groups(tp)) {
      check.fail_at("plan/tp",
                    fmt::format("tp {} neither divides the {} groups of Mamba-2 heads of {} nor is a multiple of them",
                                tp, model_.state_space->groups, model_.name),
                    "", nearest());
    }
    if (suits_keys(tp)) return;
    check.fail_at("plan/tp",
                  fmt::format("tp {} neither divides the {} key-value heads of {} nor is a multiple of them", tp,
                              model_.kv_heads, model_.name),
                  "", nearest());
  }

 private:
  // By which option a part is not divided.
  enum class Spared { kNever, kByTokens, kByExperts };
  struct Part {
    std::int64_t whole;
    const char* what;
    Spared spared;
  };
  // Groups of Mamba-2 heads, as those of key-value heads: some on each rank, or some ranks with a copy of one.
  bool suits_groups(std::int64_t tp) const {
    const bool scans = model_.state_space && has_layers(model_, &LayerKind::mixer, Mixer::kStateSpace);
    if (!scans || tp > model_.state_space->heads) return true;
    const std::int64_t groups = model_.state_space->groups;
    return groups % tp == 0 || tp % groups == 0;
  }
  bool suits_keys(std::int64_t tp) const {
    if (model_.mla) return true;
    const std::vector<AttentionHeads> all = all_heads(model_);
    return std::all_of(all.begin(), all.end(), [tp](const AttentionHeads& of) {
      if (of.kv_heads == of.heads || tp > of.heads) return true;
      return of.kv_heads % tp == 0 || tp % of.kv_heads == 0;
    });
  }
  // All parts but those that `left_out` spares.
  bool suits(std::int64_t tp, Spared left_out = Spared::kNever) const {
    const auto divides = [&](const Part& part) {
      return part.whole % tp == 0 || (left_out != Spared::kNever && part.spared == left_out);
    };
    return std::all_of(parts_.begin(), parts_.begin() + count_, divides) && suits_keys(tp) && suits_groups(tp) &&
           (!model_.moe || plan_.etp == 0 || tp % plan_.etp == 0);
  }
  std::string nearest() const {
    std::int64_t below = std::min(plan_.tp, model_.heads), above = plan_.tp;
    while (below > 1 && !suits(below)) --below;
    while (above <= model_.heads && !suits(above)) ++above;
    std::string use = above <= model_.heads ? fmt::format("use plan/tp={} or plan/tp={}", below, above)
                                            : fmt::format("use plan/tp={}", below);
    // Ranks that share an expert's tokens need sequence parallelism.
    const bool shares_tokens = model_.moe && expert_tp(plan_) < plan_.tp;
    if (!suits(plan_.tp) && suits(plan_.tp, Spared::kByTokens) && !shares_tokens)
      use += ", or plan/sequence_parallel=off";
    if (!suits(plan_.tp) && suits(plan_.tp, Spared::kByExperts) && plan_.sequence_parallel) use += ", or plan/etp=1";
    return use;
  }

  const Model& model_;
  const ParallelPlan& plan_;
  std::array<Part, 10> parts_{};
  std::uint32_t count_ = 0;
};

// Mamba-2 layers: context-parallel ranks exchange their tokens for heads, and have a group of them or a copy of one
// (Megatron-Core, mamba_context_parallel.py).
void check_state_space(const Model& model, const ParallelPlan& plan, Checker& check) {
  const std::int64_t heads = model.state_space->heads;
  if (plan.cp == 1 || heads % plan.tp != 0) return;  // tp is refused
  check.divides("plan/cp", plan.cp, heads / plan.tp, [&] {
    return fmt::format("cp {} does not divide the {} Mamba-2 heads that a rank of {} has", plan.cp, heads / plan.tp,
                       model.name);
  });
  const std::int64_t groups = std::max<std::int64_t>(1, model.state_space->groups / plan.tp);
  if (groups % plan.cp != 0 && plan.cp % groups != 0) {
    check.fail_at("plan/cp",
                  fmt::format("{} groups of Mamba-2 heads cannot be exchanged among {} ranks", groups, plan.cp),
                  "a divisor or a multiple of the groups", fmt::format("use plan/cp={}", std::gcd(groups, plan.cp)));
  }
}

// Layers that read what other layers made, beside hidden states: no framework sends these from stage to stage.
void check_shared_inputs(const Model& model, const ParallelPlan& plan, Checker& check) {
  if (plan.pp == 1) return;
  const char* what = model.per_layer_embeddings ? "embeddings that the first stage makes for it"
                                                : "keys of a layer that may be on another stage";
  check.fail_at("plan/pp", fmt::format("a layer of {} reads {}", model.name, what), "1", "use plan/pp=1");
}

// Layers with the gated delta rule: context-parallel ranks exchange their tokens for heads.
void check_delta_net(const Model& model, const ParallelPlan& plan, Checker& check) {
  const std::int64_t heads = model.delta_net->key_heads;
  if (plan.cp == 1 || heads % plan.tp != 0) return;  // tp is refused
  check.divides("plan/cp", plan.cp, heads / plan.tp, [&] {
    return fmt::format("cp {} does not divide the {} key heads of the delta rule that a rank of {} has", plan.cp,
                       heads / plan.tp, model.name);
  });
}

void check_context(const Model& model, const ParallelPlan& plan, const Training& training, Checker& check) {
  if (plan.cp_inner > 0 && plan.cp_comm != ContextExchange::kHierarchical) {
    check.fail_at("plan/cp_inner",
                  fmt::format("{} exchanges no heads among some of the ranks", enumerator_name(plan.cp_comm)), "0",
                  "use plan/cp_comm=a2a+p2p, or plan/cp_inner=0");
  }
  if (plan.cp == 1) return;
  // Each rank has a part from the beginning of the sequence and one from its end.
  if (training.sequence % 2 != 0) {
    check.fail_at("training/sequence", fmt::format("{} tokens have no two equal parts", training.sequence),
                  "an even number of tokens", fmt::format("use training/sequence={}", training.sequence + 1));
  } else {
    check.divides("plan/cp", plan.cp, training.sequence / 2, [&] {
      return fmt::format("cp {} does not divide {} tokens into two parts a rank", plan.cp, training.sequence);
    });
  }
  if (!plan.flash_attention) {
    check.fail_at("plan/flash_attention", "context parallelism needs attention that is computed in parts", "on",
                  "use plan/flash_attention=on");
  }
  std::int64_t all_layers = model.heads;  // divide the heads of all
  for (const AttentionHeads& of : all_heads(model)) all_layers = std::gcd(all_layers, of.heads);
  const std::int64_t rank_heads = all_layers / std::max<std::int64_t>(1, plan.tp);
  if (plan.cp_comm == ContextExchange::kAllToAll && !has_sparse_attention(model)) {
    check.divides("plan/cp", plan.cp, rank_heads, [&] {
      return fmt::format("cp {} does not divide the {} heads of a tensor-parallel rank, which a2a exchanges", plan.cp,
                         rank_heads);
    });
  }
  const bool has_inner = plan.cp_comm == ContextExchange::kHierarchical && plan.cp_inner > 0;
  const bool divides = !has_inner || std::gcd(plan.cp, rank_heads) % plan.cp_inner == 0;
  // Keys and values of a head go to one rank, or copies of it to as many ranks each.
  if (const std::int64_t inner = context_inner_ranks(model, plan); divides && inner > 1 && !model.mla) {
    for (const AttentionHeads& of : all_heads(model)) {
      const std::int64_t heads = std::max<std::int64_t>(1, of.kv_heads / std::max<std::int64_t>(1, plan.tp));
      if (heads % inner == 0 || inner % heads == 0) continue;
      check.fail_at(
          plan.cp_comm == ContextExchange::kAllToAll ? "plan/cp" : "plan/cp_inner",
          fmt::format("{} key-value heads of a tensor-parallel rank cannot be exchanged among {} ranks", heads, inner),
          "a divisor or a multiple of the heads",
          has_inner ? "leave plan/cp_inner out" : "use plan/cp_comm=p2p or all-gather");
    }
  }
  if (has_inner) {
    check.divides("plan/cp_inner", plan.cp_inner, std::gcd(plan.cp, rank_heads), [&] {
      return fmt::format("{} ranks do not divide cp {} and the {} heads of a tensor-parallel rank", plan.cp_inner,
                         plan.cp, rank_heads);
    });
  }
  const std::int64_t ring = plan.cp / context_inner_ranks(model, plan);
  if (ring > kMostRing && plan.cp_comm != ContextExchange::kAllGather) {
    check.fail_at("plan/cp", fmt::format("keys and values travel around a ring of {} ranks", ring),
                  fmt::format("rings of at most {} ranks", kMostRing), "use plan/cp_comm=all-gather");
  }
}

// Copies for nodes and ranks: how many follows from the model's groups of experts.
void check_dispatch(const Model& model, const ParallelPlan& plan, Checker& check) {
  if (expert_tp(plan) > 1) {
    check.fail_at("plan/expert_dispatch", "deepep sends a token to one rank of each expert; here experts are divided",
                  "a2a", "use plan/etp=1, or plan/expert_dispatch=a2a");
  }
  const Experts& moe = *model.moe;
  if (!is_possible(moe.routing())) {
    check.fail_at("model/moe/top_groups",
                  fmt::format("{} experts of a token in {} of {} groups of {} experts", moe.top_k, moe.top_groups,
                              moe.groups, moe.experts),
                  "groups that divide the experts, and top groups that hold those of a token");
  }
}

// What ranks share: experts, and what ZeRO spreads.
void check_sharing(const Model& model, const ParallelPlan& plan, Checker& check) {
  if (model.moe) {
    check.divides(
        "plan/etp", expert_tp(plan), plan.tp,
        [&] { return fmt::format("etp {} does not divide tp {}", plan.etp, plan.tp); }, model.moe->expert_ffn);
  }
  if (model.moe && expert_tp(plan) < plan.tp && !plan.sequence_parallel) {
    check.fail_at("plan/etp", "ranks that share an expert's tokens need sequence parallelism",
                  fmt::format("{}", plan.tp), "use plan/sequence_parallel=on");
  }
  if (plan.shard == 0) return;
  if (plan.zero == ZeroStage::kNone) {
    const bool shares = plan.weights == WeightStorage::kMaster;  // PyTorch's replicas have all (check_weights)
    check.fail_at("plan/shard", "nothing is shared under ZeRO 0", "0",
                  shares ? "use plan/zero=1, or leave plan/shard out" : "leave plan/shard out");
    return;
  }
  check.divides("plan/shard", plan.shard, plan.dp * plan.cp, [&] {
    return fmt::format("{} ranks are no whole part of dp {} x cp {}", plan.shard, plan.dp, plan.cp);
  });
  // There are as many sets of experts as of all else (Megatron-Core, parallel_state.py: the expert-data-parallel ranks
  // must be divisible by num_distributed_optimizer_instances).
  const std::int64_t sets = plan.dp * plan.cp / plan.shard;
  if (const std::int64_t all = replicas(plan, true); model.moe && all % std::max<std::int64_t>(1, sets) != 0) {
    check.fail_at("plan/shard", fmt::format("{} replicas of the experts make no {} sets", all, sets),
                  fmt::format("a set for each of at most {} replicas", all),
                  fmt::format("use plan/shard={} or more", plan.dp * plan.cp / std::gcd(all, sets)));
  }
}

// Newton-Schulz iterations read whole matrices (Megatron-Core, arguments.py: no FSDP with such optimizers), and no
// framework runs them on the CPU.
void check_optimizer(const ParallelPlan& plan, Checker& check) {
  if (plan.optimizer != OptimizerKind::kMuon) return;
  check.in_range("plan/muon_steps", plan.muon_steps, kMostMuonSteps);
  if (plan.zero >= ZeroStage::kGradients) {
    check.fail_at("plan/zero", "Muon needs whole matrices on a rank, and ZeRO 2 and 3 split them", "0 or 1",
                  "use plan/zero=1, or plan/optimizer=adam");
  }
  if (plan.offload_optimizer.value > 0) {
    check.fail_at("plan/offload_optimizer", "Muon updates matrices on the GPU alone", "0",
                  "leave plan/offload_optimizer out, or use plan/optimizer=adam");
  }
}

void check_weights(const ParallelPlan& plan, Checker& check) {
  if (plan.weights == WeightStorage::kMaster) return;
  const bool sharded = plan.weights == WeightStorage::kLow && is_fsdp(plan);
  if (plan.zero != ZeroStage::kNone && !sharded) {
    check.fail_at("plan/zero", fmt::format("weights in {} are those of PyTorch alone", enumerator_name(plan.weights)),
                  plan.weights == WeightStorage::kLow ? "0, or 3 of PyTorch's FSDP (plan/zero_library)" : "0",
                  "use plan/zero=0, or plan/weights=master");
  }
  if (plan.grad_accumulation != GradAccumulation::kLow) {
    check.fail_at("plan/grad_accumulation", "autograd adds up gradients in the format of the weights",
                  std::string(enumerator_name(GradAccumulation::kLow)),
                  "use plan/grad_accumulation=low, or plan/weights=master");
  }
}

// An even division has a layer, or what counts as one, for every part of the pipeline: of `chunks` chunks a stage under
// this schedule. Proposes what it can run.
void check_parts(const Model& model, const ParallelPlan& plan, const PipelineSchedule& schedule, std::int64_t chunks,
                 Checker& check) {
  const std::int64_t layers = counted_layers(model, plan);
  if (!plan.pipeline_layout.is_even() || plan.pp * chunks <= layers) return;
  // Chunks of two directions hold the same parts. No schedule has more directions: nothing is written out for more.
  const auto each = chunks > 2 * layers ? chunks : static_cast<std::int64_t>(schedule.seats({1, 1, chunks})[0].size());
  if (plan.pp * each <= layers) return;
  const std::int64_t fewer = layers / plan.pp;
  std::int64_t most = layers / each;
  if (schedule.pairs_stages) most -= most % 2;
  const char* field = "plan/pp";
  std::string use = fmt::format("plan/pp={}", most);
  if (schedule.most_chunks == 0 && plan.vpp > 1 && (fewer > 1 || (fewer == 1 && most == 0))) {
    field = "plan/vpp", most = fewer, use = fmt::format("plan/vpp={}", fewer);
  } else if (most == 0 && schedule.most_chunks == 0) {
    field = "plan/pp, plan/vpp", most = layers, use = fmt::format("plan/pp={} and plan/vpp=1", layers);
  } else if (most == 0) {
    field = "plan/schedule", use = fmt::format("plan/schedule={}", ParallelPlan().schedule);
    if (plan.pp > layers) use += fmt::format(" and plan/pp={}", layers);
  }
  const int more = (plan.account_embedding ? 0 : 1) + (plan.account_loss ? 0 : 1);
  if (most > 0 && plan.pp * each <= layers + more) {
    use += "; with plan/account_embedding=on and plan/account_loss=on these two count as layers";
  }
  check.fail_at(field,
                fmt::format("{} parts of the pipeline are more than the {} of {}", plan.pp * each,
                            counted_layers_text(model, plan), model.name),
                most == 0 ? "a schedule with fewer chunks" : fmt::format("at most {}", most), "use " + use);
}

// Whether sizes are in range: where they are not, nothing else is looked at.
bool check_sizes(const Model& model, const ParallelPlan& plan, const Training& training, Checker& check) {
  check.in_range("model, layers", model.layers, kMostLayers);
  check.in_range("plan/tp", plan.tp, kMostRanks);
  check.in_range("plan/pp", plan.pp, kMostRanks);
  check.in_range("plan/dp", plan.dp, kMostRanks);
  check.in_range("plan/cp", plan.cp, kMostRanks);
  check.in_range("plan/ep", plan.ep, kMostRanks);
  check.in_range("plan/vpp", plan.vpp, kMostRanks);
  check.in_range("training/micro_batch", training.micro_batch, kMostOfTraining);
  check.in_range("training/global_batch", training.global_batch, kMostOfTraining);
  check.in_range("training/sequence", training.sequence, kMostOfTraining);
  if (training.sequence > 0 && training.micro_batch > kMostOfTraining / training.sequence) {
    check.fail_at("training/micro_batch, training/sequence",
                  fmt::format("a microbatch of {} sequences of {} tokens is too large to be forecast",
                              training.micro_batch, training.sequence),
                  fmt::format("at most {} tokens a microbatch", kMostOfTraining),
                  "write a smaller training/micro_batch or training/sequence");
  }
  std::int64_t heads = 0;
  for (const AttentionHeads& of : all_heads(model)) heads = std::max(heads, of.heads);
  const double scores = static_cast<double>(heads) * static_cast<double>(training.micro_batch) *
                        static_cast<double>(training.sequence) * static_cast<double>(training.sequence);
  if (!plan.flash_attention && scores > kMostScores) {
    check.fail_at("training/sequence",
                  fmt::format("{} sequences of {} tokens have too many scores of unfused attention to be forecast",
                              training.micro_batch, training.sequence),
                  fmt::format("at most {:.0e}, of {} heads", kMostScores, heads),
                  "write a smaller training/sequence, or plan/flash_attention=on");
  }
  if (plan.etp != 0) check.in_range("plan/etp", plan.etp, kMostRanks);
  if (plan.shard != 0) check.in_range("plan/shard", plan.shard, kMostRanks);
  if (!check.errors.empty()) return false;

  const double ranks = static_cast<double>(plan.tp) * static_cast<double>(plan.pp) * static_cast<double>(plan.dp) *
                       static_cast<double>(plan.cp);
  if (ranks > static_cast<double>(kMostRanks)) {
    check.fail_at("plan/dp", fmt::format("tp x cp x pp x dp is {:.3g} ranks", ranks),
                  fmt::format("at most {} ranks", kMostRanks));
    return false;
  }
  return true;
}

// Over how many ranks experts and their parts are spread, and how their tokens travel.
void check_experts(const Model& model, const ParallelPlan& plan, Checker& check) {
  if (plan.etp > 0 && plan.etp != plan.tp && !model.moe) {
    check.fail_at("plan/etp", fmt::format("{} has no experts to split over {} ranks", model.name, plan.etp), "0",
                  "use plan/etp=0");
  }
  if (plan.ep > 1) {
    if (!model.moe) {
      check.fail_at("plan/ep", fmt::format("{} has no experts to spread over {} ranks", model.name, plan.ep), "1",
                    "use plan/ep=1");
    } else {
      const std::int64_t over = plan.dp * plan.cp * std::max<std::int64_t>(1, plan.tp / expert_tp(plan));
      check.divides(
          "plan/ep", plan.ep, model.moe->experts,
          [&] {
            return fmt::format("ep {} does not divide the {} experts of {}", plan.ep, model.moe->experts, model.name);
          },
          over);
      const std::int64_t others = over / plan.dp;  // in each replica
      const bool whole_experts = expert_tp(plan) > 1 && plan.dp * plan.cp * plan.tp % plan.ep == 0;
      check.divides(
          "plan/ep", plan.ep, over,
          [&] {
            return fmt::format("ep {} does not divide the {} rank{} over which experts are spread (dp x cp x tp / etp)",
                               plan.ep, over, over == 1 ? "" : "s");
          },
          model.moe->experts,
          fmt::format("{}, or a multiple of {} for plan/dp", whole_experts ? ", or 1 for plan/etp" : "",
                      plan.ep / std::gcd(plan.ep, others)));
    }
  }
  if (model.moe && plan.expert_capacity.value > 0 && plan.expert_dispatch != ExpertDispatch::kAllToAll) {
    check.fail_at("plan/expert_capacity",
                  fmt::format("{} sends the tokens that there are; padded experts have rows of their own",
                              field_text(plan.expert_dispatch)),
                  "0", "use plan/expert_dispatch=a2a, or plan/expert_capacity=0");
  }
  if (model.moe && plan.expert_dispatch == ExpertDispatch::kDeepEp) check_dispatch(model, plan, check);
  if (model.moe && plan.etp > 0) {
    check.divides(
        "plan/etp", plan.etp, model.moe->expert_ffn,
        [&] { return fmt::format("etp {} does not divide the experts' width {}", plan.etp, model.moe->expert_ffn); },
        plan.tp);
  }
}

// All that does not depend on the schedule, on its chunks or on what runs beside passes. Returns whether sizes are in
// range.
bool check_but_schedule(const Model& model, const ParallelPlan& plan, const Training& training, Checker& check) {
  if (!check_sizes(model, plan, training, check)) return false;
  if (const auto order = rank_order(plan); !order) check.errors.push_back(order.error());
  TensorParts(model, plan, training).check(check);
  const std::int64_t sequences = training.micro_batch * plan.dp;
  if (training.global_batch % sequences != 0) {
    const std::int64_t below = training.global_batch / sequences * sequences, above = below + sequences;
    check.fail_at("training/global_batch",
                  fmt::format("{} sequences are not divisible by micro-batch {} x dp {}", training.global_batch,
                              training.micro_batch, plan.dp),
                  fmt::format("a multiple of {}", sequences),
                  below > 0 ? fmt::format("use training/global_batch={} or training/global_batch={}", below, above)
                            : fmt::format("use training/global_batch={}", above));
  }
  check_experts(model, plan, check);
  if (model.state_space && has_layers(model, &LayerKind::mixer, Mixer::kStateSpace))
    check_state_space(model, plan, check);
  if (model.delta_net && has_layers(model, &LayerKind::mixer, Mixer::kDeltaNet)) check_delta_net(model, plan, check);
  if (model.per_layer_embeddings || model.shared_keys_layers > 0) check_shared_inputs(model, plan, check);
  if (training.mtp && model.prediction_layers == 0) {
    check.fail_at("training/mtp", fmt::format("{} has no layers for multi-token prediction", model.name), "off",
                  "use training/mtp=off, or give its \"prediction_layers\"");
  }
  if (plan.lora_rank > model.hidden) {
    check.fail_at("plan/lora_rank",
                  fmt::format("{} is more than the rank of a layer of {}", plan.lora_rank, model.name),
                  fmt::format("at most the hidden size {}", model.hidden), "use plan/lora_rank=16");
  }
  if (plan.frozen_weights != FrozenWeights::kPlain && plan.lora_rank == 0) {
    check.fail_at("plan/frozen_weights", "nothing is frozen without adapters", "plain",
                  "use plan/lora_rank=16, or leave plan/frozen_weights out");
  } else if (plan.frozen_weights != FrozenWeights::kPlain && quantizes(training.precision)) {
    check.fail_at("plan/frozen_weights", "weights in 4 bits are cast to 16 bits, not to 8", "plain",
                  "use training/dtype=bf16, or leave plan/frozen_weights out");
  }
  if (plan.loss_metrics > kMostMetrics) {
    check.fail_at("plan/loss_metrics", fmt::format("{} cross-entropies after each microbatch", plan.loss_metrics),
                  fmt::format("at most {}", kMostMetrics));
  }
  check_context(model, plan, training, check);
  check_sharing(model, plan, check);
  check_optimizer(plan, check);
  check_weights(plan, check);
  return true;
}

}  // namespace

Result<std::vector<std::string_view>> rank_order(const ParallelPlan& plan) {
  const auto refuse = [&](std::string message, std::string hint = "") {
    return fail({ErrorCode::kInvalidInput, std::move(message), "plan/order",
                 "tp, cp, ep, dp and pp joined by \"-\", innermost first, ep beside dp",
                 hint.empty() ? "use, for example, plan/order=tp-cp-ep-dp-pp" : std::move(hint)});
  };
  std::vector<std::string_view> order;
  order.reserve(kDimensions.size());
  const auto position = [&](std::string_view name) { return std::find(order.begin(), order.end(), name); };
  for (std::string_view rest = plan.order;;) {
    const std::size_t end = rest.find('-');
    const std::string_view name = rest.substr(0, end);
    const auto known = std::find_if(kDimensions.begin(), kDimensions.end(),
                                    [name](const Dimension& dimension) { return dimension.name == name; });
    if (known == kDimensions.end()) return refuse(fmt::format("\"{}\" is no parallel dimension", name));
    if (position(name) != order.end()) return refuse(fmt::format("{} is named twice", name));
    order.push_back(known->name);
    if (end == std::string_view::npos) break;
    rest = rest.substr(end + 1);
  }
  for (const Dimension& dimension : kDimensions) {
    if (position(dimension.name) != order.end()) continue;
    if (dimension.name == "ep") {
      if (position("dp") != order.end()) order.insert(position("dp"), dimension.name);
      continue;
    }
    if (plan.*dimension.degree > 1) {
      return refuse(fmt::format("{} {} has no place in \"{}\"", dimension.name, plan.*dimension.degree, plan.order),
                    fmt::format("add {}", dimension.name));
    }
    order.insert(dimension.name == "dp" && position("ep") != order.end() ? position("ep") + 1 : order.end(),
                 dimension.name);
  }
  if (position("ep") == order.end()) order.insert(position("dp"), "ep");
  const auto apart = position("dp") - position("ep");
  if (apart != 1 && apart != -1) return refuse("ep is not beside dp, of which it is a part");
  return order;
}

Mesh mesh_of(const ParallelPlan& plan) {
  const auto order = rank_order(plan);
  NS_EXPECTS(order.has_value());
  std::vector<std::string_view> names;
  std::vector<std::int64_t> sizes;
  names.reserve(order->size());
  sizes.reserve(order->size());
  for (const std::string_view name : *order) {
    if (name == "ep") continue;
    const auto known = std::find_if(kDimensions.begin(), kDimensions.end(),
                                    [name](const Dimension& dimension) { return dimension.name == name; });
    names.push_back(known->name);
    sizes.push_back(plan.*known->degree);
  }
  return Mesh::innermost_first(names, sizes);
}

std::int64_t microbatches_of(const ParallelPlan& plan, const Training& training) {
  return training.global_batch / (training.micro_batch * plan.dp);
}

Result<void> check_plan(const Model& model, const ParallelPlan& plan, const Training& training) {
  PlanCache cache;
  return check_plan(model, plan, training, cache);
}

Result<void> check_plan(const Model& model, const ParallelPlan& plan, const Training& training, PlanCache& cache) {
  NS_TRY_VOID(pipeline_of(model, plan, training, cache));
  return {};
}

Result<void> check_all_but_schedule(const Model& model, const ParallelPlan& plan, const Training& training) {
  Checker check;
  // One chunk a stage is the least of all schedules.
  if (check_but_schedule(model, plan, training, check)) check_parts(model, plan, traits_of(ParallelPlan()), 1, check);
  if (!check.errors.empty()) return fail(join(std::move(check.errors)));
  return {};
}

namespace {

// A layout has the layers for multi-token prediction that are trained.
void check_predictions(const Model& model, const ParallelPlan& plan, const Training& training,
                       const std::vector<LayerRange>& layers, Checker& check) {
  if (plan.pipeline_layout.is_even() || layers.empty()) return;
  std::int64_t written = 0;
  for (const LayerRange& each : layers) written += each.predictions;
  const std::int64_t trained = training.mtp ? model.prediction_layers : 0;
  if (written == trained) return;
  check.fail_at("plan/pipeline_layout",
                fmt::format("{} layer{} for multi-token prediction, and the step trains {}", written,
                            written == 1 ? "" : "s", trained),
                fmt::format("{} times m", trained),
                written == model.prediction_layers ? "use training/mtp=on" : fmt::format("write {} m", trained));
}

}  // namespace

Result<Pipeline> pipeline_of(const Model& model, const ParallelPlan& plan, const Training& training, PlanCache& cache) {
  Checker check;
  Pipeline pipeline;
  if (!check_but_schedule(model, plan, training, check)) return fail(join(std::move(check.errors)));
  if (auto layout = check_layout(model, plan); !layout) check.errors.push_back(std::move(layout.error()));
  const auto schedule = pipeline_schedule(plan.schedule);
  if (schedule) {
    const std::int64_t chunks = (*schedule)->has_chunks(plan.vpp) ? plan.vpp : (*schedule)->least_chunks;
    check_parts(model, plan, **schedule, chunks, check);
  }
  if (!schedule) {
    check.errors.push_back(schedule.error());
  } else if ((*schedule)->hides_tokens && plan.ep == 1) {
    check.fail_at(
        "plan/schedule", fmt::format("{} hides the exchange of tokens, and ep 1 has none", plan.schedule),
        "a plan with experts on several ranks",
        fmt::format("use plan/schedule={}{}", plan.vpp > 1 ? "interleaved" : "1f1b", model.moe ? ", or plan/ep" : ""));
  } else if (check.errors.empty()) {
    const std::int64_t microbatches = microbatches_of(plan, training);
    if (microbatches > kMostMicrobatches) {
      check.fail_at("training/global_batch", fmt::format("{} microbatches", microbatches),
                    fmt::format("at most {} microbatches", kMostMicrobatches),
                    "use a larger training/micro_batch or plan/dp");
    } else if (const double written = 2.0 * static_cast<double>(plan.pp * plan.vpp) *
                                      static_cast<double>(std::min(microbatches, 2 * plan.pp));
               written > kMostPasses) {
      check.fail_at("plan/pp", fmt::format("{} stages of {} chunks have {:.3g} passes", plan.pp, plan.vpp, written),
                    fmt::format("at most {:.0e} passes", kMostPasses), "use a smaller plan/pp or plan/vpp");
    } else {
      const PassesKey key{.schedule = *schedule,
                          .shape = {plan.pp, microbatches, plan.vpp},
                          .gathers = plan.overlap_param_gather && gathers_weights_once(plan),
                          .reduces = plan.overlap_grad_reduce && reduces_gradients_once(plan),
                          .forward = plan.passes == Passes::kForward};
      if (auto passes = stage_passes(key, cache); !passes) {
        Error& error = check.errors.emplace_back(std::move(passes.error()));
        // A schedule counts microbatches. Those that ask for another number ask for one more.
        if (error.where == "training/global_batch") {
          error.hint = fmt::format("use training/global_batch={}", (microbatches + 1) * training.micro_batch * plan.dp);
        }
      } else {
        pipeline.passes = *std::move(passes);
        auto layers = divide_layers(model, plan, pipeline.passes->seats);
        layers ? void(pipeline.layers = *std::move(layers)) : check.errors.push_back(std::move(layers.error()));
        check_predictions(model, plan, training, pipeline.layers, check);
      }
    }
  }
  if (!check.errors.empty()) return fail(join(std::move(check.errors)));
  return pipeline;
}

}  // namespace ns_dist
