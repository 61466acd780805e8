#include "ns_dist/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ns_dist/compute_model.h"
#include "ns_dist/energy.h"
#include "ns_dist/internal/json_reader.h"
#include "ns_dist/internal/sensitivity_json.h"
#include "ns_dist/parameters.h"
#include "ns_dist/version.h"
#include "scenario_json.h"

namespace ns_dist {
namespace {

using nlohmann::ordered_json;

constexpr const char* kSchema = "ns-dist/report/1";
constexpr std::size_t kHotspots = 10;

// Adds to the memory of a stage what its parts are, and when it is reached.
void add_detail(const StageMemoryDetail& detail, Bytes padding, std::int64_t chunks, ordered_json& stage) {
  stage["gathered_weights"] = detail.gathered_weights / units::B;
  stage["cast_weights"] = detail.cast_weights / units::B;
  stage["padding"] = padding / units::B;
  stage["whole_gradients"] = detail.whole_gradients / units::B;
  stage["unsummed_gradients"] = detail.unsummed_gradients / units::B;
  ordered_json kinds = ordered_json::object();
  for (std::size_t kind = 0; kind < kActivationKindCount; ++kind) {
    const Bytes bytes = detail.activations[kind];
    if (bytes > Bytes()) kinds[std::string(name_of(static_cast<ActivationKind>(kind)))] = bytes / units::B;
  }
  stage["activations_by_kind"] = std::move(kinds);
  stage["peak"] = nullptr;
  if (detail.over_time.empty()) return;
  const HeldPoint& peak = detail.over_time[detail.peak];
  stage["peak"] = {{"pass", pass_text(peak.pass, chunks)}, {"number", peak.number},
                   {"microbatch", peak.pass.microbatch},   {"chunk", peak.pass.chunk},
                   {"live_passes", detail.live},           {"weight_gradients_due", detail.weight_gradients_due}};
}

// The activations of the fullest stage behind each pass, and the most within it.
ordered_json over_time_json(const Report& report) {
  if (report.memory_detail.empty()) return nullptr;
  const StageMemoryDetail& detail = report.memory_detail[static_cast<std::size_t>(report.memory.peak_stage)];
  if (detail.over_time.empty()) return nullptr;
  ordered_json passes = ordered_json::array(), numbers = ordered_json::array(), bytes = ordered_json::array(),
               most = ordered_json::array();
  for (const HeldPoint& point : detail.over_time) {
    passes.push_back(pass_text(point.pass, report.scenario.plan.vpp));
    numbers.push_back(point.number);
    bytes.push_back(point.bytes + detail.transient / units::B);
    most.push_back(point.most + detail.transient / units::B);
  }
  return {{"stage", report.memory.peak_stage},
          {"passes_of_step", detail.passes},
          {"transient", detail.transient / units::B},
          {"pass", passes},
          {"number", numbers},
          {"activations", bytes},
          {"most", most}};
}

// Fields with their new values, as a program sets them.
ordered_json set_json(std::span<const Assignment> set) {
  ordered_json json = ordered_json::object();
  for (const Assignment& each : set) json[each.field] = each.text;
  return json;
}

ordered_json memory_json(const Report& report) {
  ordered_json stages = ordered_json::array();
  for (std::size_t s = 0; s < report.memory.stages.size(); ++s) {
    const StageMemory& stage = report.memory.stages[s];
    stages.push_back({{"weights", stage.weights / units::B},
                      {"gradients", stage.gradients / units::B},
                      {"optimizer", stage.optimizer / units::B},
                      {"activations", stage.activations / units::B},
                      {"other", stage.other / units::B},
                      {"total", stage.total() / units::B},
                      {"reserved", stage.reserved() / units::B},
                      {"communicators", stage.communicators / units::B},
                      {"device", stage.device() / units::B}});
    if (!report.memory_detail.empty()) {
      add_detail(report.memory_detail[s], stage.padding, report.scenario.plan.vpp, stages.back());
    }
  }
  ordered_json remedy;
  if (report.remedy)
    remedy = {{"flags", to_flags(report.remedy->set, report.scenario)},
              {"set", set_json(report.remedy->set)},
              {"gpus", report.remedy->ranks},
              {"peak_bytes", report.remedy->peak / units::B},
              {"nvidia_smi_bytes", report.remedy->device / units::B},
              {"step_time_s", report.remedy->step / units::s}};
  return {{"capacity_bytes", report.scenario.cluster.gpu.memory / units::B},
          {"peak_bytes", report.memory.peak() / units::B},
          {"reserved_bytes", report.memory.reserved() / units::B},
          {"device_bytes", report.memory.device() / units::B},
          {"host_bytes", report.host_memory / units::B},
          {"peak_stage", report.memory.peak_stage},
          {"fits", report.fits},
          {"remedy", remedy},
          {"per_stage", stages},
          {"over_time", over_time_json(report)}};
}

ordered_json breakdown_json(const Breakdown& parts) {
  ordered_json json;
  for (const BreakdownPart& part : kBreakdownParts) json[std::string(part.key)] = parts.*part.seconds / units::s;
  json.erase("launches");  // a part of "other" for programs, which sum the keys that they know
  json["other"] = (parts.launches + parts.other) / units::s;
  return json;
}

ordered_json against_json(const Against& against) {
  const StepDifference& difference = against.difference;
  return {{"report", against.report},
          {"step_time_s", difference.from / units::s},
          {"gpus", difference.from_gpus},
          {"steps", difference.steps},
          {"difference_s", difference.longer / units::s},
          {"difference_low_s", difference.low / units::s},
          {"difference_high_s", difference.high / units::s},
          {"difference_share", difference.share},
          {"difference_share_low", difference.share_low},
          {"difference_share_high", difference.share_high},
          {"difference_parts_s", breakdown_json(difference.parts)}};
}

// null of a limit.
ordered_json interval_end(const Improvement& improvement, Seconds Interval::*end) {
  if (!improvement.interval) return nullptr;
  return (*improvement.interval).*end / units::s;
}

ordered_json energy_json(const Report& report) {
  if (!report.energy) return nullptr;
  return {{"gpu_board_power_w", report.scenario.cluster.gpu.board_power / units::W},
          {"pue", report.scenario.facility.pue.value},
          {"step_kwh_at_most", report.energy->step / kKilowattHour},
          {"trillion_tokens_kwh_at_most", report.energy->trillion_tokens / kKilowattHour}};
}

// What inputs are that are left to the GPU or to other inputs.
ordered_json resolved_inputs(const Scenario& scenario) {
  const ParallelPlan& plan = scenario.plan;
  Attention attention;
  attention.library = plan.attention_library;
  Normalization norm;
  norm.library = plan.norm_library;
  const Library loss = loss_library_of(plan);
  ordered_json json;
  json["attention_library"] =
      plan.flash_attention ? ordered_json(name_of(library_of(attention, scenario.cluster.gpu))) : ordered_json();
  json["norm_library"] = name_of(library_of(norm));
  json["loss_library"] = loss == Library::kDefault ? "fused" : name_of(loss);
  json["etp"] = expert_tp(plan);
  json["vocabulary_multiple"] = vocabulary_multiple_of(plan);
  json["expert_launch_cost_s"] = scenario.host.expert_launch_cost / units::s;
  return json;
}

}  // namespace

ordered_json sensitivity_json(std::span<const Sensitivity> all) {
  ordered_json rows = ordered_json::array();
  for (const Sensitivity& each : all) {
    rows.push_back({{"part", each.part},
                    {"what", each.name},
                    {"factor", each.factor},
                    {"step_time_s", each.step / units::s},
                    {"step_share", each.change},
                    {"fits", each.fits}});
    if (each.range) {
      rows.back()["step_share_low"] = each.range->first;
      rows.back()["step_share_high"] = each.range->second;
    }
  }
  return rows;
}

std::string to_json(const Report& report) {
  ordered_json inputs = scenario_json(report.scenario);
  ordered_json path = ordered_json::array();
  for (const Hotspot& hotspot : shown_hotspots(report.critical_path, kHotspots)) {
    path.push_back({{"name", hotspot.name},
                    {"kind", hotspot.kind},
                    {"count", hotspot.count},
                    {"seconds", hotspot.seconds / units::s},
                    {"extrapolated", hotspot.extrapolated}});
  }
  ordered_json improvements = ordered_json::array();
  for (const Improvement& improvement : report.improvements) {
    improvements.push_back({{"change", improvement.change},
                            {"flags", to_flags(improvement.set, report.scenario)},
                            {"set", set_json(improvement.set)},
                            {"saves_s", improvement.saves / units::s},
                            {"saves_low_s", interval_end(improvement, &Interval::low)},
                            {"saves_high_s", interval_end(improvement, &Interval::high)},
                            {"at_most", improvement.at_most}});
  }
  ordered_json additions = ordered_json::array();
  for (const Addition& addition : report.additions) {
    additions.push_back({{"name", addition.name}, {"seconds", addition.seconds / units::s}, {"note", addition.note}});
  }
  ordered_json warnings = ordered_json::array();
  for (const Warning& warning : report.warnings) {
    warnings.push_back({{"code", warning.code}, {"message", warning.message}});
  }
  ordered_json json;
  json["schema"] = kSchema;
  json["version"] = version();
  json["provenance"] = {{"version", version()}, {"git_revision", git_revision()}, {"inputs", inputs["files"]}};
  json["inputs"] = std::move(inputs);
  if (!report.asked.empty()) json["asked"] = report.asked;
  json["resolved"] = resolved_inputs(report.scenario);
  const Model& model = report.scenario.model;
  const ModelParameters parameters = model_parameters(model);
  json["parameters"] = {{"total", parameters.total()}, {"active", active_parameters(model)}};
  if (report.scenario.training.mtp) json["parameters"]["prediction"] = parameters.prediction;
  json["ranks"] = report.ranks;
  json["microbatches"] = report.microbatches;
  json["graph"] = {{"nodes", report.nodes}, {"works", report.works}};
  json["folding"] = {{"period_microbatches", report.folding.period}, {"copies", report.folding.copies}};
  json["step_time_s"] = report.step / units::s;
  json["step_time_low_s"] = report.step_low / units::s;
  json["step_time_high_s"] = report.step_high / units::s;
  if (report.against) json["against"] = against_json(*report.against);
  json["interval"] = {{"situation", report.interval.situation},
                      {"forecasts_below", report.interval.forecasts_below},
                      {"forecasts_above", report.interval.forecasts_above},
                      {"rest_below", report.interval.rest_below},
                      {"rest_above", report.interval.rest_above},
                      {"clock_below", report.interval.clock_below},
                      {"clock_above", report.interval.clock_above}};
  json["tokens_per_s"] = report.tokens_per_second;
  json["tokens_per_s_per_gpu"] = report.tokens_per_second / static_cast<double>(report.ranks);
  json["model_tflops_per_gpu"] = report.model_flops_per_second / 1e12;
  json["mfu"] = report.mfu;
  json["hfu"] = report.hfu;
  json["mfu_causal"] = report.mfu_causal;
  json["hfu_causal"] = report.hfu_causal;
  json["energy"] = energy_json(report);
  json["memory"] = memory_json(report);
  json["breakdown_s"] = breakdown_json(report.breakdown);
  json["waiting_for_launches_s"] = report.breakdown.launches / units::s;
  json["additions"] = std::move(additions);
  json["critical_path"] = std::move(path);
  json["improvements"] = std::move(improvements);
  if (!report.sensitivity.empty()) json["sensitivity"] = sensitivity_json(report.sensitivity);
  if (!report.what_if.empty()) json["what_if"] = sensitivity_json(report.what_if);
  json["warnings"] = std::move(warnings);
  return dump_json(json, 2);
}

}  // namespace ns_dist
