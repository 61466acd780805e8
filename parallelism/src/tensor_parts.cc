#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "checker.h"
#include "shape.h"

namespace ns_dist {
namespace {

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
           (!model_.moe || plan_.etp == 0 || tp % plan_.etp == 0 || plan_.etp % tp == 0);
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

}  // namespace

void check_tensor_parts(const Model& model, const ParallelPlan& plan, const Training& training, Checker& check) {
  TensorParts(model, plan, training).check(check);
}

}  // namespace ns_dist
