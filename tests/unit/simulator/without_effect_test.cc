// Does the answer name what the user set for nothing, and nothing else? Each option is set in each of several plans,
// and the step is timed with and without it: equal steps and memory are to be told, others not.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ns_dist/catalog.h"
#include "ns_dist/report.h"
#include "ns_dist/scenario.h"
#include "ns_dist/simulator.h"
#include "support/simulator_fakes.h"

namespace ns_dist {
namespace {

using namespace units;

// Operators and collectives of other shapes take other times.
Seconds from_hash(std::uint64_t hash) { return (10 + static_cast<double>(hash % 1000) / 100) * us; }
const FakeCompute kCompute([](const Operator& op) { return from_hash(hash_of(op)); });
const FakeNetwork kNetwork([](const Collective& collective) {
  return collective.size / B * 1e-9 * us + static_cast<double>(collective.kind) * us;
});

struct Plan {
  const char* name;
  std::vector<Assignment> set;
};
std::vector<Plan> plans() {
  const Assignment no_host_waits = {"host/expert_launch_cost", "1 us"};
  const std::vector<Assignment> small = {{"training/sequence", "1024"},
                                         {"training/layers", "4"},
                                         {"training/global_batch", "16"},
                                         {"host/launch_cost", "1 us"}};
  std::vector<Plan> all = {
      {"one GPU", {{"model", "llama3-8b"}}},
      {"framework's own", {{"model", "llama3-8b"}, {"framework", "torchtitan"}, {"plan/dp", "4"}}},
      {"tensor parallel", {{"model", "llama3-8b"}, {"plan/tp", "4"}, {"plan/sequence_parallel", "off"}}},
      {"scores", {{"model", "llama3-8b"}, {"plan/tp", "2"}, {"plan/flash_attention", "off"}}},
      {"pipeline", {{"model", "llama3-8b"}, {"plan/pp", "2"}, {"plan/tp", "2"}, {"plan/sequence_parallel", "off"}}},
      {"recorded", {{"model", "llama3-8b"}, {"plan/pp", "2"}, {"plan/tp", "2"}, {"host/cuda_graphs", "on"}}},
      {"shared gradients",
       {{"model", "llama3-8b"}, {"plan/pp", "2"}, {"plan/dp", "2"}, {"plan/vpp", "2"}, {"plan/zero", "2"}}},
      {"sharded", {{"model", "llama3-8b"}, {"plan/dp", "4"}, {"plan/zero", "3"}, {"plan/recompute", "full"}}},
      {"sharded, in a pipeline",
       {{"model", "llama3-8b"},
        {"plan/pp", "2"},
        {"plan/dp", "2"},
        {"plan/zero", "3"},
        {"plan/zero_library", "fsdp2"}}},
      {"fp8", {{"model", "llama3-8b"}, {"plan/tp", "2"}, {"plan/dp", "2"}, {"training/dtype", "fp8"}}},
      {"fp8, framework's own",
       {{"model", "llama3-8b"}, {"plan/dp", "2"}, {"training/dtype", "fp8"}, {"framework", "megatron-bridge"}}},
      {"mxfp8", {{"model", "llama3-8b"}, {"plan/dp", "2"}, {"training/dtype", "mxfp8"}, {"machine/gpu", "b200"}}},
      {"nvfp4", {{"model", "llama3-8b"}, {"plan/dp", "2"}, {"training/dtype", "nvfp4"}, {"machine/gpu", "b200"}}},
      {"context", {{"model", "llama3-8b"}, {"plan/cp", "2"}, {"plan/dp", "2"}}},
      {"muon", {{"model", "llama3-8b"}, {"plan/tp", "2"}, {"plan/dp", "2"}, {"plan/optimizer", "muon"}}},
      {"muon alone", {{"model", "llama3-8b"}, {"plan/optimizer", "muon"}, {"plan/zero", "0"}}},
      {"offloaded", {{"model", "llama3-8b"}, {"plan/dp", "2"}, {"plan/offload_optimizer", "0.5"}}},
      {"experts", {{"model", "qwen3-30b-a3b"}, {"plan/dp", "4"}, {"plan/ep", "4"}, no_host_waits}},
      {"experts in fp8",
       {{"model", "qwen3-30b-a3b"},
        {"plan/dp", "4"},
        {"plan/ep", "4"},
        no_host_waits,
        {"training/dtype", "fp8-block"}}},
      {"experts in one kernel", {{"model", "mixtral-8x7b"}, {"plan/expert_products", "kernel"}}},
      {"shared experts",
       {{"model", "deepseek-v2-lite"}, {"plan/dp", "4"}, {"plan/ep", "4"}, no_host_waits, {"plan/tp", "2"}}},
      {"padded experts",
       {{"model", "qwen3-30b-a3b"}, {"plan/dp", "4"}, {"plan/ep", "4"}, no_host_waits, {"plan/expert_capacity", "1"}}},
  };
  for (Plan& plan : all) plan.set.insert(plan.set.begin(), small.begin(), small.end());
  return all;
}

// Each with values that are not the default.
const std::vector<FieldValues>& options() {
  static const std::vector<FieldValues> all = {
      {"training/document_tokens", {"256", "4096"}},
      {"plan/etp", {"1"}},
      {"plan/expert_dispatch", {"deepep", "all-gather"}},
      {"plan/expert_imbalance", {"1.5"}},
      {"plan/expert_capacity", {"1.25"}},
      {"plan/expert_products", {"kernel"}},
      {"plan/fused_permutation", {"on"}},
      {"plan/weighted_activation", {"on"}},
      {"plan/overlap_ep", {"on"}},
      {"host/expert_launch_cost", {"100 us"}},
      {"plan/fp8_params", {"on"}},
      {"plan/fp8_any_layout", {"on"}},
      {"plan/fp8_dispatch", {"on"}},
      {"plan/fp8_activations", {"on"}},
      {"plan/fp8_original_inputs", {"on"}},
      {"plan/delayed_scaling", {"on"}},
      {"plan/bf16_first_layers", {"1"}},
      {"plan/bf16_last_layers", {"1"}},
      {"plan/recompute", {"full"}},
      {"plan/attention_library", {"flash-1"}},
      {"plan/split_softmax", {"on"}},
      {"plan/cp_comm", {"a2a", "all-gather"}},
      {"plan/account_embedding", {"on"}},
      {"plan/account_loss", {"on"}},
      {"plan/scatter_p2p", {"on"}},
      {"plan/average_in_collective", {"on"}},
      {"plan/overlap_tp", {"on"}},
      {"plan/blocking_tp", {"reductions", "on"}},
      {"plan/zero_library", {"fsdp", "fsdp2"}},
      {"plan/grad_accumulation", {"fp32"}},
      {"plan/reduce_each", {"round"}},
      {"plan/gradient_exchange", {"all-reduce"}},
      {"plan/reshard", {"off"}},
      {"plan/overlap_grad_reduce", {"on"}},
      {"plan/overlap_param_gather", {"on"}},
      {"plan/prefetch", {"0", "2"}},
      {"plan/recompute_early_stop", {"on"}},
      {"plan/muon_steps", {"7"}},
      {"plan/muon_tp", {"distributed", "blockwise"}},
      {"plan/muon_buffers", {"whole"}},
      {"host/blocking_launches", {"on"}},
      {"host/memory_bandwidth", {"20 GB/s"}},
  };
  return all;
}

// Values that were asked for and that happen to be the plan's own anyway.
const std::set<std::string> kMayComeToTheSame = {"plan/etp", "plan/account_embedding", "plan/account_loss",
                                                 "plan/recompute"};

std::optional<Scenario> resolved(const std::vector<Assignment>& set) {
  ScenarioSpec spec;
  spec.assignments = set;
  auto scenario = resolve(spec, Catalog::built_in());
  return scenario ? std::optional(*std::move(scenario)) : std::nullopt;
}

bool tells_of(const Report& report, const std::string& field) {
  return std::any_of(report.warnings.begin(), report.warnings.end(), [&](const Warning& warning) {
    return warning.code == "without_effect" && warning.message.starts_with(field);
  });
}

// An H100's PCIe passes 48 GB/s to its port; an XDR port could take 100.
TEST(WithoutEffect, IsToldOfANetworkBeyondWhatPcieBringsToIt) {
  const auto told = [](const char* bandwidth) {
    const auto scenario = resolved({{"model", "llama3-8b"}, {"plan/dp", "16"}, {"machine/inter_bandwidth", bandwidth}});
    const auto report = simulate(*scenario);
    return report && tells_of(*report, "machine/inter_bandwidth");
  };
  EXPECT_FALSE(told("25 GB/s"));
  EXPECT_FALSE(told("50 GB/s"));
  EXPECT_TRUE(told("100 GB/s"));
  EXPECT_FALSE(told("400 GB/s")) << "bits that were read as bytes: another warning";
}

TEST(WithoutEffect, IsToldOfWhatChangesNothingAndOfNothingElse) {
  int told = 0, effective = 0;
  for (const Plan& plan : plans()) {
    const std::optional<Scenario> usual = resolved(plan.set);
    ASSERT_TRUE(usual) << plan.name;
    const Session session(kCompute, kNetwork);
    const auto before = simulate(*usual, session);
    ASSERT_TRUE(before) << plan.name << to_text(before.error());
    for (const Warning& each : before->warnings) EXPECT_NE(each.code, "without_effect") << plan.name << each.message;
    for (const FieldValues& option : options()) {
      for (const std::string& value : option.values) {
        std::vector<Assignment> set = plan.set;
        std::erase_if(set, [&](const Assignment& each) { return each.field == option.field; });
        set.push_back({option.field, value});
        const std::optional<Scenario> changed = resolved(set);
        if (!changed || (changed->plan == usual->plan && changed->host == usual->host)) continue;
        const auto after = simulate(*changed, session);
        if (!after) continue;  // refused here
        const bool same = after->step == before->step && after->memory.peak() == before->memory.peak() &&
                          after->memory.device() == before->memory.device();
        const bool told_of = tells_of(*after, option.field);
        if (told_of || !kMayComeToTheSame.contains(option.field)) {
          EXPECT_EQ(told_of, same) << plan.name << ": " << option.field << "=" << value;
        }
        ++(same ? told : effective);
      }
    }
  }
  EXPECT_GT(told, 100);
  EXPECT_GT(effective, 100);
}

}  // namespace
}  // namespace ns_dist
