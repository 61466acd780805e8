#include "learn/weights_card.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace ns_dist {
namespace {

std::vector<std::string> ids_of(const std::vector<Gpu>& gpus) {
  std::vector<std::string> ids;
  for (const Gpu& gpu : gpus) ids.push_back(gpu.id);
  return ids;
}

// What the errors of a card are honest about.
std::string what_was_left_out(const KernelWeights& weights) {
  std::vector<std::string_view> sums, others;
  for (std::size_t p = 0; p < kPredictorCount; ++p) {
    if (!weights.predictors[p]) continue;
    const auto predictor = static_cast<Predictor>(p);
    (kind_of(predictor).sum != nullptr ? sums : others).push_back(name_of(predictor));
  }
  const auto of = [&](const std::vector<std::string_view>& names) {
    return sums.empty() || others.empty() ? std::string() : fmt::format("{}: ", fmt::join(names, ", "));
  };
  std::string text;
  if (!sums.empty()) {
    text += of(sums) +
            "The coefficients of the bases and the trees were fitted without what was left out; the terms, their "
            "coefficients before any row and what it costs to leave those were chosen with all rows in view.";
  }
  if (!others.empty()) {
    text += (text.empty() ? "" : " ") + of(others) +
            "The trees were fitted without what was left out; the constants of the bases were not.";
  }
  return text;
}

}  // namespace

std::string card_of(const KernelFitOptions& options, const KernelSamples& data, const KernelWeights& weights,
                    const std::vector<KernelFitScore>& scores) {
  std::string card = "# Kernel weights";
  if (!options.predictors.empty()) card += fmt::format(": {}", fmt::join(options.predictors, ", "));
  card += "\n\n";
  card += "Written by `ns-dist fit --data DIR";
  for (std::size_t i = 1; i < options.data.size(); ++i) card += " --data " + options.data[i].string();
  for (const std::string& predictor : options.predictors) card += " --predictor " + predictor;
  for (const std::string& gpu : options.exclude_gpus) card += " --exclude-gpu " + gpu;
  for (const std::string& generation : options.exclude_generations) card += " --exclude-generation " + generation;
  for (const std::string& table : options.tables) card += " --table " + table;
  for (const std::string& table : options.exclude_tables) card += " --exclude-table " + table;
  for (const std::string& framework : options.prefer_frameworks) card += " --prefer-framework " + framework;
  card += "`.\n\n";
  card += fmt::format(
      "Tables: {}. FNV-1a of their rows: {:016x}. Flagged rows left out: {}; rows of other frameworks: {}.\n\n",
      fmt::join(data.tables, ", "), data.hash, data.flagged, data.of_other_frameworks);
  card += "| predictor | GPUs fitted on | rows |\n| --- | --- | ---: |\n";
  for (std::size_t p = 0; p < kPredictorCount; ++p) {
    if (!weights.predictors[p]) continue;
    card += fmt::format("| {} | {} | {} |\n", name_of(static_cast<Predictor>(p)),
                        fmt::join(ids_of(weights.predictors[p]->gpus), ", "), data.samples[p].size());
  }
  for (std::size_t p = 0; p < kPredictorCount; ++p) {
    if (!weights.predictors[p]) continue;
    const PredictorWeights& part = *weights.predictors[p];
    if (std::all_of(part.kernel_classes.begin(), part.kernel_classes.end(),
                    [](std::uint32_t bits) { return bits == 1; }))
      continue;
    card += "\nClasses of kernels that were measured; others are forecast by physics or from another mode:\n\n";
    for (std::size_t g = 0; g < part.gpus.size(); ++g) {
      std::vector<std::string> names;
      for (std::size_t c = 0; c < kKernelClasses; ++c) {
        if ((part.kernel_classes[g] >> c & 1U) != 0) names.push_back(kernel_class_name(static_cast<Predictor>(p), c));
      }
      card += fmt::format("- {}: {}\n", part.gpus[g].id, fmt::join(names, "; "));
    }
  }
  card +=
      "\nErrors of forecasts (%). " + what_was_left_out(weights) +
      " Left out: a tenth of the shapes (with few rows each fifth in turn, with few shapes each shape), a GPU, a "
      "generation of several GPUs (where a GPU is the only one of its generation, it stands for it). `constant`: the "
      "best constant share of the roofline for that GPU. `inside`: share of the rows in the 90 % interval, which other "
      "rows or GPUs have set.\n\n";
  card += "| predictor | GPU | left out | rows | mean | median | p90 | max | bias | inside | constant |\n";
  card += "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
  for (const KernelFitScore& s : scores) {
    card += fmt::format("| {} | {} | {} | {} | {:.1f} | {:.1f} | {:.1f} | {:.0f} | {:+.1f} |",
                        s.predictor + (s.part.empty() ? "" : ": " + s.part), s.gpu,
                        s.left_out == KernelFitScore::LeftOut::kShape ? "shapes"
                        : s.left_out == KernelFitScore::LeftOut::kGpu ? "GPU"
                                                                      : "generation",
                        s.errors.rows, 100 * s.errors.mean, 100 * s.errors.median, 100 * s.errors.p90,
                        100 * s.errors.largest, 100 * s.errors.bias);
    card += s.covered > 0 ? fmt::format(" {:.0f} |", 100 * s.covered) : " |";
    card += s.roofline > 0 ? fmt::format(" {:.0f} |\n", 100 * s.roofline) : " |\n";
  }
  return card;
}

}  // namespace ns_dist
