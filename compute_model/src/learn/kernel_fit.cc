#include "ns_dist/kernel_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <numeric>

#include "learn/kernel_samples.h"
#include "learn/predictor_fit.h"
#include "learn/weights_card.h"
#include "ns_dist/internal/threads.h"
#include "weights_file.h"

namespace ns_dist {
namespace {

Error too_few_rows(const KernelFitOptions& options, std::string_view predictor) {
  return {ErrorCode::kInvalidInput, fmt::format("too few rows to fit {}", predictor), places_of(options),
          fmt::format("at least {} measured kernels", 2 * kFewestSamples),
          "measure more, or correct the shipped weights with ns-dist calibrate"};
}

}  // namespace

std::span<const std::string_view> kernel_predictors() { return predictor_names(); }

bool is_held_out(const Operator& op) { return shape_number(op) < kHoldOut; }

Result<KernelFit> fit_kernels(const KernelFitOptions& options,
                              const std::function<Result<Gpu>(std::string_view)>& gpu_of,
                              const std::function<void(double, std::string_view)>& progress) {
  NS_TRY(KernelSamples data, read_samples(options, gpu_of, progress));
  KernelWeights weights;
  std::array<std::vector<KernelFitScore>, kPredictorCount> scores;

  // Largest first, so that threads end together; each predictor is fitted by one thread.
  std::vector<std::size_t> order;
  double total = 0;
  for (std::size_t p = 0; p < kPredictorCount; ++p) {
    if (std::ssize(data.samples[p]) < 2 * kFewestSamples) continue;
    order.push_back(p), total += static_cast<double>(data.samples[p].size());
  }
  // Weights of nothing, or without what was asked for by name, are no answer.
  std::vector<std::string> fitted;
  for (const std::size_t p : order) fitted.emplace_back(name_of(static_cast<Predictor>(p)));
  for (const std::string& name : options.predictors) {
    if (std::find(fitted.begin(), fitted.end(), name) == fitted.end()) return fail(too_few_rows(options, name));
  }
  if (fitted.empty()) return fail(too_few_rows(options, "any predictor"));
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return data.samples[a].size() > data.samples[b].size(); });
  std::mutex mutex;
  std::array<double, kPredictorCount> done{};
  std::atomic<std::size_t> next = 0;
  const auto work = [&](unsigned) {
    for (std::size_t i = next++; i < order.size(); i = next++) {
      const std::size_t p = order[i];
      const auto tell = [&, p](double share, std::string_view stage) {
        const std::scoped_lock lock(mutex);
        done[p] = share * static_cast<double>(data.samples[p].size());
        if (progress) {
          progress(std::accumulate(done.begin(), done.end(), 0.0) / total,
                   fmt::format("{}: {}", name_of(static_cast<Predictor>(p)), stage));
        }
      };
      weights.predictors[p] = fit_predictor(static_cast<Predictor>(p), data, options.effort, tell, scores[p]);
    }
  };
  on_threads(options.threads, work);

  KernelFit fit;
  for (const auto& part : scores) fit.scores.insert(fit.scores.end(), part.begin(), part.end());
  weights.metadata["training_set"] = fmt::format("{:016x}", data.hash);
  fit.weights = to_safetensors(weights);
  fit.card = card_of(options, data, weights, fit.scores);
  return fit;
}

}  // namespace ns_dist
