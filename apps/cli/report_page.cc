#include "report_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "evidence.h"
#include "html.h"
#include "memory_picture.h"
#include "ns_dist/simulator.h"
#include "page_files.h"
#include "report_text.h"
#include "terminal.h"
#include "timeline_picture.h"

namespace ns_dist::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kBlockBegin = "<script type=\"application/json\" id=\"report\">", kBlockEnd = "</script>";

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string question(const Report& report) {
  const Scenario& scenario = report.scenario;
  const Model& model = scenario.model;
  const Gpu& gpu = scenario.cluster.gpu;
  std::string text = "<dl>\n";
  std::string experts;
  if (model.moe) experts = fmt::format(", {} of {} experts for each token", model.moe->top_k, model.moe->experts);
  text += row("Model", typeset(fmt::format("{}: {}, {} layers, hidden size {}{}", model.name,
                                           parameters_text(model, scenario.training.mtp), with_commas(model.layers),
                                           with_commas(model.hidden), experts)));
  text += row("GPU", typeset(fmt::format("{} ({}), {} at {}", gpu.name, gpu.id, bytes_text(gpu.memory),
                                         bandwidth_text(gpu.memory_bandwidth))));
  text += row("Cluster", typeset(cluster_text(scenario.cluster)));
  text += row("Plan", html(degrees_text(scenario.plan)));
  text += row("Batch", html(batch_text(scenario.training)));
  text += row("Settings", html(settings_text(scenario.plan)));
  if (!scenario.framework.empty()) text += row("Framework", html("defaults of " + scenario.framework));
  return text + "</dl>\n";
}

// The step and its interval on one axis that begins at zero.
std::string interval(const Report& report) {
  const Seconds full = 1.2 * report.step_high;  // room for a label
  const auto at = [&](Seconds seconds) { return fmt::format("{:.2f}%", 100 * (seconds / full)); };
  std::string text = "<div class=\"interval\"><i class=\"axis\"></i>";
  if (report.step_low > 0.15 * full) text += "<span class=\"zero\">0 s</span>";
  text += fmt::format("<i class=\"range\" style=\"left:{};width:{}\"></i>", at(report.step_low),
                      at(report.step_high - report.step_low));
  text += fmt::format("<i class=\"dot\" style=\"left:{0}\"></i><b style=\"left:{0}\">{1}</b>", at(report.step),
                      duration_text(report.step));
  text += fmt::format("<span class=\"low\" style=\"left:{}\">{}</span>", at(report.step_low),
                      duration_text(report.step_low));
  text += fmt::format("<span class=\"high\" style=\"left:{}\">{}</span>", at(report.step_high),
                      duration_text(report.step_high));
  return text + "</div>\n";
}

std::string tile(const std::string& value, const std::string& meaning, std::string_view kind = "") {
  return fmt::format("<div><b class=\"{}\">{}</b><span>{}</span></div>\n", kind, value, meaning);
}

// Of a plan that does not fit: so, and what would.
std::string unfit(const Report& report) {
  if (report.fits) return "";
  const std::string remedy =
      report.remedy ? fmt::format("It would fit with <code>{}</code> ({}).",
                                  html(to_flags(report.remedy->set, report.scenario)), html(remedy_text(report)))
                    : "No split over more stages or ranks of a node that was tried would fit.";
  return fmt::format(
      "<p class=\"remedy\"><b class=\"bad\">This plan {}: {} of {} on the fullest GPU, stage {}.</b> "
      "{}</p>\n",
      unfit_text(report), bytes_text(report.memory.peak()), bytes_text(report.scenario.cluster.gpu.memory),
      report.memory.peak_stage, remedy);
}

