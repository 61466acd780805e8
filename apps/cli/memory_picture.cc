#include "memory_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "html.h"
#include "report_text.h"
#include "terminal.h"
#include "timeline_picture.h"

namespace ns_dist::cli {
namespace {

// What a GPU needs, and the class of each part. The sum is StageMemory::needed().
struct MemoryPart {
  std::string_view name, id;
  Bytes (*bytes)(const StageMemory&);
};
constexpr MemoryPart kMemoryParts[] = {
    {"weights", "weights", [](const StageMemory& stage) { return stage.weights; }},
    {"gradients", "gradients", [](const StageMemory& stage) { return stage.gradients; }},
    {"optimizer", "states", [](const StageMemory& stage) { return stage.optimizer; }},
    {"activations", "activations", [](const StageMemory& stage) { return stage.activations; }},
    {"other", "buffers", [](const StageMemory& stage) { return stage.other; }},
    {"CUDA context and NCCL", "beside", [](const StageMemory& stage) { return stage.needed() - stage.total(); }}};

// By ActivationKind: a golden angle apart, at least 3:1 on white and on the dark page.
constexpr std::array<std::string_view, kActivationKindCount> kKindColors = {
    "#c73e3e", "#2fa250", "#a361d1", "#7b7124", "#339baf", "#cc5194", "#3b7f25", "#8884db", "#c16638", "#247e5c",
    "#ca67d3", "#728727", "#3473b2", "#d56e84", "#2a9233", "#8356ce", "#b18733", "#298c88", "#be379c", "#619e2e"};

// " (stage 3: 1.2 GiB)"; nothing of what a stage does not have.
std::string of_stage(std::size_t stage, Bytes bytes) {
  return bytes > Bytes() ? fmt::format(" (stage {}: {})", stage, bytes_text(bytes)) : "";
}

std::string shown_note(std::size_t shown, std::size_t stages) {
  if (shown == stages) return "";
  return fmt::format(" {} of {} stages are drawn, the fullest among them.", shown, with_commas(stages));
}

std::vector<std::size_t> shown_of(const Report& report) {
  return shown_stages(report.memory.stages.size(), static_cast<std::size_t>(report.memory.peak_stage));
}

// A line of a table: the stage and numbers.
std::string cells(std::size_t stage, const std::vector<std::string>& values) {
  std::string text = fmt::format("<tr><td>{}</td>", stage);
  for (const std::string& value : values) text += fmt::format("<td class=\"number\">{}</td>", value);
  return text + "</tr>\n";
}

// One stage over time. Passes stand behind one another; what is left out of a loop is drawn as a slope.
class StageRow {
 public:
  static constexpr double kLeft = 66, kRight = 992;

  StageRow(const StageMemory& memory, const StageMemoryDetail& detail, Bytes full, double bottom, double height)
      : memory_(memory), detail_(detail), full_(full), bottom_(bottom), height_(height) {
    constexpr double kMostWidth = 48, kLeastSlope = 26, kMostSlope = 150;
    const std::vector<HeldPoint>& points = detail.over_time;
    const auto count = static_cast<double>(points.size());
    const auto slopes = static_cast<double>(
        std::count_if(points.begin(), points.end(), [](const HeldPoint& point) { return point.left_out > 0; }));
    width_ = std::min(kMostWidth, (kRight - kLeft - slopes * kLeastSlope) / count);
    slope_ = slopes > 0 ? std::min(kMostSlope, (kRight - kLeft - count * width_) / slopes) : 0;
  }

  std::string draw(std::int64_t chunks) const {
    std::string forward, backward, weights, within, slopes, edge, texts;
    const Bytes below = memory_.total() - memory_.activations, always = below + detail_.transient;
    const auto top = [&](const HeldPoint& point) { return always + point.bytes * units::B; };
    const auto most = [&](const HeldPoint& point) { return always + point.most * units::B; };
    double x = kLeft;
    for (std::size_t i = 0; i < detail_.over_time.size(); ++i) {
      const HeldPoint& point = detail_.over_time[i];
      if (point.left_out > 0) {
        const double to = x + slope_, ground = y(always);
        const Bytes before = i == 0 ? always : top(detail_.over_time[i - 1]);
        slopes +=
            fmt::format("M{:.1f} {:.1f}V{:.1f}L{:.1f} {:.1f}V{:.1f}z", x, ground, y(before), to, y(top(point)), ground);
        texts += text((x + to) / 2, "…");
        x = to;
      }
      const std::string bar = rectangle(x, x + width_, always, top(point));
      const PassKind kind = point.pass.kind;
      (kind == PassKind::kForward ? forward : kind == PassKind::kWeightGradient ? weights : backward) += bar;
      within += rectangle(x, x + width_, top(point), most(point));
      if (i == detail_.peak) edge = rectangle(x, x + width_, always, most(point));
      const std::string name = pass_text(point.pass, chunks);
      if (width_ >= 5 + 6.5 * static_cast<double>(name.size())) texts += text(x + width_ / 2, name);
      x += width_;
    }
    const auto path = [](std::string_view id, const std::string& data) {
      return data.empty() ? "" : fmt::format("<path class=\"{}\" d=\"{}\"/>\n", id, data);
    };
    return path("idle", slopes) + path("buffers", rectangle(kLeft, x, Bytes(), below)) +
           path("moment", rectangle(kLeft, x, below, always) + within) + path("forward", forward) +
           path("backward", backward) + path("delayed", weights) + path("edge", edge) + texts + "\n";
  }

