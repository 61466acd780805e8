#include "report_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "ns_dist/parameters.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

std::string recomputation_text(const ParallelPlan& plan) {
  switch (plan.recompute) {
    case Recompute::kNone:
      return "no recomputation";
    case Recompute::kSelective:
      if (plan.recompute_modules == Recomputation().modules) return "selective recomputation";
      return fmt::format("selective recomputation of {}",
                         set_text(plan.recompute_modules, names_of<RecomputeModule>()));
    case Recompute::kOperators:
      return plan.recompute_products == KeptProducts::kAll ? "recomputation by operators, all products kept"
                                                           : "recomputation by operators";
    case Recompute::kFull:
      break;
  }
  std::string text = "full recomputation";
  if (plan.recompute_layers > 0) {
    text += fmt::format(" of {} of each {}", counted(plan.recompute_layers, "layer"), plan.vpp > 1 ? "chunk" : "stage");
  }
  if (plan.recompute_together > 1) text += fmt::format(" by {} layers", plan.recompute_together);
  return text;
}

}  // namespace

std::string kind_text(ActivationKind kind) {
  std::string text(name_of(kind));
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

std::string live_text(const StageMemoryDetail& detail) {
  std::string text = fmt::format("{} pass{}", detail.live, detail.live == 1 ? "" : "es");
  if (detail.weight_gradients_due > 0) {
    text += fmt::format(" ({} until the weight gradient)", detail.weight_gradients_due);
  }
  return text;
}

std::string peak_text(const Report& report, std::size_t stage) {
  if (report.memory_detail.empty() || report.memory_detail[stage].over_time.empty()) return "";
  const StageMemoryDetail& detail = report.memory_detail[stage];
  const HeldPoint& peak = detail.over_time[detail.peak];
  return fmt::format("{} {}, with {} live", peak.most > peak.bytes ? "in" : "behind",
                     pass_text(peak.pass, report.scenario.plan.vpp), live_text(detail));
}

std::array<BreakdownPart, kBreakdownParts.size()> longest_parts(const Breakdown& breakdown) {
  auto parts = kBreakdownParts;
  std::stable_sort(parts.begin(), parts.end(), [&](const BreakdownPart& a, const BreakdownPart& b) {
    return breakdown.*a.seconds > breakdown.*b.seconds;
  });
  return parts;
}

std::string parameters_text(const Model& model, bool predictions) {
  const auto billions = [](double count) { return fmt::format("{:.4g} B", count / 1e9); };
  const ModelParameters parameters = model_parameters(model);
  std::string text = billions(parameters.total()) + " parameters";
  if (model.moe) text += fmt::format(", {} of them for each token", billions(active_parameters(model)));
  if (predictions && parameters.prediction > 0)
    text += fmt::format("; {} more predict further tokens", billions(parameters.prediction));
  return text;
}

std::string work_text(const Report& report) {
  return fmt::format("{} on {} x {}", report.scenario.model.name, with_commas(report.ranks),
                     report.scenario.cluster.gpu.name);
}

std::string cluster_text(const Cluster& cluster) {
  std::string machine;
  const Catalog catalog = Catalog::standard();
  for (std::size_t i = 0; i < cluster.levels.size(); ++i) {
    const FabricLevel& level = cluster.levels[i];
    const auto known = catalog.fabric(level.fabric.id);
    const bool usual = known && known->bandwidth == level.fabric.bandwidth;
    const char* const unit = i == 0 ? "GPU" : i == cluster.node_levels() ? "node" : "group";
    machine += fmt::format("{}{}", machine.empty() ? "" : ", ", counted(level.size, unit));
    if (level.size == 1 && i > 0) continue;
    machine += fmt::format(" by {}", level.fabric.name);
    if (!usual) machine += fmt::format(" at {}", to_text(level.fabric.bandwidth));
    if (i == cluster.node_levels() && !level.ring) {
      const double ports = level.nics_per_gpu * static_cast<double>(cluster.gpus_per_node());
      machine += fmt::format(" ({:.3g} port{} per node)", ports, ports == 1 ? "" : "s");
    }
  }
  return fmt::format("{}: {}", cluster.name, machine);
}

std::string degrees_text(const ParallelPlan& plan) {
  std::string degrees = fmt::format("tp {}, pp {}, dp {}", plan.tp, plan.pp, plan.dp);
  if (plan.cp > 1) degrees += fmt::format(", cp {}", plan.cp);
  if (plan.ep > 1) degrees += fmt::format(", ep {}", plan.ep);
  if (plan.vpp > 1) degrees += fmt::format(", vpp {}", plan.vpp);
  return degrees;
}

std::string batch_text(const Training& training) {
  std::string documents;
  if (training.document_tokens > 0)
    documents = fmt::format(" in documents of {}", with_commas(training.document_tokens));
  return fmt::format("global batch {} of {} tokens{}, micro-batch {}, {}", with_commas(training.global_batch),
                     with_commas(training.sequence), documents, training.micro_batch, name_of(training.precision));
}

std::string settings_text(const ParallelPlan& plan) {
  constexpr std::array<std::string_view, 3> kPasses = {"", "forward and backward passes without an update, ",
                                                       "forward passes alone, "};
  std::string settings =
      fmt::format("{}{} schedule, ZeRO {}, {}, sequence parallelism {}, flash attention {}",
                  kPasses[static_cast<std::size_t>(plan.passes)], plan.schedule, static_cast<int>(plan.zero),
                  recomputation_text(plan), plan.sequence_parallel ? "on" : "off", plan.flash_attention ? "on" : "off");
  if (plan.optimizer == OptimizerKind::kMuon) settings += ", Muon";
  if (plan.ep > 1 && plan.expert_imbalance.value > 1 && !(plan.expert_capacity.value > 0))
    settings += fmt::format(", busiest rank of experts {:g} times the mean", plan.expert_imbalance.value);
  if (plan.expert_capacity.value > 0)
    settings += fmt::format(", experts padded to {:g} times an even share", plan.expert_capacity.value);
  if (!plan.pipeline_layout.is_even()) settings += fmt::format(", layout {}", plan.pipeline_layout.text);
  if (plan.lora_rank > 0) settings += fmt::format(", LoRA of rank {}", plan.lora_rank);
  if (freezes_in_4_bits(plan)) settings += " beside weights in 4 bits";
  if (const std::int64_t frozen = frozen_layers_of(plan); frozen > 0)
    settings +=
        fmt::format(", embedding and first {} frozen", frozen == 1 ? "layer" : fmt::format("{} layers", frozen));
  if (plan.offload_optimizer.value > 0)
    settings += fmt::format(", {:.0f} % of the optimizer on the host", 100 * plan.offload_optimizer.value);
  if (reduces_each_round(plan)) settings += ", gradients reduced once a round";
  if (offloads_weights(plan)) settings += ", weights on the host";
  if (plan.offload_activations > 0)
    settings +=
        fmt::format(", activations of {} of each chunk on the host", counted(plan.offload_activations, "layer"));
  return settings;
}

std::string report_json(Report report) {
  for (Warning& warning : report.warnings) warning.message = with_flags(warning.message);
  for (Improvement& improvement : report.improvements) improvement.change = with_flags(improvement.change);
  return to_json(report);
}

std::vector<Improvement> told_improvements(const Report& report) {
  std::vector<Improvement> told = report.improvements;
  if (!report.fits) std::erase_if(told, [](const Improvement& each) { return each.set.empty(); });
  return told;
}

std::vector<Warning> told_warnings(const Report& report) {
  std::vector<Warning> told = report.warnings;
  std::erase_if(told, [](const Warning& each) { return each.minor; });
  return told;
}

std::string minor_text(const Report& report) {
  std::string text;
  for (const Warning& each : report.warnings) {
    if (each.minor) text += (text.empty() ? "" : "; ") + with_flags(each.message);
  }
  return text;
}

std::string unfit_text(const Report& report) {
  if (report.memory.peak() > report.scenario.cluster.gpu.memory) return "does not fit";
  return fmt::format("does not fit beside {} of the CUDA context and NCCL's buffers",
                     bytes_text(report.memory.needed() - report.memory.peak()));
}

std::string remedy_text(const Report& report) {
  const MemoryRemedy& remedy = *report.remedy;
  const Cluster& cluster = report.scenario.cluster;
  const std::string where = remedy.ranks != report.ranks ? fmt::format("on {} GPUs, ", with_commas(remedy.ranks)) : "";
  const std::string tight =
      remedy.device > cluster.gpu.memory ? fmt::format(", tight: {} in nvidia-smi", bytes_text(remedy.device)) : "";
  return fmt::format("{}{}, {}{}", where, bytes_text(remedy.peak), duration_text(remedy.step), tight);
}

std::string rate_text(double tokens_per_second) {
  return tokens_per_second < 100 ? fmt::format("{:.3g}", tokens_per_second)
                                 : with_commas(static_cast<std::int64_t>(tokens_per_second));
}

std::string part_text(const Sensitivity& each) {
  return each.part == "all" ? each.name : fmt::format("{} x{:.4g}", each.name, each.factor);
}

std::string change_text(const Sensitivity& each) {
  const std::string text = fmt::format("{:+.3f} %", 100 * each.change);
  return text == "-0.000 %" ? "+0.000 %" : text;
}

std::string range_text(const Sensitivity& each) {
  const auto percent = [](double share) {
    const std::string text = fmt::format("{:+.1f}", 100 * share);
    return text == "+0.0" || text == "-0.0" ? "0" : text;
  };
  return each.range ? fmt::format(" ({} to {})", percent(each.range->first), percent(each.range->second)) : "";
}

std::string sensitivity_text(const Sensitivity& each) {
  return fmt::format("{:<45}{:>10} {:>11}{} of the step{}", part_text(each), duration_text(each.step),
                     change_text(each), range_text(each), each.fits ? "" : ", does not fit");
}

static std::string signed_duration(Seconds time) {
  return (time < Seconds() ? "-" : "+") + duration_text(max(time, -time));
}

std::string difference_text(const StepDifference& difference) {
  const std::string step = signed_duration(difference.longer) + ", ";
  const std::string gpus = difference.gpus == difference.from_gpus
                               ? ""
                               : fmt::format(", on {} GPUs instead of {}", difference.gpus, difference.from_gpus);
  return fmt::format("{}{:+.1f} %{} (90 % interval {:+.1f} to {:+.1f} %){}", difference.steps == 1 ? step : "",
                     100 * difference.share, difference.steps == 1 ? "" : " for as many tokens",
                     100 * difference.share_low, 100 * difference.share_high, gpus);
}

std::string difference_parts_text(const StepDifference& difference) {
  constexpr std::size_t kMostParts = 4;
  constexpr double kSmall = 0.002;  // of the step
  const auto size = [](Seconds part) { return max(part, -part); };
  std::array<BreakdownPart, kBreakdownParts.size()> parts = kBreakdownParts;
  std::stable_sort(parts.begin(), parts.end(), [&](const BreakdownPart& a, const BreakdownPart& b) {
    return size(difference.parts.*a.seconds) > size(difference.parts.*b.seconds);
  });
  std::string text;
  for (const BreakdownPart& part : std::span(parts).first(kMostParts)) {
    const Seconds seconds = difference.parts.*part.seconds;
    if (size(seconds) < kSmall * difference.from) break;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", part.name, signed_duration(seconds));
  }
  return text;
}

std::string saving_text(const Improvement& improvement, Seconds step) {
  const double share = -100 * (improvement.saves / step);
  if (!improvement.interval) return fmt::format("at most {:+.1f} %", share);
  return fmt::format("{:+.1f} % ({:+.1f} to {:+.1f})", share, -100 * (improvement.interval->high / step),
                     -100 * (improvement.interval->low / step));
}

bool is_unsure(const Improvement& improvement) { return improvement.interval && improvement.interval->low < Seconds(); }

std::string additions_text(const Report& report) {
  constexpr std::size_t kMostAdditions = 3;
  constexpr double kSmall = 0.005;  // of the step
  std::vector<Addition> additions = report.additions;
  std::stable_sort(additions.begin(), additions.end(),
                   [](const Addition& a, const Addition& b) { return a.seconds > b.seconds; });
  std::string text;
  for (std::size_t i = 0; i < std::min(kMostAdditions, additions.size()); ++i) {
    const double share = additions[i].seconds / report.step;
    if (share < kSmall) break;
    text += fmt::format("{}{} {:.1f} %", text.empty() ? "" : ", ", additions[i].name, 100 * share);
  }
  return text;
}

bool masks_much(const Report& report) { return report.mfu > 1.1 * report.mfu_causal; }

bool has_hfu(const Report& report) { return report.hfu - report.mfu > 0.0005; }

std::string mfu_text(const Report& report) {
  return masks_much(report) ? fmt::format("{:.1f} % with causal attention, {:.1f} % with full", 100 * report.mfu_causal,
                                          100 * report.mfu)
                            : fmt::format("{:.1f} %", 100 * report.mfu);
}

double peak_teraflops(const Report& report) {
  return product_peak(report.scenario.cluster.gpu, report.scenario.training.precision) / (units::TFLOP / units::s);
}

std::string rates_text(const Report& report) {
  const double rate = report.model_flops_per_second / 1e12;
  return masks_much(report) ? fmt::format("{:.0f} and {:.0f}", rate * (report.mfu_causal / report.mfu), rate)
                            : fmt::format("{:.0f}", rate);
}

std::string utilization_text(const Report& report) {
  const double hfu = 100 * report.hfu, hfu_causal = 100 * report.hfu_causal;
  const std::string rates = fmt::format("{} of {:.0f} TFLOP/s on each GPU", rates_text(report), peak_teraflops(report));
  if (masks_much(report)) {
    return fmt::format("MFU {}{}; {}", mfu_text(report),
                       has_hfu(report) ? fmt::format("; HFU {:.1f} % and {:.1f} %", hfu_causal, hfu) : "", rates);
  }
  return fmt::format("MFU {} ({:.1f} % with causal attention){}, {}", mfu_text(report), 100 * report.mfu_causal,
                     has_hfu(report) ? fmt::format(", HFU {:.1f} % ({:.1f} %)", hfu, hfu_causal) : "", rates);
}

}  // namespace ns_dist::cli