std::string answer(const Report& report) {
  std::string text = "<section class=\"answer\">\n" + unfit(report);
  text +=
      fmt::format("<div class=\"step{}\">{} <small>a step{}; 90 % interval {} to {}</small></div>\n",
                  report.fits ? "" : " soft", duration_text(report.step), report.fits ? "" : " if memory were no limit",
                  duration_text(report.step_low), duration_text(report.step_high));
  text += interval(report);
  if (const std::string added = additions_text(report); !added.empty())
    text += fmt::format("<p class=\"soft\">Of it {}: added to the plain sum of kernels and collectives.</p>\n", added);
  if (report.against) {
    const std::string parts = difference_parts_text(report.against->difference);
    text += fmt::format("<p>Against {}: {}{}.</p>\n", html(report.against->report),
                        difference_text(report.against->difference), parts.empty() ? "" : "; its parts: " + parts);
  }
  text += "<div class=\"tiles\">\n";
  text += tile(rate_text(report.tokens_per_second) + " tokens/s",
               rate_text(report.tokens_per_second / static_cast<double>(report.ranks)) + " on each GPU");
  const bool both = masks_much(report);  // neither count alone says how busy GPUs are
  text += tile("MFU " + mfu_text(report),
               "of the GPUs' peak, counting the model's own operations" +
                   (both ? "" : fmt::format("; {} without what a causal mask hides", percent(report.mfu_causal))));
  text += tile(rates_text(report) + " TFLOP/s",
               fmt::format("of the model on each GPU, whose peak is {:.0f}{}", peak_teraflops(report),
                           both ? ": with causal and with full attention" : ""));
  if (has_hfu(report)) {
    text += tile("HFU " + percent(report.hfu),
                 fmt::format("counting recomputed operations, too; {} without what a causal mask hides",
                             percent(report.hfu_causal)));
  }
  if (report.energy) {
    text += tile(energy_text(report.energy->step) + " at most",
                 fmt::format("a step, {} for 1e12 tokens: GPUs alone, each at its {:.0f} W all the time, PUE {}",
                             energy_text(report.energy->trillion_tokens),
                             report.scenario.cluster.gpu.board_power / units::W, report.scenario.facility.pue.value));
  }
  if (report.fits) {
    text += tile(bytes_text(report.memory.peak()) + ": fits",
                 fmt::format("of {} on the fullest GPU, stage {}", bytes_text(report.scenario.cluster.gpu.memory),
                             report.memory.peak_stage),
                 "good");
  }
  text += "</div>\n";
  return text + "</section>\n";
}

std::string time_section(const Report& report) {
  const Breakdown& breakdown = report.breakdown;
  std::string text = "<div class=\"bars\">\n";
  std::vector<std::string_view> nothing;
  for (const BreakdownPart& part : longest_parts(breakdown)) {
    const std::string_view color = part.key.substr(0, part.key.find('_'));
    const Seconds seconds = breakdown.*part.seconds;
    const double share = seconds / report.step;
    if (seconds <= Seconds()) {
      nothing.push_back(part.name);
      continue;
    }
    text += fmt::format(
        "<span>{}</span><span class=\"number\">{}</span><span class=\"number\">{}</span>"
        "<span class=\"track\"><i class=\"{}\" style=\"width:{:.2f}%\"></i></span>\n",
        part.name, duration_text(seconds), percent(share), color, 100 * share);
  }
  text +=
      "</div>\n<p class=\"soft\">Communication is what kernels wait for; what runs beside kernels costs nothing here. "
      "The parts sum to the step.";
  if (!nothing.empty()) text += fmt::format(" Not in this step: {}.", fmt::join(nothing, ", "));
  text += "</p>\n";
  const std::size_t stages = report.memory.stages.size();
  return section(stages == 1 ? "Where the time goes" : fmt::format("Where the time goes (mean of {} stages)", stages),
                 text);
}

std::string memory_section(const Report& report) {
  std::string text = memory_by_part(report);
  if (!report.memory_detail.empty()) {
    text += folded("Activations at the peak, by kind", activations_by_kind(report)) +
            folded("Memory over the step", memory_over_time(report));
  }
  return section("Memory of a GPU, by stage", text);
}

std::string path_section(const Report& report) {
  constexpr std::size_t kMost = 10;
  std::string rows;
  for (const Hotspot& hotspot : shown_hotspots(report.critical_path, kMost)) {
    rows += fmt::format(
        "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>"
        "<td>{}{}</td></tr>\n",
        html(hotspot.name), duration_text(hotspot.seconds), percent(hotspot.seconds / report.step),
        with_commas(hotspot.count), html(hotspot.kind), hotspot.extrapolated ? ", extrapolated" : "");
  }
  return section("Longest on the critical path",
                 table("<th>work</th><th class=\"number\">time</th><th class=\"number\">of the step</th><th "
                       "class=\"number\">times</th><th>kind</th>",
                       rows) +
                     "<p class=\"soft\">The chain of works that wait for one another, from the "
                     "beginning of the step to its end. <em>Extrapolated</em>: outside what the forecast was "
                     "fitted on.</p>\n");
}

