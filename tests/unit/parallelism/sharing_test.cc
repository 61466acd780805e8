// Context parallelism, shared weights and gradients, experts' own tensor parallelism, 8-bit products and recomputed
// modules against closed forms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "block.h"
#include "ns_dist/memory.h"
#include "ns_dist/parameters.h"
#include "ns_dist/planner.h"
#include "parallelism_models.h"
#include "support/planned_graph.h"

namespace ns_dist {
namespace {

using namespace units;
using ::testing::HasSubstr;

const BlockStep& step_named(const Block& block, std::string_view name) {
  for (const BlockStep& each : block.steps) {
    if (each.name == name) return each;
  }
  ADD_FAILURE() << "no step " << name;
  return block.steps.front();
}

// Multiply-adds of queries and keys, heads in full.
double pairs(const std::vector<Call>& calls) {
  double sum = 0;
  for (const Call& call : calls) {
    const auto* op = std::get_if<Operator>(&call.what);
    const auto* attention = op != nullptr ? std::get_if<Attention>(&op->kind) : nullptr;
    if (attention == nullptr) continue;
    const double all = static_cast<double>(attention->batch * attention->heads) *
                       static_cast<double>(attention->query_length * attention->key_length);
    sum += attention->causal ? all / 2 : all;
  }
  return sum;
}

double sent(const std::vector<Call>& calls, CollectiveKind kind) {
  double bytes = 0;
  for (const Call& call : calls) {
    const auto* communication = std::get_if<Communication>(&call.what);
    if (communication != nullptr && communication->kind == kind) bytes += communication->size / B;
  }
  return bytes;
}

struct Context : ::testing::Test {
  Model model = llama(2, 4096, 32, 8, 14336);
  Training training{8, 1, 8192, Precision::kBf16};
  double s = 8192, heads = 32, kv = 2 * 8 * 128 * 2;  // bytes of a token's keys and values

