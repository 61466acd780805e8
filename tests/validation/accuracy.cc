// The accuracy run over a collection of published training runs that is not part of the project:
//
//   accuracy RUNS.json [SUBSTRING of the id]
//
// RUNS.json is an array of records {id, source{title}, model{layers, hidden, heads, ...}, n_gpus, gpus_per_node,
// parallel{tp, pp, dp, ...}, micro_batch, global_batch, recompute, flash_attention, norm{gpu, dtype, step_time_s, ...},
// recommended, config_key}. Recommended runs are forecast with the configuration that was published; runs that share a
// config_key have one vote together. One set of constants for all of them.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ns_dist/error_figures.h"
#include "ns_dist/planner.h"
#include "ns_dist/scenario.h"
#include "ns_dist/simulator.h"
#include "ns_dist/validation.h"

namespace ns_dist {
namespace {

using nlohmann::json;

template <class T>
T value(const json& object, const char* key, T fallback) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? fallback : found->get<T>();
}

Model model_of(const json& record) {
  Model model;
  model.id = model.name = record.at("name");
  model.layers = record.at("layers");
  model.hidden = record.at("hidden");
  model.heads = record.at("heads");
  model.kv_heads = record.at("kv_heads");
  model.head_dim = record.at("head_dim");
  model.ffn = record.at("ffn_hidden");
  model.gated_mlp = record.at("gated_mlp");
  model.vocabulary = record.at("vocab");
  model.sequence = record.at("seq");
  model.tied_embeddings = record.at("tied_embeddings");
  // GPT-like models of this collection have LayerNorm, biases and dropout; gated ones are Llama-like.
  model.bias = model.dropout = !model.gated_mlp && model.kv_heads == model.heads;
  model.norm = model.bias ? NormKind::kLayerNorm : NormKind::kRmsNorm;
  model.position = model.bias ? PositionKind::kLearned : PositionKind::kRotary;
  model.position_table = model.bias ? model.sequence : 0;
  if (value<std::string>(record, "attention", "") == "MLA") {
    // nope and value heads are head_dim wide (DeepSeek-V2 and -V3).
    model.mla = LatentAttention{.q_rank = value<std::int64_t>(record, "q_lora_rank", 0),
                                .kv_rank = record.at("kv_lora_rank"),
                                .nope_head_dim = model.head_dim,
                                .rope_head_dim = record.at("qk_rope_head_dim"),
                                .v_head_dim = model.head_dim};
  }
  if (const auto experts = value<std::int64_t>(record, "n_experts", 0); experts > 0) {
    const auto ffn = value<std::int64_t>(record, "moe_ffn_hidden", model.ffn);
    const auto shared = value<std::int64_t>(record, "shared_experts", 0);
    model.moe = Experts{experts,
                        value<std::int64_t>(record, "topk", 1),
                        ffn,
                        shared,
                        shared > 0 ? ffn : 0,
                        value<std::int64_t>(record, "dense_layers", 0)};
  }
  return model;
}

struct Case {
  std::string id, key, title, unsupported;
  Scenario scenario;
  Seconds measured;
  double measured_memory = 0;  // GiB as allocated by the framework, where it was published
};

Result<Case> case_of(const json& record, const Catalog& catalog) {
  Case result;
  result.id = record.at("id");
  result.key = record.at("config_key");
  result.title = record.at("source").at("title");
  const json& norm = record.at("norm");
  const json& parallel = record.at("parallel");
  result.measured = norm.at("step_time_s").get<double>() * units::s;
  ScenarioSpec spec;
  spec.set("machine/gpu", norm.at("gpu").get<std::string>());
  const std::int64_t tp = parallel.at("tp");
  spec.set("plan/tp", tp);
  for (const char* degree : {"pp", "dp"})
    spec.set(std::string("plan/") + degree, parallel.at(degree).get<std::int64_t>());
  spec.set("plan/cp", value<std::int64_t>(parallel, "cp", 1));
  spec.set("plan/ep", value<std::int64_t>(parallel, "ep", 1));
  spec.set("plan/vpp", value<std::int64_t>(parallel, "vpp", 1));
  const auto schedule = norm.at("schedule").get<std::string>();
  if (schedule != "none") spec.set("plan/schedule", schedule);
  spec.set("plan/zero",
           value<int>(parallel, "zero_stage", value<bool>(parallel, "distributed_optimizer", false) ? 1 : 0));
  const auto recompute = norm.at("recompute").get<std::string>();
  spec.set("plan/recompute", recompute == "full" || recompute == "selective" ? recompute : "none");
  spec.set("plan/sequence_parallel", value<bool>(parallel, "sp", false) && tp > 1);
  const json& flash = record.at("flash_attention");
  // Where a record does not say: Megatron-LM's default, without. (Zero bubble: the authors' script,
  // examples/pretrain_zero_bubble.sh, has no --use-flash-attn, and the memory they printed holds the scores.)
  spec.set("plan/flash_attention", flash.is_boolean() && flash.get<bool>());
  const auto dtype = dtype_from_name(
      norm.at("dtype").get<std::string>().ends_with("fp8") ? "fp8" : norm.at("dtype").get<std::string>());
  if (!dtype) return fail({ErrorCode::kInvalidInput, "unknown dtype", result.id, "", "", {}});
  spec.set("training/dtype", *dtype);
  // What the recipes switch on and the records do not say: NeMo's of DGX Cloud Benchmarking overlap gradient and
  // parameter synchronisation and leave pipeline messages alone (nemotron4-*-synth.yaml, v24.11.1: overlap_grad_sync,
  // overlap_param_sync, overlap_p2p_comm).
  if (result.title.find("DGX Cloud") != std::string::npos) {
    spec.set("plan/overlap_grad_reduce", true).set("plan/overlap_param_gather", true);
    spec.set("plan/overlap_p2p", false);
  }
  // BigScience: DeepSpeed sums gradients in kernels of their own, in fp16 until the BF16 optimizer with fp32 sums came
  // on 28 February (chronicles-prequel.md, "Rebalancing layers"); BLOOM was trained with it.
  if (result.title.find("BigScience") != std::string::npos) {
    const bool fp32 = result.id.find("bloom") != std::string::npos || result.id.ends_with("02-28");
    // Its fork of Megatron-LM reduces input gradients when both products are done (layers.py, ColumnParallelLinear),
    // and CUDA_LAUNCH_BLOCKING=1 forbids overlap (chronicles-prequel.md, "Hanging Issue"; BLOOM's README).
    spec.set("plan/blocking_tp", true);
    spec.set("plan/grad_accumulation", fp32 ? GradAccumulation::kFp32 : GradAccumulation::kLow);
  }
  spec.set("training/micro_batch", record.at("micro_batch").get<std::int64_t>());
  spec.set("training/global_batch", record.at("global_batch").get<std::int64_t>());
  spec.set("training/sequence", record.at("model").at("seq").get<std::int64_t>());
  const std::int64_t node = value<std::int64_t>(record, "gpus_per_node", 8);
  spec.set("machine/gpus_per_node", node);
  if (!norm.at("inter_gbs_per_gpu").is_null() && record.at("n_gpus").get<std::int64_t>() > node) {
    spec.set("machine/inter_bandwidth", norm.at("inter_gbs_per_gpu").get<double>() * units::GB / units::s);
  }
  const Model model = model_of(record.at("model"));
  NS_TRY(Scenario base, resolve(ScenarioSpec{}, catalog));
  base.model = model;
  NS_TRY(result.scenario, resolve(spec, catalog, &base));
  if (value<bool>(parallel, "fsdp", false)) result.unsupported = "fully sharded data parallelism";
  const json& measured = record.at("measured");
  result.measured_memory = value<double>(measured, "memory_gib_per_gpu", 0);
  return result;
}

void print(const std::string& name, const std::vector<double>& errors, const std::vector<double>& baseline) {
  const ErrorFigures ours = figures_of(errors), theirs = figures_of(baseline);
  fmt::print("{:<34} {:>4} | {:5.1f} {:5.1f} {:5.1f} {:+6.1f} | {:5.1f} {:5.1f} {:5.1f}\n", name.substr(0, 34),
             ours.rows, 100 * ours.mean, 100 * ours.p90, 100 * ours.largest, 100 * ours.bias, 100 * theirs.mean,
             100 * theirs.p90, 100 * theirs.largest);
}

using ErrorsByTitle = std::map<std::string, std::pair<std::vector<double>, std::vector<double>>>;

// Measured over forecast step, each publication with one vote: what the step's interval is made of (simulate.cc).
void print_step_quantiles(const ErrorsByTitle& by_title) {
  std::vector<std::pair<double, double>> ratios;  // ratio, weight
  for (const auto& [title, errors] : by_title) {
    if (title == "all") continue;
    for (const double error : errors.first) {
      ratios.emplace_back(1 / (1 + error),
                          1 / static_cast<double>(errors.first.size()) / static_cast<double>(by_title.size() - 1));
    }
  }
  std::sort(ratios.begin(), ratios.end());
  const auto quantile = [&](double share) {
    double sum = 0;
    for (const auto& [ratio, weight] : ratios) {
      if ((sum += weight) >= share) return ratio;
    }
    return ratios.empty() ? 1.0 : ratios.back().first;
  };
  fmt::print("measured over forecast, 5 and 95 % of the publications' votes: {:.3f} {:.3f}\n", quantile(0.05),
             quantile(0.95));
}

int run(const char* path, const std::string& filter) {
  std::ifstream file(path);
  const json records = json::parse(file);
  const Catalog catalog = Catalog::standard();
  std::map<std::string, std::vector<Case>> by_key;
  std::map<std::string, int> reasons;
  for (const json& record : records) {
    if (!value<bool>(record, "recommended", false)) continue;
    if (!filter.empty() && record.at("id").get<std::string>().find(filter) == std::string::npos) continue;
    auto made = case_of(record, catalog);
    if (!made) {
      ++reasons[made.error().message];
      if (!filter.empty()) fmt::print("{}: {}\n", record.at("id").get<std::string>(), to_text(made.error()));
      continue;
    }
    if (!made->unsupported.empty()) {
      ++reasons[made->unsupported];
      continue;
    }
    by_key[made->key].push_back(*std::move(made));
  }
  // One vote a configuration: the mean of its measurements.
  struct Vote {
    Case sample;
    double measured = 0, forecast = 0, at_peak = 0;
    bool inside = false;
    double memory = 0;
  };
  std::vector<Vote> votes;
  std::map<std::pair<std::string, DType>, std::pair<double, int>> utilisations;
  for (auto& [key, cases] : by_key) {
    Vote vote{cases.front()};
    for (const Case& c : cases) vote.measured += c.measured / units::s / static_cast<double>(cases.size());
    const auto simulation = simulate(vote.sample.scenario);
    if (!simulation) {
      ++reasons[simulation.error().message.substr(0, 60)];
      continue;
    }
    const Report& report = simulation->report;
    vote.forecast = report.step / units::s;
    vote.inside = report.step_low / units::s <= vote.measured && vote.measured <= report.step_high / units::s;
    vote.memory = report.memory.peak() / units::GiB;
    const Scenario& scenario = vote.sample.scenario;
    vote.at_peak = step_flops(scenario.model, scenario.plan, scenario.training).model /
                   (static_cast<double>(report.ranks) * scenario.cluster.gpu.matrix_peak(scenario.training.dtype)) /
                   units::s;
    auto& [sum, count] = utilisations[{scenario.cluster.gpu.id, scenario.training.dtype}];
    sum += vote.at_peak / vote.measured;
    ++count;
    votes.push_back(std::move(vote));
  }
  ErrorsByTitle by_title;
  std::size_t inside = 0;
  for (const Vote& vote : votes) {
    const auto& [sum, count] = utilisations[{vote.sample.scenario.cluster.gpu.id, vote.sample.scenario.training.dtype}];
    const double error = vote.forecast / vote.measured - 1;
    const double baseline = vote.at_peak / (sum / count) / vote.measured - 1;
    inside += vote.inside ? 1 : 0;
    for (const std::string& name : {vote.sample.title, std::string("all")}) {
      by_title[name].first.push_back(error);
      by_title[name].second.push_back(baseline);
    }
    if (!filter.empty()) {
      fmt::print("{:<60} measured {:9.3f} forecast {:9.3f} {:+6.1f} % memory {:.1f} of {:.1f} GiB\n", vote.sample.id,
                 vote.measured, vote.forecast, 100 * error, vote.memory, vote.sample.measured_memory);
    }
  }
  fmt::print("{:<34} {:>4} | {:>5} {:>5} {:>5} {:>6} | constant utilisation: mean p90 max\n", "source", "runs", "mean",
             "p90", "max", "bias");
  for (const auto& [title, errors] : by_title) print(title, errors.first, errors.second);
  fmt::print("inside the 90 % interval: {} of {}\n", inside, votes.size());
  print_step_quantiles(by_title);
  for (const auto& [reason, count] : reasons) fmt::print("not forecast, {}: {}\n", count, reason);
  return 0;
}

}  // namespace
}  // namespace ns_dist

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: accuracy RUNS.json [SUBSTRING]\n");
    return 2;
  }
  return ns_dist::run(argv[1], argc > 2 ? argv[2] : "");
}
