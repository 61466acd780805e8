#include "timeline_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "html.h"
#include "report_text.h"
#include "terminal.h"

namespace ns_dist::cli {
namespace {

constexpr std::size_t kMostRows = 32;     // stages that are drawn
constexpr std::size_t kPieces = 4'000;    // of all rows: 350 kB where each has every color
constexpr std::size_t kMostPieces = 500;  // of a row, which is 900 units wide

// Colors from the bottom of a row to its top. Waiting for other stages is left blank.
struct Layer {
  Category category;
  std::string_view id, name;
};
constexpr std::array<Layer, kCategoryCount> kLayers = {{
    {Category::kPipelineParallel, "pp", "pipeline messages"},
    {Category::kDataParallel, "dp", "data-parallel communication"},
    {Category::kExpertParallel, "ep", "expert-parallel communication"},
    {Category::kContextParallel, "cp", "context-parallel communication"},
    {Category::kTensorParallel, "tp", "tensor-parallel communication"},
    {Category::kLaunches, "launches", "waiting for launches"},
    {Category::kOther, "other", "other"},
    {Category::kOptimizer, "optimizer", "optimizer"},
    {Category::kRecompute, "recompute", "recomputation"},
    {Category::kBackward, "backward", "backward"},
    {Category::kForward, "forward", "forward"},
}};

// Where times are drawn. Parts of the axis are divided by cuts.
class Axis {
 public:
  static constexpr double kLeft = 66, kRight = 992, kCut = 30;

  struct Part {
    Seconds from, to;  // on the outline's axis
    Seconds left_out;  // before it
    double x = 0;      // of from
  };

  explicit Axis(const StepOutline& outline) {
    const auto cuts = static_cast<double>(outline.cuts.size());
    scale_ = (kRight - kLeft - cuts * kCut) / (outline.length / units::s);
    Part part;
    part.x = kLeft;
    for (const OutlineCut& cut : outline.cuts) {
      part.to = cut.at;
      parts_.push_back(part);
      part = {cut.at, {}, part.left_out + static_cast<double>(cut.copies) * cut.length, x(part, cut.at) + kCut};
    }
    part.to = outline.length;
    parts_.push_back(part);
  }

  const std::vector<Part>& parts() const { return parts_; }
  double x(const Part& part, Seconds at) const { return part.x + scale_ * ((at - part.from) / units::s); }

  // Calls draw(x, width) for what each part of the axis has of [from, to].
  template <class Draw>
  void each(Seconds from, Seconds to, Draw draw) const {
    for (const Part& part : parts_) {
      const Seconds begin = max(from, part.from), end = min(to, part.to);
      if (begin < end) draw(x(part, begin), x(part, end) - x(part, begin));
    }
  }

