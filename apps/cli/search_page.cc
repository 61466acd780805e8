#include "search_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "evidence.h"
#include "html.h"
#include "report_page.h"
#include "report_text.h"
#include "search_output.h"
#include "timeline_picture.h"

namespace ns_dist::cli {
namespace {

constexpr std::string_view kCell = "<td class=\"number\">{}</td>";

std::string cells(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += fmt::format(fmt::runtime(kCell), html(value));
  return text;
}

// A line of its own for what one repeats a plan with: it is longer than a cell.
std::string command_row(const SearchAnswer& answer, const SearchGoals& goals, std::size_t columns) {
  return fmt::format("<tr class=\"plan\"><td></td><td colspan=\"{}\"><code>{}</code></td></tr>\n", columns - 1,
                     html(command_of(answer, goals.from)));
}

// "30 d, in time", "2,431,872, too much": of the whole training with this plan.
std::vector<std::string> training_cells(const SearchAnswer& answer, const SearchGoals& goals) {
  std::vector<std::string> texts;
  if (const auto time = training_of(answer, goals)) {
    texts.push_back(long_time(time->total) + (!goals.deadline          ? ""
                                              : in_time(answer, goals) ? ", in time"
                                                                       : ", too late"));
  }
  if (goals.prices) {
    const auto cost = cost_of(answer, goals);
    texts.push_back(!cost ? "unknown"
                          : fmt::format("{}{}", cost_text(*cost),
                                        !goals.budget              ? ""
                                        : in_budget(answer, goals) ? ", in budget"
                                                                   : ", too much"));
  }
  return texts;
}

std::string training_headings(const SearchGoals& goals) {
  std::string text;
  if (goals.tokens) text += "<th class=\"number\">whole training</th>";
  if (goals.prices) {
    text += fmt::format("<th class=\"number\">{}{}</th>", html(goals.prices->currency),
                        goals.tokens ? "" : " for 1e12 tokens");
  }
  return text;
}

// The warnings of the answers, each once, with the rows that it is of.
std::string warnings_of(const SearchCase& found) {
  std::vector<std::pair<std::string, std::string>> all;
  int number = 0;
  for (const SearchAnswer& answer : found.result.answers) {
    ++number;
    for (const Warning& warning : told_warnings(answer.report)) {
      const auto same = [&](const auto& each) { return each.first == warning.message; };
      const auto known = std::find_if(all.begin(), all.end(), same);
      if (known == all.end()) {
        all.emplace_back(warning.message, std::to_string(number));
      } else {
        known->second += fmt::format(", {}", number);
      }
    }
  }
  std::string items;
  for (const auto& [message, rows] : all) {
    items += fmt::format("<li>{} <span class=\"soft\">(row {})</span></li>\n", html(with_flags(message)), rows);
  }
  return items.empty() ? "" : "<p>Warnings:</p>\n<ul>\n" + items + "</ul>\n";
}

// The situations of one machine.
std::string answers_section(const SearchCase& found, const SearchGoals& goals) {
  constexpr std::size_t kColumns = 8;  // before those of the training
  std::string rows;
  int number = 0;
  for (const SearchAnswer& answer : found.result.answers) {
    const Report& report = answer.report;
    const std::vector<std::string> training = training_cells(answer, goals);
    rows += fmt::format("<tr class=\"planned\"><td>{}</td><td>{}</td>", ++number, html(joined(answer.why)));
    rows +=
        cells({duration_text(report.step),
               fmt::format("{} to {}", duration_text(report.step_low), duration_text(report.step_high)),
               behind_text(answer), fmt::format("{:.1f} / {:.1f} %", 100 * report.mfu_causal, 100 * report.mfu),
               bytes_text(report.memory.peak()) + (is_tight(report) ? ", tight" : ""), duration_text(answer.network)});
    rows += cells(training) + "</tr>\n" + command_row(answer, goals, kColumns + training.size());
  }
  if (rows.empty()) return "<p class=\"bad\">No plan fits.</p>\n";
  const std::string headings =
      "<th></th><th>situation</th><th class=\"number\">step</th><th class=\"number\">90 % interval</th><th "
      "class=\"number\">behind (90 % interval)</th><th class=\"number\">MFU, causal / full</th><th "
      "class=\"number\">memory</th><th "
      "class=\"number\">network</th>";
  const Scenario& first = found.result.answers.front().report.scenario;
  return table(headings + training_headings(goals), rows) +
         fmt::format("<p class=\"soft\">Of row 1, {}.</p>\n", evidence_line(evidence_for(first), first)) +
         warnings_of(found);
}

// All machines: a table, and what the lines below it say in a terminal.
std::string machines_section(const std::vector<SearchCase>& cases, const SearchGoals& goals) {
  const MachineTable machines = machine_table(cases, goals);
  std::string head, rows;
  for (const auto& [heading, width, number] : machines.columns) {
    head += fmt::format("<th{}>{}</th>", number ? " class=\"number\"" : "", html(heading));
  }
  for (const std::vector<std::string>& row : machines.rows) {
    rows += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::size_t over = i + 1 < row.size() ? 1 : machines.columns.size() - i;
      const std::string_view kind = over > 1                     ? ""
                                    : machines.columns[i].number ? " class=\"number\""
                                                                 : " class=\"whole\"";
      rows += fmt::format("<td{}{}>{}</td>", kind, over > 1 ? fmt::format(" colspan=\"{}\"", over) : "", html(row[i]));
    }
    rows += "</tr>\n";
  }
  return section("All machines", table(head, rows) + as_printed(below_machines(cases, goals, Style())));
}

// Step against memory: a dot for each plan that could be an answer. Dots at the same place are drawn once.
std::string scatter(const SearchCase& found) {
  constexpr double kLeft = 70, kRight = 970, kTop = 12, kBottom = 330;
  std::vector<SearchPoint> points = found.result.points;
  if (points.empty() || found.result.answers.empty()) return "";
  // A step is as long as it takes for the tokens of the fastest plan's.
  const std::vector<SearchAnswer>& answers = found.result.answers;
  const double share = tokens_of_step(answers.front().report.scenario.training) / tokens_of_step(found.base.training);
  for (SearchPoint& point : points) point.step = share * point.step;
  const auto [least, most] =
      std::minmax_element(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  const Seconds from = least->step, to = max(most->step, 1.01 * least->step);
  const Bytes capacity = found.base.cluster.gpu.memory;
  const auto x = [&](Bytes memory) { return kLeft + (kRight - kLeft) * (memory / capacity); };
  const auto y = [&](Seconds step) { return kBottom - 8 - (kBottom - kTop - 16) * ((step - from) / (to - from)); };
  std::string text =
      "<div class=\"scroll\"><svg viewBox=\"0 0 1000 372\" role=\"img\" aria-label=\"step against memory\">\n";
  const double pitch = round_step((to - from) / units::s / 5);
  for (double tick = std::ceil(from / units::s / pitch); tick * pitch <= to / units::s; ++tick) {
    const Seconds step = tick * pitch * units::s;
    text += fmt::format("<line class=\"axis\" x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\"/>", kLeft, y(step),
                        kRight, y(step));
    text +=
        fmt::format("<text class=\"end\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", kLeft - 6, y(step) + 4, tick_text(step));
  }
  for (int part = 0; part <= 4; ++part) {
    const Bytes memory = 0.25 * part * capacity;
    text += fmt::format("<text class=\"middle\" x=\"{:.1f}\" y=\"{}\">{}</text>\n", x(memory), kBottom + 16,
                        fmt::format("{:.0f} GiB", memory / units::GiB));
  }
  text += fmt::format("<text class=\"middle\" x=\"{}\" y=\"{}\">memory of the fullest GPU</text>\n",
                      (kLeft + kRight) / 2, kBottom + 34);
  std::set<std::tuple<bool, int, int>> drawn;
  for (const SearchPoint& point : points) {
    const double at_x = x(point.memory), at_y = y(point.step);
    if (!drawn.emplace(point.timed, static_cast<int>(at_x / 2), static_cast<int>(at_y / 2)).second) continue;
    text += fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"/>", point.timed ? "forward" : "cut",
                        at_x, at_y, point.timed ? 3 : 2);
  }
  text += '\n';
  int number = 0;
  bool alike = true;
  for (const SearchAnswer& answer : answers) {
    alike &= answer.behind.steps == 1;
    const double at_x = x(answer.report.memory.peak()), at_y = y(answer.behind.steps * answer.report.step);
    text += fmt::format(
        "<circle class=\"backward\" cx=\"{0:.1f}\" cy=\"{1:.1f}\" r=\"8\"/><text class=\"in on-dark\" x=\"{0:.1f}\" "
        "y=\"{2:.1f}\">{3}</text>\n",
        at_x, at_y, at_y + 3.4, ++number);
  }
  return text +
         fmt::format(
             "</svg></div>\n<p class=\"soft\">The right end is the capacity of {}. Full dots were timed; rings are "
             "lower bounds of plans that could not win. {}The step does not begin at zero. Numbers are the rows "
             "above.</p>\n",
             html(found.base.cluster.gpu.name),
             alike ? "" : "Each step is as long as it takes for the tokens of the first row's. ");
}

std::string machine_section(const SearchCase& found, const SearchGoals& goals) {
  const SearchResult& result = found.result;
  std::string text = fmt::format("<p>{}</p>\n", html(search_counts(result)));
  text += answers_section(found, goals) + scatter(found);
  if (!found.sensitivity.empty()) {
    text += "<p>What 1 % better changes, with the fastest plan:</p>\n" + sensitivity_table(found.sensitivity);
  }
  std::string reasons;
  for (const auto& [reason, count] : result.infeasible) {
    const auto example = result.examples.find(reason);
    reasons += fmt::format("<tr>{}<td>{}</td><td>{}</td></tr>\n", cells({with_commas(count)}), html(with_flags(reason)),
                           example == result.examples.end() ? "" : html(with_flags(example->second)));
  }
  if (!reasons.empty()) {
    text += "<p>Plans that are not possible:</p>\n" +
            table("<th class=\"number\">plans</th><th>reason</th><th>as in</th>", reasons);
  }
  std::string title = fmt::format("{} x {}", with_commas(found.gpus), found.base.cluster.gpu.name);
  for (const auto& [field, value] : set_apart(found.base, goals)) {
    title += fmt::format(", {} {}", with_flags(field).substr(2), value);
  }
  return section(title, text);
}

}  // namespace