std::string improvements_section(const Report& report) {
  std::string rows;
  for (const Improvement& improvement : told_improvements(report)) {
    const std::string flags = to_flags(improvement.set, report.scenario);
    rows += fmt::format("<tr><td class=\"number\">{}{}</td><td class=\"number\">{}</td><td>{}{}</td></tr>\n",
                        saving_text(improvement, report.step), is_unsure(improvement) ? ", not sure" : "",
                        duration_text(report.step - improvement.saves), html(with_flags(improvement.change)),
                        flags.empty() ? "" : fmt::format(": <code>{}</code>", html(flags)));
  }
  if (rows.empty()) return "";
  return section("What would help most",
                 table("<th class=\"number\">change of the step (90 % interval)</th><th class=\"number\">the step "
                       "then</th><th>what</th>",
                       rows) +
                     "<p class=\"soft\">Each change is the difference of two forecasts. <em>Not sure</em>: in its "
                     "interval are steps that are longer. <em>At most</em> is a limit, not a change that can be "
                     "made.</p>\n");
}

// Of --sensitivity and --what-if.
std::string asked_section(const Report& report) {
  std::string text;
  for (const auto& [heading, all] : {std::pair("What 1 % better changes, with this plan", &report.sensitivity),
                                     std::pair("What if?", &report.what_if)}) {
    if (!all->empty()) text += section(heading, sensitivity_table(*all));
  }
  return text;
}

std::string warnings_section(const Report& report) {
  std::string text;
  for (const Warning& warning : told_warnings(report))
    text += fmt::format("<li>{}</li>\n", html(with_flags(warning.message)));
  return section("Warnings", text.empty() ? "" : "<ul>\n" + text + "</ul>\n");
}

// Forecasts of the published steps that are most like this one.
std::string accuracy_section(const Report& report, std::span<const RunCheck> evidence) {
  const Scenario& scenario = report.scenario;
  std::string line = evidence_line(evidence, scenario);
  line.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(line.front())));
  std::string text = fmt::format("<p>{}.</p>\n", line);
  if (const std::string minor = minor_text(report); !minor.empty()) {
    text += fmt::format("<p class=\"soft\">{}.</p>\n", html(minor));
  }
  if (!evidence.empty()) {
    text += table(
        "<th>run</th><th>GPU</th><th class=\"number\">measured</th><th class=\"number\">forecast</th><th "
        "class=\"number\">error</th><th>90 % interval</th>",
        evidence_rows(evidence));
  }
  if (scenario.compared_with.empty() && !scenario.framework.empty()) {
    text += fmt::format("<p>No measured step of {} was compared with its forecast, so the interval is wider.</p>\n",
                        html(scenario.framework));
  }
  text +=
      "<p class=\"soft\">Some constants of a step were chosen on such runs. All runs: <code>ns-dist "
      "validate</code>.</p>\n";
  return section("How far off are such forecasts?", text);
}

std::string value_text(const ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "none";
  if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
  if (value.is_number_integer()) return with_commas(value.get<std::int64_t>());
  return value.dump();
}

// One line for each value below `value`, with the flag that sets it where there is one.
void input_lines(std::string& text, const std::string& group, const std::string& name, const ordered_json& value) {
  constexpr std::size_t kMostTables = 16;
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items())
      input_lines(text, group, name.empty() ? key : name + "/" + key, inner);
    return;
  }
  std::string shown;
  if (value.is_array()) {
    const bool nested = std::any_of(value.begin(), value.end(), [](const auto& one) { return one.is_structured(); });
    if (nested && value.size() <= kMostTables) {
      for (std::size_t i = 0; i < value.size(); ++i) input_lines(text, group, fmt::format("{}/{}", name, i), value[i]);
      return;
    }
    if (nested || value.size() > kMostTables) {
      shown = fmt::format("{} values, in this file's data block", value.size());
    } else {
      for (const ordered_json& one : value) shown += (shown.empty() ? "" : ", ") + value_text(one);
    }
  } else {
    shown = value_text(value);
  }
  const std::string flag = with_flags(group + "/" + name);
  text += fmt::format("<div><span>{}</span><span>{}</span></div>\n", html(flag.starts_with("--") ? flag : name),
                      html(shown.empty() ? "none" : shown));
}