 private:
  double scale_ = 0;
  std::vector<Part> parts_;
};

// 12.5, 3, 0.07: no more digits than a screen can show.
std::string short_number(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text == "-0" ? "0" : text;
}

std::string rectangle(double x, double y, double width, double height) {
  return fmt::format("M{} {}h{}v{}h-{}z", short_number(x), short_number(y), short_number(width), short_number(height),
                     short_number(width));
}

std::string path(std::string_view id, const std::string& data) {
  return data.empty() ? "" : fmt::format("<path class=\"{}\" d=\"{}\"/>\n", id, data);
}

struct Row {
  std::array<std::string, kCategoryCount> layers;  // by kLayers
  std::string seams, edges, numbers;
};

Row draw_row(const std::vector<OutlinePiece>& pieces, const Axis& axis, double y, double height,
             std::int64_t microbatches) {
  Row row;
  for (const OutlinePiece& piece : pieces) {
    const bool pass = piece.microbatch >= 0;
    const bool edge = pass && (piece.microbatch == 0 || piece.microbatch == microbatches - 1);
    const bool forward = piece.time.of(Category::kForward) > Seconds();
    const std::string number = pass ? fmt::format("{}", piece.microbatch) : "";
    axis.each(piece.start, piece.end, [&](double x, double width) {
      double bottom = y + height;
      for (std::size_t i = 0; i < kLayers.size(); ++i) {
        const double part = height * (piece.time.of(kLayers[i].category) / (piece.end - piece.start));
        if (part >= 0.05) row.layers[i] += rectangle(x, bottom - part, width, part);
        bottom -= part;
      }
      if (pass && width > 2.5)
        row.seams += fmt::format("M{} {}v{}", short_number(x), short_number(y), short_number(height));
      if (edge && width > 1.5) row.edges += rectangle(x + 0.6, y + 0.6, width - 1.2, height - 1.2);
      if (pass && height >= 11 && width >= 5 + 5.5 * static_cast<double>(number.size())) {
        row.numbers += fmt::format("<text class=\"in{}\" x=\"{}\" y=\"{}\">{}</text>", forward ? "" : " on-dark",
                                   short_number(x + width / 2), short_number(y + height / 2 + 3.4), number);
      }
    });
  }
  return row;
}

std::string ticks(const StepOutline& outline, const Axis& axis, double top, double bottom) {
  const double step = round_step(outline.length / units::s / 9);
  std::string result;
  for (const Axis::Part& part : axis.parts()) {
    const double from = (part.from + part.left_out) / units::s, to = (part.to + part.left_out) / units::s;
    for (double number = std::ceil(from / step); number * step <= to; ++number) {
      const Seconds at = number * step * units::s;
      const double x = axis.x(part, at - part.left_out);
      result +=
          fmt::format("<path class=\"axis\" d=\"M{0} {1}V{2}\"/><text class=\"{5}\" x=\"{0}\" y=\"{3}\">{4}</text>",
                      short_number(x), short_number(top), short_number(bottom + 4), short_number(bottom + 16),
                      tick_text(at), x > Axis::kRight - 20 ? "end" : "middle");
    }
  }
  return result;
}

// The place where copies are left out, and the period that they repeat.
std::string cut_marks(const StepOutline& outline, const Axis& axis, double top, double bottom) {
  std::string result;
  for (std::size_t i = 0; i < outline.cuts.size(); ++i) {
    const OutlineCut& cut = outline.cuts[i];
    const Axis::Part& before = axis.parts()[i];
    const double x = axis.x(before, cut.at), middle = (top + bottom) / 2;
    for (const double edge : {x + 3, x + Axis::kCut - 3}) {
      std::string zigzag = fmt::format("M{} {}", short_number(edge), short_number(top));
      bool right = true;
      for (double y = top; y + 6 <= bottom; y += 6, right = !right) zigzag += right ? "l3 6" : "l-3 6";
      result += path("cut", zigzag);
    }
    const bool tall = bottom - top > 90;
    result += fmt::format("<text class=\"middle\" transform=\"translate({} {}) rotate(-90)\">{}{}{}</text>",
                          short_number(x + Axis::kCut / 2 + 4), short_number(middle), tall ? "" : "× ",
                          with_commas(cut.copies), tall ? " more times" : "");
    const double from = axis.x(before, max(before.from, cut.at - cut.length));
    result +=
        path("repeat", fmt::format("M{0} {1}v-5H{2}v5", short_number(from), short_number(top - 3), short_number(x)));
    result +=
        fmt::format("<text class=\"end\" x=\"{}\" y=\"{}\">repeats</text>", short_number(x), short_number(top - 12));
  }
  return result;
}

// What is to be seen in the picture beside the colors.
struct Marks {
  bool numbers = false, edges = false, mixed = false;
};

std::string caption(const StepOutline& outline, Seconds step, std::size_t rows, std::int64_t microbatches,
                    const Marks& marks) {
  std::string text =
      "<p class=\"soft\">A row is a stage, time runs to the right. In a row, the area of a color is its time.";
  if (marks.numbers) text += " Numbers are microbatches.";
  if (marks.edges && microbatches > 1) {
    text += fmt::format(" Outlined: the first and the last microbatch, 0 and {}.", with_commas(microbatches - 1));
  }
  if (marks.mixed) text += " Passes that are too short to be drawn alone are put together.";
  for (const OutlineCut& cut : outline.cuts) {
    const Seconds left_out = static_cast<double>(cut.copies) * cut.length;
    text += fmt::format(" Left out: the {} marked <em>repeats</em>, {} ({} microbatches, {} or {:.0f} % of the step).",
                        duration_text(cut.length), counted(cut.copies, "more time"),
                        with_commas(cut.copies * cut.microbatches), duration_text(left_out), 100 * (left_out / step));
  }
  if (rows < outline.stages.size()) {
    text += fmt::format(" {} of {} stages are drawn.", rows, with_commas(outline.stages.size()));
  }
  return text + "</p>\n";
}

std::string legend(const StepOutline& outline) {
  StageTime sum;
  for (const auto& stage : outline.stages) {
    for (const OutlinePiece& piece : stage) {
      for (std::size_t c = 0; c < kCategoryCount; ++c) sum.by_category[c] += piece.time.by_category[c];
      sum.idle += piece.time.idle;
    }
  }
  std::string text = "<div class=\"legend\">";
  for (auto layer = kLayers.rbegin(); layer != kLayers.rend(); ++layer) {
    if (sum.of(layer->category) / sum.total() < 0.0005) continue;
    text += fmt::format("<span><i class=\"{}\"></i>{}</span>", layer->id, layer->name);
  }
  if (sum.idle > Seconds()) text += "<span><i class=\"idle\"></i>waiting for other stages</span>";
  return text + "</div>\n";
}

}  // namespace

std::vector<std::size_t> shown_stages(std::size_t stages, std::size_t must) {
  std::vector<std::size_t> shown;
  const std::size_t rows = std::min(stages, kMostRows);
  for (std::size_t row = 0; row < rows; ++row) shown.push_back(rows == 1 ? 0 : row * (stages - 1) / (rows - 1));
  const auto place = std::lower_bound(shown.begin(), shown.end(), must);
  if (place != shown.end() && *place != must) shown.insert(place, must);
  return shown;
}

double round_step(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least) return factor * power;
  }
  return 10 * power;
}