std::string search_page(const std::vector<SearchCase>& cases, const SearchGoals& goals, const std::string& command) {
  std::string title = "Plans", question = "<dl>\n", body;
  if (!cases.empty()) {
    title = "Plans for " + models_text(cases);
    question += row("Work", html(work_text(cases, goals)));
    if (const std::string asked = goals_text(goals); !asked.empty()) question += row("Asked", html(asked));
    std::set<std::string> machines;  // of several works on one machine, once
    for (const SearchCase& each : cases) {
      const std::string machine = fmt::format("{} x {}, {}", with_commas(each.gpus), each.base.cluster.gpu.name,
                                              cluster_text(each.base.cluster));
      if (machines.insert(machine).second) question += row("Machine", typeset(machine));
    }
  }
  if (cases.size() > 1) {
    body += machines_section(cases, goals);
  } else if (const SearchAnswer* fastest = cases.empty() ? nullptr : fastest_of(cases.front())) {
    body += section("The whole training", as_printed(training_text(*fastest, goals, "the fastest", Style())));
  }
  for (const SearchCase& each : cases) body += machine_section(each, goals);
  body +=
      section("Repeat it",
              fmt::format("<p><code class=\"command\">{}</code></p>\n<p class=\"soft\">Or one of its plans, from this "
                          "page saved as plans.html: <code>ns-dist --from plans.html#2</code>.</p>\n",
                          html(command)));
  return page_of(title, question + "</dl>\n", body, search_json(cases, goals));
}

}  // namespace ns_dist::cli