  double y(Bytes bytes) const { return bottom_ - height_ * (bytes / full_); }

 private:
  std::string text(double x, std::string_view what) const {
    return fmt::format("<text class=\"middle\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>", x, bottom_ + 12, what);
  }
  std::string rectangle(double from, double to, Bytes low, Bytes high) const {
    if (high <= low || to <= from) return "";
    return fmt::format("M{:.1f} {:.1f}H{:.1f}V{:.1f}H{:.1f}z", from, y(low), to, y(high), from);
  }

  const StageMemory& memory_;
  const StageMemoryDetail& detail_;
  Bytes full_;
  double bottom_, height_, width_ = 0, slope_ = 0;
};

}  // namespace

std::string memory_by_part(const Report& report) {
  const std::vector<StageMemory>& stages = report.memory.stages;
  const Bytes capacity = report.scenario.cluster.gpu.memory;
  const Bytes full = 1.02 * max(capacity, report.memory.needed());
  const auto peak = static_cast<std::size_t>(report.memory.peak_stage);
  const auto width = [&](Bytes bytes) { return fmt::format("{:.2f}%", 100 * (bytes / full)); };
  std::string text = "<div class=\"legend\">";
  for (const MemoryPart& part : kMemoryParts) {
    text += fmt::format("<span><i class=\"{}\"></i>{}{}</span>", part.id, part.name,
                        of_stage(peak, part.bytes(stages[peak])));
  }
  text += "</div>\n<div class=\"memory\">\n";
  std::string rows;
  const std::vector<std::size_t> shown = shown_of(report);
  for (const std::size_t s : shown) {
    const StageMemory& stage = stages[s];
    text += fmt::format("<span>stage {}</span><span class=\"track\">", s);
    std::vector<std::string> values;
    for (const MemoryPart& part : kMemoryParts) {
      text += fmt::format("<i class=\"{}\" style=\"width:{}\"></i>", part.id, width(part.bytes(stage)));
      values.push_back(bytes_text(part.bytes(stage)));
    }
    const bool fits = stage.needed() <= capacity;
    text += fmt::format("<u style=\"left:{}\"></u></span><span class=\"number{}\">{}{}</span>\n", width(capacity),
                        fits ? "" : " bad", bytes_text(stage.needed()), fits ? "" : ", too much");
    for (const Bytes bytes : {stage.total(), stage.needed(), stage.reserved(), stage.device()}) {
      values.push_back(bytes_text(bytes));
    }
    rows += cells(s, values);
  }
  text += fmt::format(
      "</div>\n<p class=\"soft\">The line is the capacity of {}: {}. A stage fits where its bar, with the hatched CUDA "
      "context and NCCL's buffers, does not go beyond it.{}</p>\n",
      html(report.scenario.cluster.gpu.name), bytes_text(capacity), shown_note(shown.size(), stages.size()));
  std::string head = "<th>stage</th>";
  for (const MemoryPart& part : kMemoryParts) head += fmt::format("<th class=\"number\">{}</th>", part.name);
  for (const char* tool : {"allocated", "needed", "reserved", "nvidia-smi"}) {
    head += fmt::format("<th class=\"number\">{}</th>", tool);
  }
  return text +
         folded("In numbers",
                table(head, rows) +
                    "<p class=\"soft\"><em>Allocated</em> is what tensors take, from weights to other (PyTorch's "
                    "max_memory_allocated). <em>Needed</em> adds the CUDA context, 1 GiB, and NCCL's buffers, 0.5 to "
                    "0.7 GiB for each group of ranks; it decides whether a stage fits. <em>Reserved</em> is what is "
                    "allocated, 5 % "
                    "that the caching allocator cannot give back, and what DeepSpeed's update copies when activations "
                    "are gone. "
                    "<em>nvidia-smi</em> is that with the CUDA context and NCCL's buffers. <em>Other</em> is "
                    "256 MiB for workspaces of products, and DeepSpeed's buffers of gradients. Weights "
                    "have the layers that ZeRO-3 gathers and prefetches, gradients the layers that wait for their "
                    "reduction.</p>\n");
}

std::string activations_by_kind(const Report& report) {
  const auto peak = static_cast<std::size_t>(report.memory.peak_stage);
  const std::vector<std::size_t> shown = shown_of(report);
  std::set<std::size_t> kinds;
  Bytes most;
  for (const std::size_t s : shown) {
    most = max(most, report.memory.stages[s].activations);
    for (std::size_t kind = 0; kind < kActivationKindCount; ++kind) {
      if (report.memory_detail[s].activations[kind] > Bytes()) kinds.insert(kind);
    }
  }
  if (most <= Bytes()) return "";
  std::string text = "<div class=\"legend\">";
  for (const std::size_t kind : kinds) {
    text += fmt::format("<span><i style=\"background:{}\"></i>{}{}</span>", kKindColors[kind],
                        kind_text(static_cast<ActivationKind>(kind)),
                        of_stage(peak, report.memory_detail[peak].activations[kind]));
  }
  text += "</div>\n<div class=\"memory\">\n";
  for (const std::size_t s : shown) {
    const StageMemoryDetail& detail = report.memory_detail[s];
    const std::string when = peak_text(report, s);
    text += fmt::format("<span>stage {}{}{}</span><span class=\"track\">", s, when.empty() ? "" : " ", when);
    for (const std::size_t kind : kinds) {
      const double share = detail.activations[kind] / most;
      if (share > 0)
        text += fmt::format("<i style=\"background:{};width:{:.2f}%\"></i>", kKindColors[kind], 100 * share);
    }
    text += fmt::format("</span><span class=\"number\">{}</span>\n", bytes_text(report.memory.stages[s].activations));
  }
  return text +
         fmt::format(
             "</div>\n<p class=\"soft\">When a stage holds the most. F3 is the forward pass of microbatch 3{}.{}</p>\n",
             report.scenario.plan.vpp > 1 ? ", F3.1 that of chunk 1" : "",
             shown_note(shown.size(), report.memory.stages.size()));
}

std::string memory_over_time(const Report& report) {
  constexpr double kHeight = 110, kPitch = kHeight + 42, kTop = 22;
  if (report.memory_detail.front().over_time.empty()) return "";
  const std::vector<StageMemory>& stages = report.memory.stages;
  const std::set<std::size_t> shown = {0, static_cast<std::size_t>(report.memory.peak_stage), stages.size() - 1};
  const Bytes capacity = report.scenario.cluster.gpu.memory, peak = report.memory.peak();
  std::string picture;
  double bottom = kTop + kHeight;
  bool waits = false, transient = false, thinned = false, sloped = false;
  for (const std::size_t s : shown) {
    const StageMemoryDetail& detail = report.memory_detail[s];
    const StageRow row(stages[s], detail, peak, bottom, kHeight);
    picture += row.draw(report.scenario.plan.vpp);
    const auto line = [&](std::string_view id, Bytes at) {
      picture +=
          fmt::format("<path class=\"{}\" d=\"M{} {:.1f}H{}\"/>", id, StageRow::kLeft, row.y(at), StageRow::kRight);
      picture += fmt::format("<text class=\"end\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", StageRow::kLeft - 6,
                             row.y(at) + 4, bytes_text(at));
    };
    line("axis", Bytes());
    line("axis", peak);
    if (capacity < 0.9 * peak) line("cut", capacity);
    picture += fmt::format("<text x=\"{}\" y=\"{:.1f}\">stage {}: {} {}</text>\n", StageRow::kLeft,
                           bottom - kHeight - 7, s, bytes_text(stages[s].total()), peak_text(report, s));
    std::int64_t left_out = 0;
    for (const HeldPoint& point : detail.over_time) {
      transient = transient || point.most > point.bytes;
      left_out += point.left_out;
      waits = waits || point.pass.kind == PassKind::kWeightGradient;
    }
    sloped = sloped || left_out > 0;
    thinned = thinned || static_cast<std::int64_t>(detail.over_time.size()) + left_out < detail.passes;
    transient = transient || detail.transient > Bytes();
    bottom += kPitch;
  }
  std::string text = "<div class=\"legend\">";
  const auto key = [&](std::string_view id, std::string_view name) {
    text += fmt::format("<span><i class=\"{}\"></i>{}</span>", id, name);
  };
  key("forward", "behind a forward pass");
  key("backward", waits ? "behind an input gradient or a backward pass" : "behind a backward pass");
  if (waits) key("delayed", "behind a weight gradient");
  if (transient) key("moment", "for a while: what is computed again, metrics, offloaded layers");
  key("buffers", "weights, gradients, optimizer, other");
  if (sloped) key("idle", "left out");
  text +=
      fmt::format("</div>\n<div class=\"scroll\"><svg viewBox=\"0 0 1000 {:.0f}\" role=\"img\" aria-label=\"{}\">\n",
                  bottom - kPitch + 18, "Memory behind each pass");
  text += picture +
          "</svg></div>\n<p class=\"soft\">What a stage has allocated behind each of its passes, in their order, not "
          "in time. Outlined: the peak.";
  if (capacity < 0.9 * peak) text += " The line in the middle is the capacity.";
  if (sloped)
    text += " Of a loop of passes the first and the last repeat are drawn: between them, memory changes evenly.";
  if (thinned) text += " Of many passes, the lowest and the highest of neighbors are drawn.";
  return text + "</p>\n";
}

}  // namespace ns_dist::cli