  BlockStep core(std::int64_t cp, ContextExchange how) const {
    const ParallelPlan plan{.cp = cp, .cp_comm = how};
    return step_named(attention_block(Shape(model, plan, training)), "attention.core");
  }
};

// A causal mask leaves s^2 / 2 pairs; each rank has its share of them, whichever way keys travel.
TEST_F(Context, DividesTheWorkEvenly) {
  for (const std::int64_t cp : {2, 4, 8}) {
    const double share = heads * s * s / 2 / static_cast<double>(cp);
    EXPECT_NEAR(pairs(core(cp, ContextExchange::kRing).forward) / share, 1, 1e-12) << cp;
    EXPECT_NEAR(pairs(core(cp, ContextExchange::kRing).input_gradient) / share, 1, 1e-12) << cp;
    EXPECT_NEAR(pairs(core(cp, ContextExchange::kAllToAll).forward) / share, 1, 1e-12) << cp;
    EXPECT_NEAR(pairs(core(cp, ContextExchange::kAllGather).forward) / share, 1, 1e-12) << cp;
  }
}

// Around a ring, a rank computes the pairs that its two pieces of the sequence have inside the window, those of the
// busiest rank counted one by one; as many later parts as the window reaches have a kernel. Keys of all parts travel.
TEST_F(Context, AWindowLeavesTheRingItsOwnPairs) {
  for (const std::int64_t cp : {2, 4, 8}) {
    const std::int64_t length = training.sequence, local = length / cp, piece = local / 2;
    for (const std::int64_t window : {1, 128, 512, 1024, 1500, 3000, 8000, 8192}) {
      model.sliding_window = window;
      double busiest = 0;
      for (std::int64_t rank = 0; rank < cp; ++rank) {
        double seen = 0;
        for (std::int64_t i = 0; i < piece; ++i) {
          for (const std::int64_t token : {rank * piece + i, length - 1 - rank * piece - i}) {
            seen += static_cast<double>(std::min(token + 1, window));
          }
        }
        busiest = std::max(busiest, seen);
      }
      const BlockStep ring = core(cp, ContextExchange::kRing);
      const auto count = [&](const std::vector<Call>& calls, double flops_of_pair) {
        double flops = 0;
        std::int64_t kernels = 0, merges = 0;
        for (const Call& call : calls) {
          const auto* op = std::get_if<Operator>(&call.what);
          if (op != nullptr && std::holds_alternative<Elementwise>(op->kind)) ++merges;
          if (op == nullptr || !std::holds_alternative<Attention>(op->kind)) continue;
          flops += work_of(*op).flops / FLOP;
          ++kernels;
        }
        EXPECT_NEAR(flops / (flops_of_pair * heads * busiest), 1, 1e-3) << cp << " " << window;
        const std::int64_t reached = window == 8192 ? cp - 1 : (window - 1 + local - 1) / local;
        EXPECT_EQ(kernels, 1 + std::min(cp - 1, reached)) << cp << " " << window;
        EXPECT_EQ(merges, kernels - 1);
      };
      count(ring.forward, 4 * 128);
      count(ring.input_gradient, 10 * 128);
      EXPECT_DOUBLE_EQ(sent(ring.forward, CollectiveKind::kSendRecv), static_cast<double>((cp - 1) * local) * kv);
    }
  }
}

// Gathered keys: what a query sees inside the window, as many as the busiest rank's queries.
TEST_F(Context, AWindowLeavesGatheredKeysTheirPairs) {
  for (const std::int64_t cp : {2, 8}) {
    for (const std::int64_t window : {128, 4096}) {
      model.sliding_window = window;
      const auto flops = [&](ContextExchange how) {
        double sum = 0;
        for (const Call& call : core(cp, how).forward) {
          const auto* op = std::get_if<Operator>(&call.what);
          if (op != nullptr && std::holds_alternative<Attention>(op->kind)) sum += work_of(*op).flops / FLOP;
        }
        return sum;
      };
      const double ratio = flops(ContextExchange::kAllGather) / flops(ContextExchange::kRing);
      EXPECT_NEAR(ratio, 1, 0.01) << cp << " " << window;
    }
  }
}

// Chunks of 1,024 tokens: 8 x 1,024^2 / 2 pairs, whichever way keys travel and whether a rank's pieces of the sequence
// are shorter or longer than a chunk.
TEST_F(Context, ChunksLeaveAllRanksTheirPairs) {
  model.sliding_window = 1024;
  model.chunked_attention = true;
  for (const std::int64_t cp : {2, 4, 8, 16}) {
    const double share = heads * 8 * 1024 * 1024 / 2 / static_cast<double>(cp);
    for (const ContextExchange how :
         {ContextExchange::kRing, ContextExchange::kAllGather, ContextExchange::kAllToAll}) {
      EXPECT_NEAR(pairs(core(cp, how).forward) / share, 1, 0.01) << cp << " " << name_of(how);
    }
  }
}

// Tokens of an encoder see all others: s^2 pairs.
TEST_F(Context, EncodersSeeAllTokens) {
  model.bidirectional = true;
  for (const std::int64_t cp : {1, 2, 8}) {
    const double share = heads * s * s / static_cast<double>(cp);
    for (const ContextExchange how :
         {ContextExchange::kRing, ContextExchange::kAllGather, ContextExchange::kAllToAll}) {
      EXPECT_NEAR(pairs(core(cp, how).forward) / share, 1, 1e-3) << cp << " " << name_of(how);
    }
  }
}

// The core keeps its output of the heads that it computed, the projection that of all heads of the rank's tokens.
TEST_F(Context, ExchangedHeadsAreKeptTwice) {
  const auto kept = [&](ContextExchange how) {
    const ParallelPlan plan{.cp = 4, .cp_comm = how};
    return kept_bytes(attention_block(Shape(model, plan, training)), Recompute::kNone).after_forward;
  };
  EXPECT_DOUBLE_EQ(kept(ContextExchange::kAllToAll) - kept(ContextExchange::kRing), s / 4 * heads * 128 * 2);
  EXPECT_DOUBLE_EQ(kept(ContextExchange::kAllGather), kept(ContextExchange::kRing));
}

// phi-4 has 10 key-value heads: among 4 ranks they would be lost or doubled. 8 heads have two copies among 16 ranks.
TEST_F(Context, HeadsAreExchangedAmongRanksThatShareThem) {
  const auto refused = [&](std::int64_t cp) {
    const auto checked = check_plan(model, {.cp = cp, .cp_comm = ContextExchange::kAllToAll}, training);
    return checked ? std::string() : to_text(checked.error());
  };
  EXPECT_EQ(refused(4), "");
  EXPECT_EQ(refused(16), "");
  model.heads = 40, model.kv_heads = 10;
  EXPECT_THAT(refused(4), ::testing::HasSubstr("10 key-value heads"));
}

// Liu et al. 2023 (arXiv 2310.01889): keys and values of a rank go to cp - 1 others, and back with their gradients.
TEST_F(Context, SendsKeysAndValuesAround) {
  const double own = s / 4 * kv;
  EXPECT_DOUBLE_EQ(sent(core(4, ContextExchange::kRing).forward, CollectiveKind::kSendRecv), 3 * own);
  EXPECT_DOUBLE_EQ(sent(core(4, ContextExchange::kRing).input_gradient, CollectiveKind::kSendRecv),
                   (1 + 2 + 2 + 1) * own);
  EXPECT_DOUBLE_EQ(sent(core(4, ContextExchange::kAllGather).forward, CollectiveKind::kAllGather), 4 * own);
  // Jacobs et al. 2023 (arXiv 2309.14509): queries, keys and values to the ranks of their heads, and outputs back.
  const double queries = s / 4 * heads * 128 * 2;
  EXPECT_DOUBLE_EQ(sent(core(4, ContextExchange::kAllToAll).forward, CollectiveKind::kAllToAll), 2 * queries + own);
}

// Heads are exchanged among all ranks, or among none: the other two exchanges.
TEST_F(Context, HierarchyHasTheOthersAsItsEnds) {
  const auto block = [&](const ParallelPlan& plan) {
    const Block made = attention_block(Shape(model, plan, training));
    const BlockStep& part = step_named(made, "attention.core");
    return std::pair(part.forward, part.input_gradient);
  };
  for (const std::int64_t cp : {2, 4, 8}) {
    const auto calls = [&](ContextExchange how, std::int64_t inner) {
      auto [forward, backward] = block({.cp = cp, .cp_comm = how, .cp_inner = inner});
      return std::pair(std::move(forward), std::move(backward));
    };
    EXPECT_EQ(calls(ContextExchange::kHierarchical, cp), calls(ContextExchange::kAllToAll, 0)) << cp;
    EXPECT_EQ(calls(ContextExchange::kHierarchical, 1), calls(ContextExchange::kRing, 0)) << cp;
    EXPECT_EQ(calls(ContextExchange::kHierarchical, 0), calls(ContextExchange::kAllToAll, 0)) << "8 key-value heads";
  }
}

// Each exchange of heads has a copy before it and one behind it, of what travels.
TEST_F(Context, HeadsArePackedAndReordered) {
  const ParallelPlan plan{.cp = 8, .cp_comm = ContextExchange::kAllToAll};
  const Block block = attention_block(Shape(model, plan, training));
  const BlockStep& core = step_named(block, "attention.core");
  for (const std::vector<Call>* calls : {&core.forward, &core.input_gradient}) {
    int exchanges = 0;
    for (std::size_t i = 0; i < calls->size(); ++i) {
      const auto* exchange = std::get_if<Communication>(&(*calls)[i].what);
      if (exchange == nullptr) continue;
      ++exchanges;
      ASSERT_TRUE(i > 0 && i + 1 < calls->size());
      for (const auto& [copy, suffix] : {std::pair(i - 1, ".pack"), std::pair(i + 1, ".reorder")}) {
        EXPECT_EQ((*calls)[copy].name, (*calls)[i].name + suffix);
        EXPECT_EQ(std::get<Copy>(std::get<Operator>((*calls)[copy].what).kind).bytes, exchange->size);
      }
    }
    EXPECT_EQ(exchanges, 2);
  }
}

// 8 ranks, 4 of which exchange heads: a ring of two. A rank's keys and values are as many bytes after the exchange as
// before, so they travel once where 7 parts do in a ring alone.
TEST_F(Context, HierarchyExchangesHeadsAndSendsKeys) {
  const ParallelPlan plan{.cp = 8, .cp_comm = ContextExchange::kHierarchical, .cp_inner = 4};
  const Block block = attention_block(Shape(model, plan, training));
  const BlockStep& core = step_named(block, "attention.core");
  const double own = s / 8 * kv, queries = s / 8 * 32 * 128 * 2;
  EXPECT_DOUBLE_EQ(sent(core.forward, CollectiveKind::kAllToAll), 2 * queries + own);
  EXPECT_DOUBLE_EQ(sent(core.input_gradient, CollectiveKind::kAllToAll), 2 * queries + own);
  EXPECT_DOUBLE_EQ(sent(core.forward, CollectiveKind::kSendRecv), own);
  EXPECT_DOUBLE_EQ(sent(core.input_gradient, CollectiveKind::kSendRecv), 2 * own);
  const double share = heads * s * s / 2 / 8;
  EXPECT_NEAR(pairs(core.forward) / share, 1, 1e-12);
  EXPECT_NEAR(pairs(core.input_gradient) / share, 1, 1e-12);
  // Ranks 0 to 3 exchange heads; the ring goes from each to the rank 4 further.
  const auto graph = planned_graph(model, plan, training);
  ASSERT_TRUE(graph) << to_text(graph.error());
  std::map<std::string, RankGroup> groups;
  for (const WorkItem& item : graph->works()) {
    if (const auto* call = std::get_if<Collective>(&item.work)) groups[item.name] = call->group;
  }
  EXPECT_EQ(groups.at("attention.heads.all_to_all"), (RankGroup{0, {{4, 1}}}));
  EXPECT_EQ(groups.at("attention.ring"), (RankGroup{0, {{2, 4}}}));
  // More ranks than key-value heads: each brings a copy of one head's keys for all tokens of the neighbors.
  const ParallelPlan more{.cp = 32, .cp_comm = ContextExchange::kHierarchical, .cp_inner = 16};
  const Block copied = attention_block(Shape(model, more, training));
  const std::vector<Call>& forward = step_named(copied, "attention.core").forward;
  EXPECT_DOUBLE_EQ(sent(forward, CollectiveKind::kSendRecv), s / 2 * kv / 8);
  EXPECT_DOUBLE_EQ(sent(forward, CollectiveKind::kAllToAll), 2 * s / 32 * 32 * 128 * 2 + s / 2 * kv / 8);
}

// As many neighbors as lie in a node and divide the 8 key-value heads, or what tensor parallelism leaves of them.
TEST_F(Context, UsualHierarchyLiesInANode) {
  const auto inner = [&](std::int64_t tp, std::int64_t cp, std::int64_t node) {
    return usual_cp_inner(model, {.tp = tp, .cp = cp, .cp_comm = ContextExchange::kHierarchical}, node);
  };
  EXPECT_EQ(inner(1, 16, 8), 8);
  EXPECT_EQ(inner(1, 16, 72), 8);
  EXPECT_EQ(inner(1, 16, 4), 4);
  EXPECT_EQ(inner(2, 16, 8), 4);
  EXPECT_EQ(inner(4, 16, 8), 2);
  EXPECT_EQ(inner(8, 16, 8), 1);
  EXPECT_EQ(inner(1, 6, 8), 2);
  EXPECT_EQ(usual_cp_inner(model, {.cp = 16}, 8), 0) << "a ring";
}

TEST_F(Context, RefusesWhatItCannotDivide) {
  const auto error_of = [&](const ParallelPlan& plan) {
    const auto checked = check_plan(model, plan, training);
    return checked ? std::string() : to_text(checked.error());
  };
  EXPECT_EQ(error_of({.cp = 4}), "");
  EXPECT_THAT(error_of({.cp = 3}), HasSubstr("cp 3 does not divide 8192 tokens into two parts a rank"));
  EXPECT_THAT(error_of({.cp = 2, .flash_attention = false}), HasSubstr("plan/flash_attention"));
  EXPECT_THAT(error_of({.tp = 8, .cp = 8, .cp_comm = ContextExchange::kAllToAll}),
              HasSubstr("does not divide the 4 heads"));
  EXPECT_THAT(error_of({.tp = 8, .cp = 8, .cp_comm = ContextExchange::kHierarchical, .cp_inner = 8}),
              HasSubstr("8 ranks do not divide cp 8 and the 4 heads"));
  EXPECT_THAT(error_of({.cp = 8, .cp_inner = 2}), HasSubstr("use plan/cp_comm=a2a+p2p"));
}

double padded_parameters(const Model& model) {
  const double table =
      static_cast<double>(model.hidden) * static_cast<double>((model.vocabulary + 127) / 128 * 128 - model.vocabulary);
  return model_parameters(model).total() + table * (model.tied_embeddings ? 1 : 2);
}

// Rajbhandari et al. 2020 (arXiv 1910.02054), s.7: weights are gathered for the forward and the backward pass,
// gradients reduced once; here in each of the microbatches, embedding and head once.
TEST(SharedWeights, MoveThreeTimesTheModel) {
  const Model model = llama(4, 512, 8, 8, 1024);
  const Training training{32, 2, 256, Precision::kBf16};
  ParallelPlan plan{.dp = 8, .zero = ZeroStage::kParameters};
  const double microbatches = 2, all = padded_parameters(model),
               layers = 4 * parameters_of(layer_block(Shape(model, plan, training), layer_kind(model, 0))).total();
  Totals traffic = totals_of(model, plan, training);
  EXPECT_NEAR(traffic.bytes["weights.all_gather"], 2 * microbatches * (all + layers), 1);
  EXPECT_NEAR(traffic.bytes["gradients.reduce_scatter"], 4 * microbatches * all, 1);
  // A pass for weight gradients alone multiplies inputs and gradients: it gathers no layer, and no table.
  const auto gathered = [&](const char* schedule) {
    return totals_of(model, {.pp = 2, .dp = 4, .schedule = schedule, .zero = ZeroStage::kParameters}, training)
        .bytes["weights.all_gather"];
  };
  EXPECT_NEAR(gathered("zb-h1"), gathered("1f1b"), 1);
  plan.reshard = false;
  EXPECT_NEAR(totals_of(model, plan, training).bytes["weights.all_gather"], 2 * microbatches * all, 1);
  plan.zero = ZeroStage::kGradients;
  traffic = totals_of(model, plan, training);
  EXPECT_NEAR(traffic.bytes["weights.all_gather"], 2 * all, 1);
  EXPECT_NEAR(traffic.bytes["gradients.reduce_scatter"], 4 * microbatches * all, 1);
  // In sets of 4: each set scatters, then rank i of one set sums with rank i of the other.
  plan.shard = 4;
  traffic = totals_of(model, plan, training);
  EXPECT_NEAR(traffic.bytes["gradients.reduce_scatter"], 4 * microbatches * all, 1);
  EXPECT_NEAR(traffic.bytes["gradients.all_reduce"], 4 * microbatches * all / 4, 1);
}

// Replicas of experts make as many sets as those of all else, or none are made.
TEST(SharedWeights, ExpertsHaveAsManySets) {
  Model model = llama(4, 512, 8, 8, 1024);
  model.moe = Experts{16, 2, 256, 0, 0, 0};
  const Training training{32, 1, 256, Precision::kBf16};
  ParallelPlan plan{.dp = 32, .ep = 8};
  plan.shard = 8;  // 4 sets, 4 replicas of each expert
  EXPECT_TRUE(plan_program(model, plan, training));
  plan.shard = 4;
  const auto refused = plan_program(model, plan, training);
  ASSERT_FALSE(refused);
  EXPECT_EQ(to_text(refused.error()),
            "plan/shard: 4 replicas of the experts make no 8 sets; expected a set for each of at most 4 replicas; use "
            "plan/shard=8 or more");
}

// A layer's weights come beside the layer before it: embedding, head and the first layer's are gathered before the
// first layer begins.
TEST(SharedWeights, ComeALayerAhead) {
  const auto graph = planned_graph(llama(4, 512, 8, 8, 1024), {.dp = 8, .zero = ZeroStage::kParameters},
                                   {8, 1, 256, Precision::kBf16});
  ASSERT_TRUE(graph) << to_text(graph.error());
  std::vector<bool> before(graph->node_count(), false);  // the first kernel of a layer
  const auto name = [&](std::uint32_t n) { return graph->work_of(NodeId{n}).name; };
  std::vector<NodeId> open;
  for (std::uint32_t n = 0; open.empty(); ++n) {
    if (name(n) == "attention.norm") open.push_back(NodeId{n});
  }
  int gathers = 0;
  const auto visit = [&](NodeId node) {
    if (node == kNoNode || before[index(node)]) return;
    before[index(node)] = true;
    gathers += name(index(node)) == "weights.all_gather" ? 1 : 0;
    open.push_back(node);
  };
  while (!open.empty()) {
    const NodeId node = open.back();
    open.pop_back();
    visit(graph->previous_on_lane(node));
    for (const NodeId on : graph->dependencies(node)) visit(on);
  }
  EXPECT_EQ(gathers, 3);
}

// A kernel divides gradients before they are reduced once a step, unless their reduction takes the average.
TEST(SharedGradients, AreAveragedByAKernelOrTheirReduction) {
  const Model model = llama(4, 512, 8, 8, 1024);
  for (const bool overlap : {false, true}) {
    ParallelPlan plan{.dp = 8, .zero = ZeroStage::kOptimizer, .overlap_grad_reduce = overlap};
    Totals traffic = totals_of(model, plan, {32, 2, 256, Precision::kBf16});
    EXPECT_GT(traffic.nodes["gradients.scale"], 0);
    const double reduced = traffic.bytes["gradients.reduce_scatter"];
    plan.average_in_collective = true;
    traffic = totals_of(model, plan, {32, 2, 256, Precision::kBf16});
    EXPECT_EQ(traffic.nodes.count("gradients.scale"), 0u);
    EXPECT_EQ(traffic.bytes["gradients.reduce_scatter"], reduced);
  }
}

// PyTorch's FSDP2 in a pipeline moves weights and gradients once a step, however many microbatches there are
// (pipelining/stage.py, backward_maybe_with_nosync); without a pipeline in each pass, as others do. It copies each
// layer out of the buffer in which it came, and it packs gradients in the format of their sum.
TEST(SharedWeights, OfFsdp2) {
  const Model model = llama(4, 512, 8, 8, 1024);
  const Training training{32, 2, 256, Precision::kBf16};
  ParallelPlan plan{.dp = 8,
                    .zero = ZeroStage::kParameters,
                    .zero_library = ZeroLibrary::kFsdp2,
                    .grad_accumulation = GradAccumulation::kFp32};
  Totals traffic = totals_of(model, plan, training);
  EXPECT_EQ(traffic.nodes["weights.all_gather"], 2 * (2 * 4 + 2));  // embedding and loss forward only
  EXPECT_EQ(traffic.nodes["weights.unpack"], traffic.nodes["weights.all_gather"]);
  EXPECT_EQ(traffic.nodes.count("optimizer.zero_gradients"), 0u);
  const auto graph = planned_graph(model, plan, training);
  for (const WorkItem& item : graph->works()) {
    if (item.name != "gradients.pack") continue;
    EXPECT_EQ(std::get<Elementwise>(std::get<Operator>(item.work).kind).outputs, 2);
  }
  plan.zero_library = ZeroLibrary::kFsdp;
  traffic = totals_of(model, plan, training);
  EXPECT_EQ(traffic.nodes["weights.all_gather"], 2 * (2 * 4 + 2));
  EXPECT_EQ(traffic.nodes.count("weights.unpack"), 0u);

  plan.zero_library = ZeroLibrary::kFsdp2;
  plan.dp = 4;
  plan.pp = 2;
  traffic = totals_of(model, plan, training);
  const double all = padded_parameters(model);
  EXPECT_NEAR(traffic.bytes["weights.all_gather"], 2 * all, 1);
  EXPECT_NEAR(traffic.bytes["gradients.reduce_scatter"], 4 * all, 1);
  for (const bool overlap : {false, true}) {  // steps without an update as well
    plan.overlap_param_gather = overlap;
    plan.passes = Passes::kGradients;
    traffic = totals_of(model, plan, training);
    EXPECT_NEAR(traffic.bytes["weights.all_gather"], 2 * all, 1);
    EXPECT_NEAR(traffic.bytes["gradients.reduce_scatter"], 4 * all, 1);
    plan.passes = Passes::kForward;
    traffic = totals_of(model, plan, training);
    EXPECT_NEAR(traffic.bytes["weights.all_gather"], 2 * all, 1);
    EXPECT_EQ(traffic.nodes.count("gradients.reduce_scatter"), 0u);
  }
  plan.passes = Passes::kTraining;
  plan.overlap_param_gather = false;
  plan.zero_library = ZeroLibrary::kDefault;
  EXPECT_GT(totals_of(model, plan, training).bytes["gradients.reduce_scatter"], 4 * 4 * all - 1);  // microbatches
}

// Each pass casts the weights that it gathered in 16 bits, in one layout, and nothing is cast at the end of the step.
// Weights that are gathered in 8 bits were cast by the rank that updates them; where blocks have factors, all come in
// 16 bits and are cast by every rank.
TEST(SharedWeights, AreCastWhereTheyCome) {
  const Model model = llama(4, 512, 8, 8, 1024);
  const double quantized = 4 * (4 * 512.0 * 512 + 3 * 512.0 * 1024);
  const auto casts = [&](const ParallelPlan& plan, Precision precision) {
    std::map<std::string, double> elements;
    const auto graph = planned_graph(model, plan, {32, 2, 256, precision});
    EXPECT_TRUE(graph) << (graph ? "" : to_text(graph.error()));
    for (std::uint32_t n = 0; graph && n < graph->node_count(); ++n) {
      const WorkItem& item = graph->work_of(NodeId{n});
      if (item.name != "weights.quantize" && item.name != "optimizer.quantize_weights") continue;
      elements[item.name] += static_cast<double>(std::get<Elementwise>(std::get<Operator>(item.work).kind).elements);
    }
    return elements;
  };
  using ::testing::ElementsAre;
  ParallelPlan plan{.dp = 8, .zero = ZeroStage::kParameters};
  EXPECT_THAT(casts(plan, Precision::kFp8), ElementsAre(std::pair("weights.quantize", 2 * 2 * quantized)));
  plan.fp8_params = true;
  EXPECT_THAT(casts(plan, Precision::kFp8), ElementsAre(std::pair("optimizer.quantize_weights", quantized / 8)));
  plan.zero = ZeroStage::kOptimizer;
  EXPECT_THAT(casts(plan, Precision::kFp8), ElementsAre(std::pair("optimizer.quantize_weights", quantized / 8)));
  EXPECT_THAT(casts(plan, Precision::kMxFp8), ElementsAre(std::pair("optimizer.quantize_weights", quantized)));
  const auto gathered = [&](Precision precision) {
    return totals_of(model, plan, {32, 2, 256, precision}).bytes.at("weights.all_gather");
  };
  EXPECT_NEAR(gathered(Precision::kMxFp8), 2 * padded_parameters(model), 1);
  EXPECT_NEAR(gathered(Precision::kFp8), 2 * padded_parameters(model) - quantized, 1);
}

// DualPipe's stages hold the model twice. Both holders of a part sum the share of its gradients that they update.
TEST(SharedWeights, OfDualPipeAreSummedByTheirShares) {
  const Model model = llama(4, 512, 8, 8, 1024);
  const ParallelPlan plan{.pp = 2, .dp = 2, .vpp = 2, .schedule = "dualpipe", .zero = ZeroStage::kOptimizer};
  const Totals traffic = totals_of(model, plan, {16, 1, 256, Precision::kBf16});
  EXPECT_EQ(traffic.nodes.at("mirror.gradients.all_reduce"), 2);
  EXPECT_NEAR(traffic.bytes.at("mirror.gradients.all_reduce"), 2 * 4 * padded_parameters(model) / 2, 1);
}

// Bytes a parameter with 8 replicas: weights 2, gradients 4, optimizer 12, whichever are shared; and, whole, two layers
// under way, embedding and loss.
TEST(SharedWeights, LeaveAnEighthOfTheState) {
  const Model model = llama(64, 512, 8, 8, 1024);
  const Training training{32, 1, 256, Precision::kBf16};
  const double layer = parameters_of(layer_block(Shape(model, ParallelPlan{}, training), LayerKind{})).total();
  const auto state = [&](ZeroStage zero) {
    const StageMemory memory = memory_budget(model, {.dp = 8, .zero = zero}, training)->stages[0];
    return (memory.weights + memory.gradients + memory.optimizer) / B;
  };
  const double all = padded_parameters(model), whole = all - 64 * layer + 2 * layer;
  EXPECT_NEAR(state(ZeroStage::kOptimizer), all * (6 + 12 / 8.0), 1);
  EXPECT_NEAR(state(ZeroStage::kGradients), all * (2 + 16 / 8.0) + whole * 2, 1);
  EXPECT_NEAR(state(ZeroStage::kParameters), all * 18 / 8.0 + whole * 4, 1);
}

// PyTorch's FSDP: a shard has weight, gradient and two moments in fp32. In a pipeline, FSDP2 holds whole weights and
// whole sums of gradients in fp32, and the bf16 gradients of two layers, embedding and loss.
TEST(SharedWeights, OfFsdpAreTheMasterWeights) {
  const Model model = llama(64, 512, 8, 8, 1024);
  const Training training{32, 1, 256, Precision::kBf16};
  const double layer = parameters_of(layer_block(Shape(model, ParallelPlan{}, training), LayerKind{})).total();
  const double all = padded_parameters(model), whole = all - 64 * layer + 2 * layer;
  ParallelPlan plan{.dp = 8, .zero = ZeroStage::kParameters, .zero_library = ZeroLibrary::kFsdp};
  const auto state = [&](std::size_t stage) {
    const StageMemory memory = memory_budget(model, plan, training)->stages[stage];
    return (memory.weights + memory.gradients + memory.optimizer) / B;
  };
  EXPECT_NEAR(state(0), all * 16 / 8.0 + whole * 4, 1);
  // The host has the optimizer's share of them; a pass still gathers from the GPU's, in 16 bits.
  plan.offload_optimizer.value = 1;
  EXPECT_NEAR(state(0), all * (2 + 4) / 8.0 + whole * 4, 1);
  plan.offload_optimizer.value = 0;
  plan.passes = Passes::kForward;
  EXPECT_NEAR(state(0), all * 4 / 8.0 + whole * 2, 1);
  plan = {.pp = 2,
          .dp = 4,
          .zero = ZeroStage::kParameters,
          .zero_library = ZeroLibrary::kFsdp2,
          .grad_accumulation = GradAccumulation::kFp32};
  const double table = 512.0 * static_cast<double>((model.vocabulary + 127) / 128 * 128);
  const double first = 32 * layer + table;
  EXPECT_NEAR(state(0), first * (2 + 4 + 12 / 4.0) + (2 * layer + table) * 2, 1);
}

// 16 experts over the 8 ranks of tp 2 x dp 4, one rank each: neighbors first, tensor-parallel ranks among them.
TEST(ExpertTensorParallelism, TakesTheRanksOfOneStage) {
  Model model = llama(2, 512, 8, 8, 1024);
  model.moe = Experts{16, 2, 256, 0, 0, 0};
  const Training training{16, 1, 256, Precision::kBf16};
  ParallelPlan plan{.tp = 2, .dp = 4, .ep = 8, .etp = 1, .sequence_parallel = true};
  const auto graph = planned_graph(model, plan, training);
  ASSERT_TRUE(graph) << to_text(graph.error());
  const auto works = graph->works();
  const auto exchange =
      std::find_if(works.begin(), works.end(), [](const WorkItem& item) { return item.name == "moe.dispatch"; });
  ASSERT_NE(exchange, works.end());
  const RankGroup& group = std::get<Collective>(exchange->work).group;
  ASSERT_EQ(group.size(), 8);
  for (std::int64_t i = 0; i < 8; ++i) EXPECT_EQ(group.at(i), i);
  EXPECT_DOUBLE_EQ(parameters_of(moe_block(Shape(model, plan, training))).experts, 2 * 3 * 512 * 256);
  plan.etp = 2;
  EXPECT_THAT(to_text(check_plan(model, plan, training).error()), HasSubstr("over which experts are spread"));
  plan.etp = 1;
  plan.sequence_parallel = false;
  EXPECT_THAT(to_text(check_plan(model, plan, training).error()), HasSubstr("need sequence parallelism"));
}

// Experts on more tensor-parallel ranks than the other layers: ranks 0 and 1, of two replicas, share experts, and with
// ranks 2 and 3 they form expert-parallel pairs.
TEST(ExpertTensorParallelism, MayTakeRanksOfSeveralReplicas) {
  Model model = llama(2, 512, 8, 8, 1024);
  model.moe = Experts{16, 2, 256, 0, 0, 0};
  const Training training{8, 1, 256, Precision::kBf16};
  ParallelPlan plan{.dp = 8, .ep = 2, .etp = 2};
  const auto graph = planned_graph(model, plan, training);
  ASSERT_TRUE(graph) << to_text(graph.error());
  const auto collective = [&](std::string_view name) {
    const auto works = graph->works();
    const auto found =
        std::find_if(works.begin(), works.end(), [&](const WorkItem& item) { return item.name == name; });
    EXPECT_NE(found, works.end()) << name;
    return found == works.end() ? Collective{} : std::get<Collective>(found->work);
  };
  EXPECT_EQ(collective("moe.dispatch").group, (RankGroup{0, {{2, 2}}}));
  const Collective gathered = collective("moe.dispatch.all_gather"), summed = collective("moe.combine.reduce_scatter");
  EXPECT_EQ(gathered.group, (RankGroup{0, {{2, 1}}}));
  EXPECT_EQ(summed.group, gathered.group);
  // Each of the two brings its 256 tokens to two experts each.
  EXPECT_DOUBLE_EQ(gathered.size / units::B, 2 * 256 * 2 * 512 * 2.0);
  EXPECT_DOUBLE_EQ(summed.size / units::B, gathered.size / units::B);
  EXPECT_EQ(collective("experts.gradients.reduce_scatter").group, (RankGroup{0, {{2, 4}}}));
  EXPECT_DOUBLE_EQ(parameters_of(moe_block(Shape(model, plan, training))).experts, 8 * 3 * 512 * 128.0);
  plan.etp = 3;
  EXPECT_THAT(to_text(check_plan(model, plan, training).error()), HasSubstr("no multiple of tp 1 that divides the 8"));
  ParallelPlan tensor{.tp = 2, .dp = 4, .etp = 4};
  EXPECT_THAT(to_text(check_plan(model, tensor, training).error()), HasSubstr("need sequence parallelism"));
  tensor.sequence_parallel = true;
  EXPECT_TRUE(check_plan(model, tensor, training));
}

// A norm writes the 8-bit copy of what one product alone reads, whose kernel then only transposes it. A router reads
// what shared experts read, and latent down-projections read what the queries of a model without query latents read: in
// bf16. What is no norm's output is cast by a kernel of its own.
TEST(EightBits, ANormCastsWhatOneProductReads) {
  using ::testing::ElementsAre;
  using ::testing::IsEmpty;
  const ParallelPlan plan{.delayed_scaling = true};
  const Training training{8, 1, 256, Precision::kFp8};
  const auto transposed = [](const Block& block) {
    std::vector<std::string> names;
    for (const BlockStep& each : block.steps) {
      for (const Call& call : each.forward) {
        const auto* op = std::get_if<Operator>(&call.what);
        const auto* kernel = op != nullptr ? std::get_if<Elementwise>(&op->kind) : nullptr;
        if (kernel == nullptr || !call.name.ends_with(".quantize")) continue;
        // Reads 8 bits and writes 8, or reads 16 and writes 8 twice.
        EXPECT_EQ(kernel->inputs, kernel->name == "transpose" ? 0.5 : 1) << call.name;
        if (kernel->name == "transpose") names.push_back(each.name);
      }
    }
    return names;
  };
  Model model = llama(2, 512, 8, 8, 1024);
  const auto layer = [&](const LayerKind& kind = {}) {
    return transposed(layer_block(Shape(model, plan, training), kind));
  };
  EXPECT_THAT(layer(), ElementsAre("attention.qkv", "mlp.fc1"));
  model.norm_placement = NormPlacement::kPost;
  EXPECT_THAT(layer(), IsEmpty());
  model.norm_placement = NormPlacement::kSandwich;
  EXPECT_THAT(layer(), ElementsAre("attention.qkv", "mlp.fc1"));
  model.norm_placement = NormPlacement::kPre;
  model.branches = Branches::kParallelTwoNorms;
  EXPECT_THAT(layer(), ElementsAre("attention.qkv", "mlp.fc1"));
  model.branches = Branches::kParallel;
  EXPECT_THAT(layer(), IsEmpty());
  model.branches = Branches::kSequential;

  model.moe = Experts{8, 2, 512, 1, 512, 0};
  model.mla =
      LatentAttention{.q_rank = 256, .kv_rank = 128, .nope_head_dim = 64, .rope_head_dim = 32, .v_head_dim = 64};
  EXPECT_THAT(layer({.feed_forward = FeedForward::kExperts}), ElementsAre("attention.q_up", "attention.kv_up"));
  model.mla->q_rank = 0;
  EXPECT_THAT(layer({.feed_forward = FeedForward::kExperts}), ElementsAre("attention.kv_up"));
  model.mla.reset();
  model.prediction_layers = 1;
  Training predicted = training;
  predicted.mtp = true;
  EXPECT_THAT(transposed(prediction_block(Shape(model, plan, predicted))), ElementsAre("attention.qkv"));
}

// Elements that a cast reads and writes, of 2 bytes. Delayed factors: the norm has cast, so 8 bits are transposed; what
// is no norm's output is read once. Current factors: the largest value is found first, by the norm or by reading twice.
// Blackwell reads either layout of 8 bits with one factor, and needs no second copy; factors of blocks follow the
// direction of the sum, so each direction has one: a byte for 32 elements, or four for 128.
TEST(EightBits, CastsFollowTheRecipe) {
  using ::testing::ElementsAre;
  using ::testing::IsEmpty;
  const Model model = llama(2, 512, 8, 8, 1024);
  const auto casts = [&](const char* name, Precision precision, bool delayed, bool any_layout) {
    const ParallelPlan plan{.fp8_any_layout = any_layout, .delayed_scaling = delayed};
    std::vector<std::pair<double, double>> all;  // forward
    const Block block = layer_block(Shape(model, plan, {8, 1, 256, precision}), LayerKind{});
    for (const Call& call : step_named(block, name).forward) {
      const auto* op = std::get_if<Operator>(&call.what);
      const auto* kernel = op != nullptr ? std::get_if<Elementwise>(&op->kind) : nullptr;
      if (kernel != nullptr) all.emplace_back(kernel->inputs, kernel->outputs);
    }
    return all;
  };
  const auto pair = [](double reads, double writes) { return ElementsAre(std::pair(reads, writes)); };
  EXPECT_THAT(casts("mlp.fc1", Precision::kFp8, true, false), pair(0.5, 0.5));
  EXPECT_THAT(casts("mlp.fc2", Precision::kFp8, true, false), pair(1, 1));
  EXPECT_THAT(casts("mlp.fc1", Precision::kFp8, true, true), IsEmpty());
  EXPECT_THAT(casts("mlp.fc2", Precision::kFp8, true, true), pair(1, 0.5));
  EXPECT_THAT(casts("mlp.fc1", Precision::kFp8, false, false), pair(1, 1));
  EXPECT_THAT(casts("mlp.fc2", Precision::kFp8, false, false), pair(2, 1));
  EXPECT_THAT(casts("mlp.fc2", Precision::kFp8, false, true), pair(2, 0.5));
  EXPECT_THAT(casts("mlp.fc1", Precision::kMxFp8, false, true), pair(1, 33.0 / 32));
  EXPECT_THAT(casts("mlp.fc2", Precision::kFp8Block, false, true), pair(1, 33.0 / 32));
  EXPECT_THAT(casts("mlp.fc2", Precision::kNvFp4, false, true), pair(2, 0.5 + 1.0 / 16));
}

TEST(EightBits, ProductsOfExpertsAreScaledAsTheRecipeSays) {
  Model model = llama(1, 512, 8, 8, 1024);
  model.moe = Experts{.experts = 4, .top_k = 1, .expert_ffn = 256};
  const ParallelPlan plan;
  for (const auto& [precision, scaling] :
       {std::pair(Precision::kFp8, Scaling::kTensor), std::pair(Precision::kFp8Block, Scaling::kBlock),
        std::pair(Precision::kMxFp8, Scaling::kBlock), std::pair(Precision::kBf16, Scaling::kTensor)}) {
    const Block block =
        layer_block(Shape(model, plan, {8, 1, 256, precision}), LayerKind{.feed_forward = FeedForward::kExperts});
    const auto& op = std::get<Operator>(step_named(block, "moe.fc1").forward.back().what);
    EXPECT_EQ(std::get<GroupedGemm>(op.kind).scaling, scaling) << name_of(precision);
  }
}

TEST(EightBits, CastsItsOperandsAndGathersHalfTheBytes) {
  const Model model = llama(2, 512, 8, 8, 1024);
  const ParallelPlan plan{.tp = 2, .sequence_parallel = true};
  const Block whole = layer_block(Shape(model, plan, {8, 1, 256, Precision::kBf16}), LayerKind{});
  const Block eight = layer_block(Shape(model, plan, {8, 1, 256, Precision::kFp8}), LayerKind{});
  const auto gathered = [](const Block& block) {
    return sent(step_named(block, "mlp.fc1").forward, CollectiveKind::kAllGather);
  };
  EXPECT_DOUBLE_EQ(gathered(eight), gathered(whole) / 2);
  EXPECT_DOUBLE_EQ(step_named(eight, "mlp.fc2").kept_for_weight_gradient,
                   step_named(whole, "mlp.fc2").kept_for_weight_gradient / 2);
  int products = 0, casts = 0;
  for (const BlockStep& each : eight.steps) {
    for (const std::vector<Call>* calls : {&each.forward, &each.input_gradient, &each.weight_gradient}) {
      for (const Call& call : *calls) {
        const auto* op = std::get_if<Operator>(&call.what);
        if (op == nullptr) continue;
        if (std::holds_alternative<Gemm>(op->kind)) {
          ++products;
          EXPECT_EQ(op->dtype, DType::kFp8) << call.name;
        } else {
          EXPECT_EQ(op->dtype, DType::kBf16) << call.name;
        }
        if (call.name.ends_with(".quantize")) ++casts;
      }
    }
  }
  EXPECT_EQ(products, 4 * 3);
  EXPECT_EQ(casts, 4 * 2 + 1);  // each input and output gradient; the projection casts its input once more
  EXPECT_DOUBLE_EQ(parameters_of(eight).quantized, 512 * (512 * 3 + 512 + 3 * 1024) / 2.0);
  // The loss's logits stay as they are.
  const Block loss = loss_block(Shape(model, plan, {8, 1, 256, Precision::kFp8}));
  EXPECT_EQ(std::get<Operator>(step_named(loss, "loss.logits").forward.back().what).dtype, DType::kBf16);
}

TEST(Recomputation, OfModulesDropsWhatTheyCompute) {
  const Model model = llama(2, 512, 8, 8, 1024);
  const ParallelPlan plan;
  const Block block = layer_block(Shape(model, plan, {8, 1, 256, Precision::kBf16}), LayerKind{});
  const auto dropped = [&](RecomputeModule module) {
    return kept_bytes(block, Recompute::kNone).after_forward -
           kept_bytes(block, Recompute::kSelective, set_of(module)).after_forward;
  };
  const double tokens = 256;
  EXPECT_DOUBLE_EQ(dropped(RecomputeModule::kNorm), 2 * tokens * 512 * 2);        // inputs of qkv and fc1
  EXPECT_DOUBLE_EQ(dropped(RecomputeModule::kMlp), tokens * (2 + 1) * 1024 * 2);  // of the activation and of fc2
  EXPECT_DOUBLE_EQ(dropped(RecomputeModule::kCoreAttention), tokens * 8 * 4);     // log-sum-exp
}

// All products of the branch, the router's among them; its input is kept, and what else the branch keeps is not.
TEST(Recomputation, OfAnExpertLayerLeavesItsInput) {
  Model model = llama(2, 512, 8, 8, 1024);
  model.moe = Experts{8, 2, 256, 1, 128, 0};
  const ParallelPlan plan;
  const Block block = moe_block(Shape(model, plan, {8, 1, 256, Precision::kBf16}));
  constexpr ModuleSet kMoe = set_of(RecomputeModule::kMoe), kShared = set_of(RecomputeModule::kSharedExperts);
  const double tokens = 256, router = 512 * 8, expert = 3 * 512 * 256, shared = 3 * 512 * 128;
  EXPECT_DOUBLE_EQ(flops_of(block, kMoe).recomputed, 2 * tokens * (router + 2 * expert + shared));
  EXPECT_DOUBLE_EQ(flops_of(block, kShared).recomputed, 2 * tokens * shared);
  // Inputs of the norm and of the router.
  EXPECT_DOUBLE_EQ(kept_bytes(block, Recompute::kSelective, kMoe).after_forward, 2 * tokens * 512 * 2);
}

TEST(Recomputation, OfSomeLayersKeepsTheOthers) {
  const Model model = llama(8, 512, 8, 8, 1024);
  const Training training{8, 1, 256, Precision::kBf16};
  const auto activations = [&](Recompute recompute, std::int64_t layers) {
    return memory_budget(model, {.pp = 2, .recompute = recompute, .recompute_layers = layers}, training)
        ->stages[0]
        .activations;
  };
  const Bytes none = activations(Recompute::kNone, 0), one = activations(Recompute::kFull, 1),
              three = activations(Recompute::kFull, 3), all = activations(Recompute::kFull, 0);
  EXPECT_LT(all, three);
  EXPECT_LT(three, one);
  EXPECT_LT(one, none);
  const StepFlops flops = step_flops(model, {.pp = 2, .recompute = Recompute::kFull, .recompute_layers = 1}, training);
  const StepFlops whole = step_flops(model, {.pp = 2, .recompute = Recompute::kFull}, training);
  EXPECT_NEAR((flops.hardware - flops.model) / (whole.hardware - whole.model), 1.0 / 4, 1e-12);
}

// Weights that stay until the backward pass are gathered forward alone (plan/reshard=off); gradients are reduced all
// the same.
TEST(LayerExchanges, OfWeightsThatStay) {
  const Model model = llama(2, 512, 8, 8, 2048);
  ParallelPlan plan{.dp = 4, .zero = ZeroStage::kParameters};
  const auto backward = [&] {
    PlanCache cache;
    std::vector<CollectiveKind> kinds;
    const LayerExchanges exchanges = layer_exchanges(model, plan, {4, 1, 512}, cache);
    for (const Collective& each : exchanges.kinds.at(0).backward) kinds.push_back(each.kind);
    return kinds;
  };
  EXPECT_EQ(backward(), (std::vector{CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}));
  plan.reshard = false;
  EXPECT_EQ(backward(), std::vector{CollectiveKind::kReduceScatter});
}

// A ring of 8 context-parallel ranks waits for its slowest link: between its halves.
TEST(ContextRings, TheirMessagesLeadFromOneHalfToTheOther) {
  const Model model = llama(2, 512, 8, 8, 2048);
  const ParallelPlan plan{.tp = 2, .cp = 8, .cp_comm = ContextExchange::kRing, .sequence_parallel = true};
  const auto program = plan_program(model, plan, {1, 1, 8192, Precision::kBf16});
  ASSERT_TRUE(program) << to_text(program.error());
  int messages = 0;
  for (std::size_t i = 0; i < program->works.size(); ++i) {
    const auto* message = std::get_if<Collective>(&program->works[i].work);
    if (message == nullptr || message->kind != CollectiveKind::kSendRecv) continue;
    EXPECT_EQ(message->group, (RankGroup{0, {{2, 2 * 8 / 2}}}));
    EXPECT_EQ(message->ring.count, 8);
    EXPECT_EQ(message->ring.stride, 2);
    ++messages;
  }
  EXPECT_GT(messages, 0);
}

}  // namespace
}  // namespace ns_dist