std::string inputs_of(const ordered_json& inputs) {
  std::string text = "<div class=\"inputs\">\n", single;
  for (const auto& [key, value] : inputs.items()) {
    if (key == "files") continue;  // below, as provenance
    if (!value.is_object()) {
      input_lines(single, "", key, value);
      continue;
    }
    text += fmt::format("<h3>{}</h3>\n", html(key));
    input_lines(text, key, "", value);
  }
  return folded("Every input", text + "<h3>other</h3>\n" + single + "</div>\n");
}

std::string provenance_section(const Report& report, const ordered_json& json) {
  const std::string inputs = inputs_of(json["inputs"]);
  std::string text = "<dl>\n";
  text += row("Program", html(fmt::format("ns-dist {}, revision {}", json["version"].get<std::string>(),
                                          json["provenance"]["git_revision"].get<std::string>())));
  text += row("Step", html(fmt::format("{} kernels, collectives and messages of {} kinds, {} microbatches",
                                       with_commas(report.nodes), report.works, with_commas(report.microbatches))));
  std::string files;
  for (const ordered_json& file : json["provenance"]["inputs"]) {
    files += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", html(file["path"].get<std::string>()),
                         html(file["hash"].get<std::string>()));
  }
  return section("Where it comes from", text + "</dl>\n" + inputs +
                                            table("<th>file that was read</th><th>FNV-1a 64 of its bytes</th>", files));
}

std::string repeat_section(const std::string& command, bool trains) {
  return section(
      "Repeat it",
      fmt::format(
          "<p><code class=\"command\">{}</code></p>\n<p class=\"soft\">Or, without any other file, from this page "
          "saved as step.html: <code>ns-dist --from step.html</code>. Flags behind it change the question.{}</p>\n",
          html(command), trains ? " Those of the whole training are not in it: write them anew." : ""));
}

}  // namespace

std::string sensitivity_table(const std::vector<Sensitivity>& all) {
  std::string rows;
  for (const Sensitivity& each : all) {
    rows += fmt::format("<tr><td>{}{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n",
                        html(part_text(each)), each.fits ? "" : " (does not fit)", duration_text(each.step),
                        change_text(each) + range_text(each));
  }
  return table("<th>part</th><th class=\"number\">step</th><th class=\"number\">change</th>", rows);
}

Result<std::string> report_page(const Report& report, const Session& session, std::span<const RunCheck> evidence,
                                const std::string& training, const std::string& command) {
  const std::size_t stages = report.memory.stages.size();
  NS_TRY(const StepOutline outlined, outline(report.scenario, session, picture_pieces(stages)));
  const ordered_json json = ordered_json::parse(report_json(report));
  const bool forward = report.scenario.plan.passes == Passes::kForward;
  const std::string title = (forward ? "Forward passes of " : "One training step of ") + work_text(report);
  std::string body = answer(report) + section("The whole training", as_printed(training)) + warnings_section(report);
  body += improvements_section(report) + asked_section(report) + time_section(report);
  body += accuracy_section(report, evidence);
  body += section("What each stage does when", timeline_picture(outlined, report.step, report.microbatches));
  body += memory_section(report) + path_section(report) + provenance_section(report, json);
  body += repeat_section(command, !training.empty());
  return page_of(title, question(report), body, json.dump());
}

std::string page_of(const std::string& title, const std::string& question, const std::string& body,
                    const std::string& json) {
  const std::pair<std::string_view, std::string> parts[] = {
      {"title", typeset(title)}, {"question", question}, {"body", body}, {"report", json_block(json)}};
  return fill(page_files().front().content, parts);
}

std::string report_in_page(std::string text) {
  const std::size_t begin = text.find(kBlockBegin);
  if (begin == std::string::npos) return text;
  const std::size_t from = begin + kBlockBegin.size();
  return text.substr(from, text.find(kBlockEnd, from) - from);
}

}  // namespace ns_dist::cli
