#include "summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <span>
#include <vector>

#include "ns_dist/internal/printable.h"
#include "report_text.h"

namespace ns_dist::cli {
namespace {

constexpr std::size_t kMostLines = 40;
constexpr std::size_t kMostWarnings = 4;
constexpr std::size_t kMostHotspots = 3;
constexpr std::size_t kMostKinds = 3;

class Page {
 public:
  explicit Page(const Style& style) : style_(style) {}

  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  void add(std::string_view lines) { text_ += lines; }
  void heading(std::string_view text) { line("\n{}", style_.bold(text)); }
  template <class... Args>
  void fact(std::string_view name, fmt::format_string<Args...> format, Args&&... args) {
    line("  {:<14}{}", name, fmt::format(format, std::forward<Args>(args)...));
  }
  const Style& style() const { return style_; }
  std::size_t lines() const { return static_cast<std::size_t>(std::count(text_.begin(), text_.end(), '\n')); }
  std::string take() { return std::move(text_); }

 private:
  Style style_;
  std::string text_;
};

// "; corrected by 144 measured kernels and by measured collectives"
std::string corrections_text(const Scenario& scenario) {
  std::string text;
  if (scenario.kernel_calibration) {
    std::size_t kernels = 0;
    for (const FamilyCalibration& family : scenario.kernel_calibration->families) kernels += family.points.size();
    text = fmt::format("; corrected by {} measured kernels", kernels);
  }
  if (scenario.network.calibration)
    text += text.empty() ? "; corrected by measured collectives" : " and by measured collectives";
  return text;
}

void describe(Page& page, const Report& report) {
  const Scenario& scenario = report.scenario;
  page.line("{}", page.style().bold(fmt::format("{} ({})", work_text(report), scenario.cluster.gpu.id)));
  page.line("  {}", parameters_text(scenario.model, scenario.training.mtp));
  page.line("  {}", cluster_text(scenario.cluster));
  page.line("  {}; {}", degrees_text(scenario.plan), batch_text(scenario.training));
  page.line("  {}", settings_text(scenario.plan));
  if (!scenario.framework.empty()) {
    page.line("  defaults of {}{}{}", scenario.framework,
              scenario.compared_with.empty() ? "; none of its steps was compared, so the interval is wider" : "",
              corrections_text(scenario));
  }
}

// "at the peak, of 4 passes: mlp 1.2 GiB, norms 0.4 GiB"
std::string largest_kinds(const Report& report) {
  if (report.memory_detail.empty()) return "";
  const auto stage = static_cast<std::size_t>(report.memory.peak_stage);
  const StageMemoryDetail& detail = report.memory_detail[stage];
  std::vector<std::size_t> kinds(kActivationKindCount);
  std::iota(kinds.begin(), kinds.end(), std::size_t{0});
  std::stable_sort(kinds.begin(), kinds.end(),
                   [&](std::size_t a, std::size_t b) { return detail.activations[a] > detail.activations[b]; });
  std::string text;
  for (std::size_t i = 0; i < kMostKinds && detail.activations[kinds[i]] > Bytes(); ++i) {
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", kind_text(static_cast<ActivationKind>(kinds[i])),
                        bytes_text(detail.activations[kinds[i]]));
  }
  if (text.empty() || detail.over_time.empty()) return text;
  return fmt::format("at the peak, of {}: {}", live_text(detail), text);
}

// Of the fullest stage; none where its loss keeps none.
Bytes logits_at_peak(const Report& report) {
  if (report.memory_detail.empty()) return Bytes();
  const StageMemoryDetail& detail = report.memory_detail[static_cast<std::size_t>(report.memory.peak_stage)];
  return detail.activations[static_cast<std::size_t>(ActivationKind::kLogits)];
}

// Where the plan does not fit: first what would.
void memory(Page& page, const Report& report) {
  const Style& style = page.style();
  const StageMemory& stage = report.memory.stages[static_cast<std::size_t>(report.memory.peak_stage)];
  const Bytes capacity = report.scenario.cluster.gpu.memory;
  const std::string of_capacity = fmt::format("{} of {}: ", bytes_text(stage.total()), bytes_text(capacity));
  page.fact("memory", "{} (reserved {}, nvidia-smi {})",
            !report.fits                        ? style.red(of_capacity + unfit_text(report))
            : report.memory.device() > capacity ? of_capacity + style.green("fits") + ", tight: may run out"
                                                : of_capacity + style.green("fits"),
            bytes_text(report.memory.reserved()), bytes_text(report.memory.device()));
  if (!report.fits) {
    if (report.remedy) {
      page.fact("", "would fit: {} ({})", style.bold(to_flags(report.remedy->set, report.scenario)),
                remedy_text(report));
    } else {
      page.fact("", "no plan that was tried fits (fewer sequences at once, more recomputation, other divisions){}",
                report.scenario.plan.zero == ZeroStage::kNone && report.ranks > 1 &&
                        report.scenario.plan.zero_library == ZeroLibrary::kDefault
                    ? "; not tried: weights that all ranks share, as with --framework fsdp"
                    : "");
      const Bytes logits = logits_at_peak(report);
      if (logits > 0.25 * report.scenario.cluster.gpu.memory) {
        page.fact("", "logits take {}: --loss-library liger keeps none", bytes_text(logits));
      }
    }
  }
  page.fact("", "stage {}: weights {}, gradients {}, optimizer {}, activations {}, other {}", report.memory.peak_stage,
            bytes_text(stage.weights), bytes_text(stage.gradients), bytes_text(stage.optimizer),
            bytes_text(stage.activations), bytes_text(stage.other));
  if (report.host_memory > Bytes()) {
    const auto gpus = static_cast<double>(std::min(report.ranks, report.scenario.cluster.gpus_per_node()));
    page.fact("", "on the host {} of a GPU, up to {} of a node", bytes_text(report.host_memory),
              bytes_text(gpus * report.host_memory));
  }
  if (const std::string kinds = largest_kinds(report); !kinds.empty()) page.fact("", "activations {}", kinds);
}

void answer(Page& page, const Report& report, const std::string& evidence) {
  const Style& style = page.style();
  page.line("");
  if (!report.fits) memory(page, report);
  page.fact("step time", "{}  {}(90 % interval {} to {})", style.bold(duration_text(report.step)),
            report.fits ? "" : "if memory were no limit ", duration_text(report.step_low),
            duration_text(report.step_high));
  if (report.against) {
    page.fact("", "against {}: {}", printable(report.against->report), difference_text(report.against->difference));
    const std::string parts = difference_parts_text(report.against->difference);
    if (!parts.empty()) page.fact("", "its parts: {}", parts);
  }
  if (const std::string added = additions_text(report); !added.empty()) page.fact("", "of it {}", added);
  if (!evidence.empty()) page.fact("", "{}", evidence);
  if (const std::string minor = minor_text(report); !minor.empty()) page.fact("", "{}", page.style().dim(minor));
  page.fact("throughput", "{} tokens/s, {} on each GPU", rate_text(report.tokens_per_second),
            rate_text(report.tokens_per_second / static_cast<double>(report.ranks)));
  page.fact("utilization", "{}", utilization_text(report));
  if (report.energy) {
    page.fact("energy", "at most {} a step, {} for 1e12 tokens: GPUs alone, {:.0f} W each, PUE {}",
              energy_text(report.energy->step), energy_text(report.energy->trillion_tokens),
              report.scenario.cluster.gpu.board_power / units::W, report.scenario.facility.pue.value);
  }
  if (report.fits) memory(page, report);
}

void where_time_goes(Page& page, const Report& report) {
  const std::size_t stages = report.memory.stages.size();
  page.heading(stages == 1 ? "Where the time goes" : fmt::format("Where the time goes (mean of {} stages)", stages));
  constexpr int kBar = 40, kBefore = 52;  // columns
  const std::size_t columns = page.style().columns;
  const int width = columns == 0 ? kBar : std::min(kBar, static_cast<int>(columns) - kBefore);
  for (const BreakdownPart& part : longest_parts(report.breakdown)) {
    const Seconds seconds = report.breakdown.*part.seconds;
    const double share = seconds / report.step;
    constexpr double kTooShort = 0.002;  // to be shown
    if (share < kTooShort) continue;
    page.line("  {:<31}{:>10} {:>5.1f} % {}", part.name, duration_text(seconds), 100 * share,
              page.style().bar(share, width));
  }
}

void critical_path(Page& page, const Report& report, std::size_t most) {
  page.heading("Longest on the critical path");
  for (std::size_t i = 0; i < std::min(most, report.critical_path.size()); ++i) {
    const Hotspot& hotspot = report.critical_path[i];
    page.line("  {:<31}{:>10} {:>5.1f} % {} x {}", hotspot.name, duration_text(hotspot.seconds),
              100 * (hotspot.seconds / report.step), with_commas(hotspot.count), hotspot.kind);
  }
}

void what_would_help(Page& page, const Report& report, std::size_t most) {
  if (most == 0) return;
  page.line("\n{}: change of the step (90 % interval; not sure where it holds 0), the step then",
            page.style().bold("What would help most"));
  const std::vector<Improvement> told = told_improvements(report);
  for (const Improvement& improvement : std::span(told).first(most)) {
    const std::string change = with_flags(improvement.change), flags = to_flags(improvement.set, report.scenario);
    const std::string what = flags.empty() ? change : fmt::format("{}: {}", change, page.style().bold(flags));
    page.line("  {:<24} {:>8}  {}", saving_text(improvement, report.step),
              duration_text(report.step - improvement.saves), what);
  }
}

void sensitivity(Page& page, std::string_view heading, const std::vector<Sensitivity>& all) {
  if (all.empty()) return;
  page.heading(heading);
  for (const Sensitivity& each : all) page.line("  {}", sensitivity_text(each));
}

void warnings(Page& page, const Report& report, std::size_t most) {
  const std::vector<Warning> told = told_warnings(report);
  if (told.empty()) return;
  page.heading("Warnings");
  const std::size_t shown = std::min(most, told.size());
  for (std::size_t i = 0; i < shown; ++i) page.line("  {}", with_flags(told[i].message));
  if (shown < told.size()) page.line("  and {} more with --json", told.size() - shown);
}

// Of the lists below the parts of the step, which has few: so many that kMostLines are not exceeded.
struct ShownRows {
  std::size_t hotspots, changes, warnings;
};
ShownRows rows_that_fit(std::size_t above, const Report& report) {
  constexpr std::size_t kHeading = 2, kLeastHotspots = 1, kLeastChanges = 2, kLeastWarnings = 2;
  const std::size_t all = told_warnings(report).size();
  ShownRows rows{std::min(kMostHotspots, report.critical_path.size()), told_improvements(report).size(),
                 std::min(kMostWarnings, all)};
  const auto too_many = [&] {
    std::size_t lines = above + kHeading + rows.hotspots;
    if (rows.changes > 0) lines += kHeading + rows.changes;
    for (const auto* asked : {&report.sensitivity, &report.what_if}) {
      if (!asked->empty()) lines += kHeading + asked->size();
    }
    if (all > 0) lines += kHeading + rows.warnings + (rows.warnings < all ? 1 : 0);
    return lines > kMostLines;
  };
  while (rows.hotspots > kLeastHotspots && too_many()) --rows.hotspots;
  while (rows.warnings > kLeastWarnings && too_many()) --rows.warnings;
  while (rows.changes > kLeastChanges && too_many()) --rows.changes;
  return rows;
}

}  // namespace

std::string summary(const Report& report, const std::string& evidence, const std::string& training,
                    const Style& style) {
  Page page(style);
  describe(page, report);
  answer(page, report, evidence);
  where_time_goes(page, report);
  const ShownRows rows = rows_that_fit(page.lines(), report);
  page.add(training);
  critical_path(page, report, rows.hotspots);
  what_would_help(page, report, rows.changes);
  sensitivity(page, "What 1 % better changes, with this plan", report.sensitivity);
  sensitivity(page, "What if?", report.what_if);
  warnings(page, report, rows.warnings);
  return wrapped(page.take(), style);
}

}  // namespace ns_dist::cli
