#include "evidence.h"

#include <fmt/format.h>

#include <algorithm>

#include "html.h"
#include "ns_dist/catalog.h"
#include "ns_dist/nearest_runs.h"
#include "terminal.h"

namespace ns_dist::cli {

std::vector<RunCheck> evidence_for(const Scenario& scenario) {
  constexpr std::size_t kMost = 5;
  auto nearest = nearest_runs(scenario, Catalog::standard(), kMost);
  if (!nearest) return {};
  std::erase_if(*nearest, [](const RunCheck& check) { return !check.unsupported.empty(); });
  return *std::move(nearest);
}

std::string evidence_line(std::span<const RunCheck> evidence, const Scenario& scenario) {
  if (evidence.empty()) return "no measured step is much like it";
  const auto [least, most] = std::ranges::minmax(evidence, {}, &RunCheck::error);
  const auto inside = std::ranges::count_if(evidence, &RunCheck::inside);
  const bool on_gpu =
      std::ranges::any_of(evidence, [&](const RunCheck& check) { return check.gpu == scenario.cluster.gpu.id; });
  // Attention grows with the square of a sequence: shorter ones tell less.
  constexpr std::int64_t kMuchLonger = 4;
  const std::int64_t longest = std::ranges::max(evidence, {}, &RunCheck::sequence).sequence;
  const bool of_short = scenario.training.sequence > kMuchLonger * longest;
  std::string which = on_gpu ? "" : ", on other GPUs";
  if (of_short) which += fmt::format(", of at most {} tokens a sequence", with_commas(longest));
  if (!which.empty()) which += ",";
  if (evidence.size() == 1) {
    return fmt::format("the measured step most like it{} was forecast {:+.1f} % off, {} its interval", which,
                       100 * least.error(), inside == 1 ? "inside" : "outside");
  }
  return fmt::format(
      "the {} measured steps most like it{} were forecast {:+.1f} to {:+.1f} % off, {} in their interval",
      evidence.size(), which, 100 * least.error(), 100 * most.error(), inside);
}

std::vector<ExplanationStep> evidence_steps(std::span<const RunCheck> evidence) {
  std::vector<ExplanationStep> steps;
  for (const RunCheck& check : evidence) {
    steps.push_back({"measured step", fmt::format("{:+.1f} %", 100 * check.error()),
                     fmt::format("{} of {}: measured {}, forecast {}, {} its interval", check.id, check.publication,
                                 duration_text(check.measured), duration_text(check.forecast),
                                 check.inside() ? "inside" : "outside")});
  }
  return steps;
}

std::string evidence_rows(std::span<const RunCheck> evidence) {
  std::string rows;
  for (const RunCheck& check : evidence) {
    rows += fmt::format(
        "<tr><td>{}: {}</td><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td "
        "class=\"number\">{:+.1f} %</td><td>{}</td></tr>\n",
        html(check.publication), html(check.id), html(check.gpu), duration_text(check.measured),
        duration_text(check.forecast), 100 * check.error(), check.inside() ? "inside" : "outside");
  }
  return rows;
}

}  // namespace ns_dist::cli