std::string tick_text(Seconds at) {
  const std::string text = duration_text(at);
  const std::size_t point = text.find('.'), blank = text.find(' ');
  if (point == std::string::npos) return text;
  const std::size_t last = text.find_last_not_of('0', blank - 1);
  return text.substr(0, last == point ? point : last + 1) + text.substr(blank);
}

std::size_t picture_pieces(std::size_t stages) {
  return std::min(kMostPieces, kPieces / std::clamp<std::size_t>(stages, 1, kMostRows));
}

std::string timeline_picture(const StepOutline& outline, Seconds step, std::int64_t microbatches) {
  const std::vector<std::size_t> shown = shown_stages(outline.stages.size());
  const Axis axis(outline);
  const auto rows = static_cast<double>(shown.size());
  const double pitch = std::clamp(420 / rows, 12.0, 44.0), height = pitch - (pitch > 16 ? 3 : 1.5);
  const double top = outline.cuts.empty() ? 8 : 28, bottom = top + rows * pitch;

  std::array<std::string, kCategoryCount> layers;
  std::string idle, seams, edges, numbers, labels;
  Marks marks;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const double y = top + static_cast<double>(i) * pitch;
    axis.each({}, outline.length, [&](double x, double width) { idle += rectangle(x, y, width, height); });
    const Row row = draw_row(outline.stages[shown[i]], axis, y, height, microbatches);
    for (std::size_t layer = 0; layer < layers.size(); ++layer) layers[layer] += row.layers[layer];
    seams += row.seams;
    edges += row.edges;
    numbers += row.numbers;
    for (const OutlinePiece& piece : outline.stages[shown[i]]) {
      const bool both = piece.time.of(Category::kForward) > Seconds() && piece.time.of(Category::kBackward) > Seconds();
      marks.mixed = marks.mixed || (both && piece.microbatch < 0);
    }
    labels += fmt::format("<text class=\"end\" x=\"{}\" y=\"{}\">stage {}</text>", Axis::kLeft - 7,
                          short_number(y + height / 2 + 4), shown[i]);
  }
  marks.numbers = !numbers.empty();
  marks.edges = !edges.empty();
  std::string picture =
      fmt::format("<div class=\"scroll\"><svg viewBox=\"0 0 1000 {}\" role=\"img\" aria-label=\"{}\">\n",
                  short_number(bottom + 22), "What each stage does during the step");
  picture += ticks(outline, axis, top, bottom) + path("idle", idle);
  for (std::size_t layer = 0; layer < layers.size(); ++layer) picture += path(kLayers[layer].id, layers[layer]);
  picture += path("seam", seams) + path("edge", edges) + numbers + "\n" + labels + "\n" +
             cut_marks(outline, axis, top, bottom - (pitch - height));
  picture += "</svg></div>\n";
  return legend(outline) + picture + caption(outline, step, shown.size(), microbatches, marks);
}

}  // namespace ns_dist::cli
