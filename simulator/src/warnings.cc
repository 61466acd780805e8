#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "advice.h"
#include "ns_dist/catalog.h"
#include "ns_dist/host_launches.h"
#include "ns_dist/internal/printable.h"
#include "ns_dist/internal/with_commas.h"
#include "ns_dist/layer_division.h"
#include "ns_dist/pipeline_schedule.h"
#include "ns_dist/planner.h"
#include "scenario_fields.h"
#include "step_difference.h"
#include "without_effect.h"

namespace ns_dist {
namespace {

constexpr double kNegligible = 0.005;  // of the step; below it nobody is warned. Chosen, not fitted

std::optional<Warning> extrapolated(const std::vector<PathEntry>& path) {
  constexpr double kMinor = 0.05, kMuch = 0.2;  // of the step. Chosen, not fitted
  Seconds outside, length;
  std::map<std::string, Seconds> by_name;
  for (const PathEntry& entry : path) {
    length += entry.seconds;
    if (!entry.forecast.extrapolated || entry.name == kHiddenWork) continue;
    const Seconds seconds = static_cast<double>(entry.count) * entry.forecast.latency;
    outside += seconds;
    by_name[entry.name] += seconds;
  }
  if (outside < kNegligible * length) return std::nullopt;
  std::vector<std::pair<std::string, Seconds>> longest(by_name.begin(), by_name.end());
  std::stable_sort(longest.begin(), longest.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  constexpr std::size_t kShown = 3;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(kShown, longest.size()); ++i) names.push_back(longest[i].first);
  const std::string rest = longest.size() > kShown ? fmt::format(" and {} more", longest.size() - kShown) : "";
  const double share = outside / length;
  const std::string which = fmt::format("{}{}", fmt::join(names, ", "), rest);
  return Warning{
      "extrapolated",
      share < kMuch
          ? fmt::format("{:.0f} % of the step is extrapolated (outside what was fitted): {}", 100 * share, which)
          : fmt::format("much of the step, {:.0f} %, is extrapolated (outside what was fitted), so the "
                        "interval is less sure: {}; ns-dist calibrate --from REPORT --next CSV tells what to "
                        "measure first",
                        100 * share, which),
      share < kMinor};
}

// How much longer (or shorter) `counted` entries make the step at an end of their intervals; nothing where that is not
// wide.
template <typename Counted>
Seconds wide_by(const std::vector<PathEntry>& path, Seconds step, Seconds Interval::*end, Counted counted) {
  constexpr double kWide = 0.1;  // of the step. Chosen, not fitted
  std::vector<PathEntry> alone;
  std::copy_if(path.begin(), path.end(), std::back_inserter(alone), counted);
  const Seconds by = path_difference({}, alone).*end;
  return by < kWide * step ? Seconds() : by;
}

// The GPU waits for launches, or nearly does, and hosts differ.
std::optional<Warning> slow_host(const std::vector<PathEntry>& path, Seconds step) {
  constexpr double kMuch = 0.1;  // of the step. Chosen, not fitted
  const auto launches = [](const PathEntry& entry) { return entry.name == kHostLaunches; };
  const Seconds longer = wide_by(path, step, &Interval::high, launches);
  Seconds waits;
  for (const PathEntry& entry : path) waits += launches(entry) ? entry.seconds : Seconds();
  std::string text;
  if (waits > kMuch * step) {
    text = fmt::format(
        "the GPU waits for the host's launches in {:.0f} % of the step, where faster kernels save nothing "
        "and host/cuda_graphs does",
        100 * (waits / step));
  }
  if (longer > Seconds()) {
    text += fmt::format(
        "{}a slow host makes the step up to {:.0f} % longer, which is in its interval: "
        "host/launch_cost is what a launch takes on yours",
        text.empty() ? "" : "; ", 100 * (longer / step));
  }
  return text.empty() ? std::nullopt : std::optional(Warning{"slow_host", std::move(text)});
}

// Nobody measured how the GPUs of this machine reach each other, or only on one of such machines, which differ (PCIe
// through the host).
std::optional<Warning> unmeasured_collectives(const Cluster& cluster, const std::vector<PathEntry>& path,
                                              Seconds step) {
  struct Case {
    std::string_view code, which;
    bool (*counts)(const Forecast&);
  };
  static constexpr Case kCases[] = {
      {"unmeasured_collectives", "that nobody measured on such a machine",
       [](const Forecast& forecast) { return forecast.extrapolated; }},
      {"uncertain_collectives", "that differ between such machines", differs_between_machines},
  };
  for (const Case& by : kCases) {
    const auto counted = [&](const PathEntry& entry) {
      return enumerator_from_name<CollectiveKind>(entry.kind) && by.counts(entry.forecast);
    };
    std::string ends;
    for (const auto& [end, than] : {std::pair(&Interval::high, "longer"), std::pair(&Interval::low, "shorter")}) {
      const Seconds much = wide_by(path, step, end, counted);
      if (much == Seconds()) continue;
      ends += fmt::format("{}up to {:.0f} % {}", ends.empty() ? "" : " or ", 100 * (much / step), than);
    }
    if (ends.empty()) continue;
    const bool one_of_routes = !cluster.levels.empty() && cluster.levels.front().fabric.kind == FabricKind::kPcie &&
                               !cluster.levels.front().fabric.peer_to_peer;
    return Warning{std::string(by.code),
                   fmt::format("collectives {} make the step {}, which is in its interval: measure a few on yours, "
                               "ns-dist calibrate --collectives{}",
                               by.which, ends,
                               one_of_routes ? ", or set machine/intra_bandwidth to the rate at which GPUs reach each "
                                               "other directly, if they do"
                                             : "")};
  }
  return std::nullopt;
}

// What a pipeline loses, and what to change.
void add_pipeline(const Report& report, std::vector<Warning>& found) {
  const ParallelPlan& plan = report.scenario.plan;
  const Breakdown& parts = report.breakdown;
  if (report.microbatches < plan.pp) {
    found.push_back(
        {"pipeline_not_filled",
         fmt::format("{} microbatch{} not fill {} pipeline stages, and the bubble takes {:.0f} % of the step: a larger "
                     "training/global_batch{}or plan/pp={} makes it smaller",
                     report.microbatches, report.microbatches == 1 ? " does" : "es do", plan.pp,
                     100 * (parts.bubble / report.step),
                     report.scenario.training.micro_batch > 1 ? ", a smaller training/micro_batch " : " ",
                     report.microbatches)});
  }
  // Megatron's backward pass exchanges the input gradients beside the weight gradients. Where these come later, nothing
  // runs beside the exchange.
  const PipelineSchedule& schedule = traits_of(plan);
  const bool splits = schedule.splits_backward && !schedule.pairs_passes;
  if (splits && plan.tp > 1 && plan.blocking_tp == TensorBlocking::kOff && parts.tp_exposed > parts.bubble) {
    found.push_back(
        {"split_backward",
         fmt::format("plan/schedule={} computes weight gradients later, where they hide no tensor-parallel "
                     "communication: {:.0f} % of the step, against a bubble of {:.0f} %",
                     plan.schedule, 100 * (parts.tp_exposed / report.step), 100 * (parts.bubble / report.step))});
  }
}

// Why a utilization is above what published steps reach.
std::optional<Warning> high_mfu(const Report& report) {
  constexpr double kHigh = 0.7;  // Chosen; Korthikanti et al. 2022, table 5, reach 0.57
  if (report.hfu <= kHigh) return std::nullopt;
  const bool model = report.mfu > kHigh;
  const double causal = model ? report.mfu_causal : report.hfu_causal;
  const std::string why = causal <= kHigh
                              ? fmt::format(
                                    "counts attention in full, as Megatron-LM did until 2025; {:.0f} % without what a "
                                    "causal mask leaves out",
                                    100 * causal)
                              : "is more than published steps reach: its kernels and their overlap are to be doubted";
  return Warning{"high_mfu", fmt::format("an {} of {:.0f} % {}", model ? "MFU" : "HFU",
                                         100 * (model ? report.mfu : report.hfu), why)};
}

// An algorithm or a protocol that was asked for and that no collective of the step can run.
std::optional<Warning> unused_choice(const NetworkSettings& network, const WorkTable& works,
                                     const ProgramCosts& costs) {
  const auto unused = [&](const std::string& name, auto&& part) {
    if (name == "auto") return false;
    return std::none_of(costs.rows.begin(), costs.rows.end(), [&](const ProgramCosts::Row& row) {
      for (std::size_t i = 0; i < row.forecasts.size(); ++i) {
        if (!std::holds_alternative<Operator>(works[i].work) && part(row.forecasts[i].method) == name) return true;
      }
      return false;
    });
  };
  const auto before = [](std::string_view method) { return method.substr(0, method.find('/')); };
  const auto behind = [](std::string_view method) { return method.substr(method.find('/') + 1); };
  for (const auto& [name, is_unused] : {std::pair(&network.algorithm, unused(network.algorithm, before)),
                                        std::pair(&network.protocol, unused(network.protocol, behind))}) {
    if (!is_unused) continue;
    return Warning{"unused_choice",
                   fmt::format("no collective of this step can run with \"{}\": they take the fastest", *name)};
  }
  return std::nullopt;
}

// A number of a GPU's file that is written in another unit. All GPUs of the catalog, from P4 and A2 to Vera Rubin, are
// between these ends, most of them far from both.
void add_implausible(const Gpu& gpu, std::vector<Warning>& found) {
  using namespace units;
  const auto check = [&](std::string_view what, auto value, auto least, auto most) {
    if (value == decltype(value)() || (least <= value && value <= most)) return;  // 0: not known
    found.push_back({"implausible_gpu", fmt::format("{} has {} of {}, but other GPUs have {} to {}: is the unit right?",
                                                    gpu.name, what, to_text(value), to_text(least), to_text(most))});
  };
  check("a memory bandwidth", gpu.memory_bandwidth, 50 * GB / s, 100 * TB / s);
  check("a memory", gpu.memory, 2 * GiB, 4096 * GiB);
  check("a board power", gpu.board_power, 20 * W, 10'000 * W);
  check("a boost clock", gpu.boost_clock, 300 * MHz, 6000 * MHz);
  check("a rate", gpu.matrix_peak(DType::kFp32), 0.5 * TFLOP / s, 1000 * TFLOP / s);
  check("a rate in bf16", gpu.matrix_peak(DType::kBf16), 0.5 * TFLOP / s, 100'000 * TFLOP / s);
}

// What the GPU has no units or no kernels for: frameworks refuse it there or fall back.
void add_unsupported(const Scenario& scenario, std::vector<Warning>& found) {
  const Gpu& gpu = scenario.cluster.gpu;
  const Precision precision = scenario.training.precision;
  if (const std::string_view reason = reason_against(gpu, precision); !reason.empty()) {
    found.push_back(
        {"unsupported_format", fmt::format("training/dtype={} does not run on {}: {}; it is forecast at the "
                                           "rate of {}",
                                           name_of(precision), gpu.name, reason, name_of(product_type(precision)))});
  }
  if (!is_known_architecture(gpu.architecture)) {
    const std::string near = nearest_name(gpu.architecture, {kArchitectures.begin(), kArchitectures.end()});
    found.push_back(
        {"unknown_architecture",
         fmt::format("nothing is known of the architecture \"{}\" of {}{}: its kernels have what all GPUs "
                     "have in common, its collectives the constants of Hopper. Known are {}",
                     gpu.architecture, gpu.name, near.empty() ? "" : fmt::format(", or is it \"{}\"?", near),
                     fmt::join(kArchitectures, ", "))});
  }
  std::vector<std::int64_t> widths;  // of queries and of values
  if (const std::optional<LatentAttention>& mla = scenario.model.mla) {
    widths = {mla->nope_head_dim + mla->rope_head_dim, mla->v_head_dim};
  } else {
    for (const AttentionHeads& of : all_heads(scenario.model))
      widths.insert(widths.end(), {of.head_dim, of.value_dim()});
  }
  const auto odd = std::find_if(widths.begin(), widths.end(), [](std::int64_t width) { return width % 8 != 0; });
  const bool halves = size_of(storage_type(scenario.training.precision)) == 2.0 * units::B;
  if (!scenario.plan.flash_attention && gpu.vendor == "nvidia" && halves && odd != widths.end()) {
    found.push_back(
        {"unaligned_heads", fmt::format("heads of {} elements are no multiple of 8: without flash attention "
                                        "cuBLAS multiplies them on the vector units, many times as slow",
                                        *odd)});
  }
  const ContextExchange exchange = scenario.plan.cp_comm;
  const bool ring = exchange == ContextExchange::kRing || exchange == ContextExchange::kHierarchical;
  if (scenario.plan.cp > 1 && ring && scenario.model.sliding_window > 0 && !has_sparse_attention(scenario.model)) {
    found.push_back({"unsupported_library",
                     "TransformerEngine exchanges keys of sliding windows by plan/cp_comm=a2a or "
                     "all-gather alone: the forecast supposes a ring that leaves out what lies "
                     "outside a window"});
  }
  if (!scenario.plan.flash_attention) return;
  const bool before_ampere =
      gpu.architecture == "pascal" || gpu.architecture == "volta" || gpu.architecture == "turing";
  if (before_ampere) {
    found.push_back({"unsupported_library",
                     fmt::format("cuDNN's fused attention and FlashAttention-2 need Ampere or later: on {} the scores "
                                 "are stored (plan/flash_attention=off), but for PyTorch's own memory-efficient "
                                 "kernel; the forecast supposes a fused kernel that nobody measured there",
                                 gpu.name)});
  }
  if (is_single_precision(storage_type(scenario.training.precision)) && gpu.vendor == "nvidia") {
    found.push_back(
        {"unsupported_library",
         fmt::format("cuDNN's and FlashAttention's kernels read 16 or 8 bits, not {}: frameworks run attention "
                     "unfused (plan/flash_attention=off), or PyTorch's memory-efficient kernel; the "
                     "forecast supposes a fused kernel that nobody measured",
                     name_of(scenario.training.precision))});
  }
}

// Libraries of the plan that are written for other GPUs.
void add_libraries_of_others(const Scenario& scenario, std::vector<Warning>& found) {
  const Gpu& gpu = scenario.cluster.gpu;
  const ParallelPlan& plan = scenario.plan;
  const bool others = gpu.vendor != "nvidia";
  const auto attention = [&](Library library) { return plan.flash_attention && plan.attention_library == library; };
  const bool deepep = scenario.model.moe && plan.expert_dispatch == ExpertDispatch::kDeepEp && plan.ep > 1;
  struct Row {
    bool applies;
    std::string_view what, whose, supposed;
  };
  for (const Row& row :
       {Row{attention(Library::kFlash3) && gpu.architecture != "hopper", "FlashAttention-3 is", "Hopper", "it runs"},
        Row{attention(Library::kCudnn) && others, "cuDNN is", "NVIDIA's GPUs", "it runs"},
        Row{plan.norm_library == Library::kCudnn && others, "cuDNN's normalization is", "NVIDIA's GPUs",
            "something like it runs"},
        Row{deepep && others, "DeepEP is", "NVIDIA's GPUs", "something like it runs"}}) {
    if (!row.applies) continue;
    found.push_back({"unsupported_library", fmt::format("{} written for {}: the forecast supposes that {} on {}",
                                                        row.what, row.whose, row.supposed, gpu.name)});
  }
}

// Products that TransformerEngine refuses in this format: it does not fill up their operands.
std::optional<Warning> unaligned_products(const Scenario& scenario, const WorkTable& works) {
  const Precision precision = scenario.training.precision;
  if (!quantizes(precision)) return std::nullopt;
  const Multiples multiples = multiples_of(precision);
  for (std::size_t i = 0; i < works.size(); ++i) {
    const WorkItem& item = works[i];
    const auto* op = std::get_if<Operator>(&item.work);
    const auto* gemm = op != nullptr ? std::get_if<Gemm>(&op->kind) : nullptr;
    if (gemm == nullptr || op->dtype != product_type(precision) || item.category != Category::kForward) continue;
    const bool rows = gemm->m % multiples.rows != 0;
    if (!rows && gemm->n % multiples.rows == 0 && gemm->k % multiples.columns == 0) continue;
    const std::string what = rows ? fmt::format("{} rows (tokens of a rank)", gemm->m)
                                  : fmt::format("a weight of {} x {}", gemm->n, gemm->k);
    return Warning{
        "unsupported_format",
        fmt::format("{} multiplies {}: TransformerEngine refuses training/dtype={} where rows are no multiple "
                    "of {} or columns none of {}",
                    item.name, what, name_of(precision), multiples.rows, multiples.columns)};
  }
  return std::nullopt;
}

// A graph has one shape and is launched as a whole: the host cannot read on the way how many tokens experts get.
std::optional<Warning> unrecordable_graphs(const Scenario& scenario, const WorkTable& works) {
  const CudaGraphs& graphs = scenario.host.cuda_graphs;
  bool reads = false;
  for (std::size_t i = 0; i < works.size(); ++i) reads |= works[i].after_read;
  if (!reads || scenario.fixed_shapes || !(graphs.step || graphs.records(LayerModule::kMoe))) return std::nullopt;
  return Warning{"partial_graphs",
                 fmt::format("host/cuda_graphs={} cannot be recorded: the host reads how many tokens each expert gets. "
                             "Record parts, host/cuda_graphs={}, or pad experts with a plan/expert_capacity above 0",
                             field_text(graphs), field_text(graphs_of_layers(scenario.model)))};
}

// Parts of equal size, each of which holds the largest matrix.
std::optional<Warning> padded_buffers(const StageMemory& fullest) {
  constexpr double kMuch = 0.3;  // Megatron-Core packs to within this where matrices are many
  const Bytes held = fullest.weights + fullest.gradients - fullest.padding;
  if (!(fullest.padding > kMuch * held)) return std::nullopt;
  return Warning{
      "padded_buffers",
      fmt::format("buffers of weights and gradients are padded by {:.1f} GiB: each replica's part of them is "
                  "as large as the largest, and there are few matrices for the replicas; "
                  "plan/muon_buffers=whole has no padding",
                  fullest.padding / units::GiB)};
}

// Layers of each position of the pipeline. The plan can be built.
std::vector<std::int64_t> layers_of_positions(const Scenario& scenario) {
  const auto ranges = divide_layers(scenario.model, scenario.plan);
  NS_EXPECTS(ranges.has_value());
  std::vector<std::int64_t> layers;
  for (const LayerRange& range : *ranges) layers.push_back(range.count);
  return layers;
}

// `layers`: of each position. An embedding or a loss that takes the place of a layer is one. Frozen layers take less
// time than others, so that even stages are no aim.
std::optional<Warning> uneven_stages(const Scenario& scenario, std::vector<std::int64_t> layers) {
  if (scenario.plan.pp == 1) return std::nullopt;  // its chunks wait for no other
  if (scenario.plan.account_embedding) ++layers.front();
  if (scenario.plan.account_loss) ++layers.back();
  const auto [least, most] = std::minmax_element(layers.begin(), layers.end());
  if (*least == *most || !scenario.plan.pipeline_layout.is_even() || frozen_layers_of(scenario.plan) > 0)
    return std::nullopt;
  // Who says how many the first or the last stage has, wants that.
  if (divides_without_rest(scenario.model, scenario.plan)) return std::nullopt;
  const std::int64_t more = *most - *least, parts = static_cast<std::int64_t>(layers.size());
  const std::string layout = wanted_layout(scenario);
  return Warning{"uneven_stages",
                 fmt::format("{} layers over {} {}: some hold {} more, the others wait for them{}",
                             scenario.model.layers, parts, parts == scenario.plan.pp ? "stages" : "model chunks",
                             more == 1 ? "one layer" : fmt::format("up to {} layers", more),
                             layout.empty() ? ""
                                            : fmt::format("; {} asks for it as {}={}", scenario.framework, kLayoutField,
                                                          shell_word(layout)))};
}

// Groups of ranks that a node does not hold.
void add_places(const Scenario& scenario, std::int64_t ranks, std::vector<Warning>& found) {
  const ParallelPlan& plan = scenario.plan;
  const std::int64_t node = scenario.cluster.gpus_per_node();
  const GroupReach reach = group_reach(plan);
  const auto across = [&](const char* code, const char* what, const char* field, std::int64_t degree,
                          std::int64_t reached) {
    if (ranks <= node || node % reached == 0) return;
    const std::int64_t whole = node / reached * reached;
    const std::string why =
        reached != degree
            ? fmt::format("reaches over {} ranks in plan/order={}, nodes have {}", reached, plan.order, node)
        : whole == 0 ? fmt::format("does not fit into nodes of {} GPUs", node)
                     : fmt::format("does not divide nodes of {} GPUs; machine/gpus_per_node={} would hold whole groups",
                                   node, whole);
    found.push_back({code, fmt::format("{} crosses nodes: {}={} {}", what, field, degree, why)});
  };
  across("tp_across_nodes", "tensor parallelism", "plan/tp", plan.tp, reach.tensor);
  across("ep_across_nodes", "expert parallelism", "plan/ep", plan.ep, reach.expert);
  if (plan.etp > plan.tp) {
    across("etp_across_nodes", "tensor parallelism of experts", "plan/etp", plan.etp, reach.expert_tensor);
  }
  const bool asked = scenario.named.names.contains("machine/gpus");
  if (const std::int64_t spare = scenario.cluster.spare_per_node(); spare > 0 && !asked) {
    found.push_back({"spare_gpus", fmt::format("{} of the {} GPUs of each node are used, so that no group of ranks "
                                               "that fits into one node lies in two and all nodes have as many",
                                               node, node + spare)});
  }
}

// What the plan asks of the framework that it does not have.
void add_missing_in_framework(const Report& report, std::vector<Warning>& found) {
  const Scenario& scenario = report.scenario;
  const ParallelPlan& plan = scenario.plan;
  for (const FieldLimit& limit : scenario.framework_only) {
    if (wants_layout(limit) || !breaks(limit, scenario)) continue;  // uneven_stages tells of layouts
    std::string text = fmt::format("{} has no {}={}", scenario.framework, limit.field, value_of(scenario, limit.field));
    std::string_view before = " with ";
    for (const FieldLimit& each : limit.when) {
      const std::string value = value_of(scenario, each.field);
      text += std::exchange(before, " and ");
      text += is_fact(each.field) ? fact_text(each.field, value) : fmt::format("{}={}", each.field, value);
    }
    found.push_back({"not_in_framework", std::move(text)});
  }
  if (!traits_of(plan).groups_microbatches || report.microbatches < plan.pp) return;
  const std::int64_t group = microbatch_group({plan.pp, report.microbatches, plan.vpp});
  if (group == plan.pp) return;
  found.push_back(
      {"microbatch_group",
       fmt::format("{} microbatches in groups of {}, as many as stages, leave a group of {}: forecast in groups of {} "
                   "(Megatron-Core: --microbatch-group-size-per-vp-stage {})",
                   report.microbatches, plan.pp, report.microbatches % plan.pp, group, group)});
}

// A bandwidth of each GPU that is meant for a port of several.
std::optional<Warning> shared_ports(const Scenario& scenario) {
  const Cluster& cluster = scenario.cluster;
  constexpr std::string_view kField = "machine/inter_bandwidth";
  const bool leaves_node = rank_count(scenario.plan).value_or(0) > cluster.gpus_per_node();
  if (!scenario.named.names.contains(kField) || !leaves_node) return std::nullopt;
  const FabricLevel& level = cluster.levels[cluster.node_levels()];
  if (!(level.nics_per_gpu < 1)) return std::nullopt;
  return Warning{"shared_ports", fmt::format("{} is what each GPU has: {:.3g} GPUs share a port, which then has {}",
                                             kField, 1 / level.nics_per_gpu, to_text(level.fabric.bandwidth))};
}

std::optional<Warning> idle_gpus(const Cluster& cluster, std::int64_t ranks) {
  const std::int64_t gpus = cluster.gpu_count(), node = cluster.gpus_per_node();
  if (gpus <= ranks) return std::nullopt;
  std::string text = fmt::format("{} of {} GPUs {} idle: the plan has {}", with_commas(gpus - ranks), with_commas(gpus),
                                 gpus - ranks == 1 ? "stays" : "stay", counted(ranks, "rank"));
  if (ranks == 1) text += "; machine/gpus_per_node=1 is a machine without them";
  if (const std::int64_t last = ranks % node; ranks > node && last != 0) {
    text += fmt::format("; the last node has {} of {}, for whose links collectives across nodes may wait", last, node);
  }
  return Warning{"idle_gpus", std::move(text)};
}

// What is on its way to the host or back lies on the GPU: with few layers, at the peak, that is all of it.
std::optional<Warning> offload_saves_nothing(const Report& report) {
  const ParallelPlan& plan = report.scenario.plan;
  const bool alone = !(plan.offload_optimizer.value > 0) && !offloads_gradients(plan);
  const bool keeps_nothing = plan.passes == Passes::kForward || frozen_layers_of(plan) == report.scenario.model.layers;
  if (keeps_nothing) return std::nullopt;  // without_effect tells
  if (plan.offload_activations == 0 || !alone || report.host_memory > Bytes()) return std::nullopt;
  return Warning{
      "offload_saves_nothing",
      fmt::format("plan/offload_activations={} saves no memory: at the peak, the activations of these layers "
                  "are on the GPU. Name more layers, or 0",
                  plan.offload_activations)};
}

// A table of positions ends; rotary ones go on, but nobody trained the model with them.
std::optional<Warning> beyond_positions(const Model& model, std::int64_t tokens) {
  const bool learned = model.position == PositionKind::kLearned, rotary = model.position == PositionKind::kRotary;
  const std::int64_t most = learned ? model.position_table : rotary ? model.most_positions : 0;
  if (most == 0 || tokens <= most) return std::nullopt;
  std::string text = fmt::format("sequences of {} tokens are longer than the ", tokens);
  text += learned ? fmt::format("model's {} learned positions", most)
                  : fmt::format("{} that the model's rotary positions are made for (max_position_embeddings)", most);
  return Warning{"beyond_positions", std::move(text)};
}

}  // namespace

std::vector<Warning> warnings(const Report& report, const Prediction& prediction) {
  const Scenario& scenario = report.scenario;
  const MemoryBudget& memory = prediction.memory;
  const std::int64_t ranks = prediction.program.mesh.ranks();
  std::vector<Warning> found;
  for (const std::string& read : warnings_of(scenario.model)) found.push_back({"model_read_otherwise", read});
  if (std::string links = warning_of(scenario.cluster); !links.empty()) {
    found.push_back({"links_of_another_gpu", std::move(links)});
  }
  add_pipeline(report, found);
  if (auto high = high_mfu(report)) found.push_back(*std::move(high));
  if (auto outside = extrapolated(prediction.critical_path)) found.push_back(*std::move(outside));
  if (auto host = slow_host(prediction.critical_path, prediction.step)) found.push_back(*std::move(host));
  if (auto unmeasured = unmeasured_collectives(scenario.cluster, prediction.critical_path, prediction.step)) {
    found.push_back(*std::move(unmeasured));
  }
  add_places(scenario, ranks, found);
  if (auto shared = shared_ports(scenario)) found.push_back(*std::move(shared));
  if (auto unused = unused_choice(scenario.network, prediction.program.works, prediction.costs)) {
    found.push_back(*std::move(unused));
  }
  add_missing_in_framework(report, found);
  if (const std::int64_t layers = scenario.model.prediction_layers; layers > 0 && !scenario.training.mtp) {
    found.push_back({"without_mtp", fmt::format("without the model's {} for multi-token prediction: "
                                                "training/mtp=on trains {}",
                                                counted(layers, "layer"), layers == 1 ? "it" : "them")});
  }
  if (scenario.plan.lora_rank > 0 && !scenario.named.names.contains("framework")) {
    found.push_back(
        {"framework_assumed",
         fmt::format("the defaults are those of {}: adapters are mostly trained by framework=transformers-sdpa "
                     "(whole replicas) or framework=transformers-fsdp (shared weights)",
                     scenario.framework)});
  }
  if (auto idle = idle_gpus(scenario.cluster, ranks)) found.push_back(*std::move(idle));
  const Bytes capacity = scenario.cluster.gpu.memory;
  if (memory.fits(capacity) && memory.device() > capacity) {
    found.push_back({"memory_tight", fmt::format("the plan needs {:.0f} % of the GPU's memory; with fragmentation "
                                                 "and NCCL's buffers it may run out of memory",
                                                 100 * (memory.peak() / capacity))});
  }
  // DGX A100 80GB, H100, H200 and B200: 2 TB for 8 GPUs; GB200: 480 GB for 2 (NVIDIA's data sheets).
  constexpr Bytes kUsualOfAGpu = 256 * units::GB;
  if (report.host_memory > kUsualOfAGpu) {
    found.push_back({"host_memory", fmt::format("the host keeps {:.0f} GB of a GPU: more than the {:.0f} GB that hosts "
                                                "usually have for each",
                                                report.host_memory / units::GB, kUsualOfAGpu / units::GB)});
  }
  if (auto useless = offload_saves_nothing(report)) found.push_back(*std::move(useless));
  if (auto buffers = padded_buffers(memory.fullest())) found.push_back(*std::move(buffers));
  add_implausible(scenario.cluster.gpu, found);
  add_unsupported(scenario, found);
  add_libraries_of_others(scenario, found);
  if (auto unaligned = unaligned_products(scenario, prediction.program.works)) found.push_back(*std::move(unaligned));
  if (auto partial = unrecordable_graphs(scenario, prediction.program.works)) found.push_back(*std::move(partial));
  const std::vector<std::int64_t> layers = layers_of_positions(scenario);
  for (Warning& each : without_effect(scenario, layers)) found.push_back(std::move(each));
  if (auto uneven = uneven_stages(scenario, layers)) found.push_back(*std::move(uneven));
  if (const auto& kernels = scenario.kernel_calibration; kernels && !kernels->machine.empty()) {
    if (const std::string here = board_text(scenario.cluster.gpu); here != kernels->machine) {
      found.push_back({"calibration_of_another_board",
                       fmt::format("the kernels of the calibration were measured on {} of {}, and this one has {}",
                                   kernels->gpu, kernels->machine, here)});
    }
  }
  if (scenario.network.calibration) {
    std::string others = measured_elsewhere(*scenario.network.calibration, {&scenario.cluster.id, 1});
    if (!others.empty()) found.push_back({"calibration_of_others", std::move(others)});
    std::string links = measured_on_other_links(*scenario.network.calibration, scenario.cluster);
    if (!links.empty()) found.push_back({"calibration_of_other_links", std::move(links)});
  }
  if (auto beyond = beyond_positions(scenario.model, scenario.training.sequence)) found.push_back(*std::move(beyond));
  return found;
}

}  // namespace ns_dist
