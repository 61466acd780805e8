#include "other_sizes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "ns_dist/internal/divisors.h"
#include "ns_dist/internal/offload_parts.h"
#include "report_text.h"
#include "sizes.h"

namespace ns_dist::cli {
namespace {

// Searches beside the one that was asked for.
class OtherSearches {
 public:
  // Beside one of so many plans.
  OtherSearches(const SearchOptions& options, const Catalog& catalog, std::uint64_t plans)
      : options_(options),
        catalog_(catalog),
        most_(std::max(kMostPlans, 4 * plans)),
        left_(std::max(kMostPlans, plans)) {
    options_.within = 0;
    options_.team = nullptr;
  }
  // The step of some plan that is below `step`, or of the fastest without one; nothing of a space that takes too long.
  std::optional<Seconds> step(const SearchRequest& request, std::optional<Seconds> below = {}) {
    const auto space = SearchSpace::make(request, catalog_, options_.watch);
    const bool any = below == kAny;  // the first plan that fits ends it
    if (!space || space->size() == 0 || space->size() > (any ? most_ : below ? left_ : kMostPlans)) return std::nullopt;
    if (below && !any) left_ -= space->size();
    const auto session = Session::make(space->base());
    if (!session) return std::nullopt;
    options_.below = below;
    const auto result = search(*space, *session, options_);
    if (!result || result->answers.empty() || result->interrupted) return std::nullopt;
    return result->answers.front().report.step;
  }
  bool fits(const SearchRequest& request) { return step(request, kAny).has_value(); }

 private:
  static constexpr Seconds kAny = std::numeric_limits<double>::infinity() * units::s;
  static constexpr std::uint64_t kMostPlans = 4'000'000;  // about two seconds of one processor
  SearchOptions options_;
  const Catalog& catalog_;
  std::uint64_t most_;
  std::uint64_t left_;  // plans of all searches below a step together: they take no longer than the one beside
};

// The plans of a request that need the least memory.
SearchRequest small_plans(SearchRequest request) {
  if (!request.gives(kMicroBatch)) request.fixed.set(kMicroBatch, 1);
  if (!request.gives("plan/recompute")) request.fixed.set("plan/recompute", std::string_view("full"));
  return request;
}

std::string what_fits(const SearchRequest& request, const SearchCase& found, OtherSearches& others) {
  constexpr std::int64_t kMostTimes = 64;  // as many GPUs
  const double times_memory = *found.result.least_memory / found.base.cluster.gpu.memory;
  std::vector<std::string> fits;
  // Whole nodes: one more, two, four, and so on; from half as many more on, halves of the way from one power of two to
  // the next.
  const std::int64_t node = std::min(found.gpus, found.base.cluster.gpus_per_node());
  std::vector<std::int64_t> sizes;
  for (std::int64_t more = node; 2 * more < found.gpus; more *= 2) sizes.push_back(found.gpus + more);
  for (std::int64_t halves = 3; halves <= 2 * kMostTimes; halves += halves % 3 == 0 ? halves / 3 : halves / 2) {
    sizes.push_back(halves * found.gpus / 2);
  }
  for (const std::int64_t gpus : sizes) {
    const bool may_fit =
        static_cast<double>(gpus) >= times_memory * static_cast<double>(found.gpus) && gpus % node == 0;
    if (!may_fit || !others.fits(small_plans(with_gpus(request, gpus)))) continue;
    fits.push_back(fmt::format("more GPUs, as --gpus {}", gpus));
    break;
  }
  Scenario with = found.base;
  std::vector<std::string> parts;  // the least one that fits, and those above
  const bool known = found.base.plan.offload_optimizer.value > 0 || found.base.plan.passes != Passes::kTraining;
  for (auto part = std::rbegin(kOffloadParts); part != std::rend(kOffloadParts); ++part) {
    SearchRequest offloads = small_plans(request);
    offloads.fixed.set("plan/offload_optimizer", *part);
    with.plan.offload_optimizer = {*part};
    if (known || !framework_has(found.base, with) || !others.fits(offloads)) break;
    parts.insert(parts.begin(), field_text(with.plan.offload_optimizer));
  }
  if (!parts.empty()) {
    fits.push_back(fmt::format("{} in the hosts' memory, --offload-optimizer {}",
                               parts.size() == 1 ? "the optimizer" : "a part of the optimizer", fmt::join(parts, ",")));
  }
  if (parts.empty() && !known && found.base.plan.zero == ZeroStage::kParameters) {
    SearchRequest offloads = small_plans(request);
    offloads.fixed.set("plan/offload_optimizer", "1").set("plan/offload_weights", "on");
    with.plan.offload_optimizer = {1};
    with.plan.offload_weights = true;
    if (framework_has(found.base, with) && others.fits(offloads)) {
      fits.push_back("weights and optimizer in the hosts' memory, --offload-optimizer 1 --offload-weights on");
    }
  }
  if (fits.empty()) {
    SearchRequest shares = small_plans(request), freezes = small_plans(request);
    shares.fixed.set("framework", "transformers-fsdp");
    with = found.base;
    with.plan.zero = ZeroStage::kParameters;
    if (!framework_has(found.base, with) && others.fits(shares)) {
      fits.push_back("weights shared among GPUs, as by --framework transformers-fsdp");
    }
    freezes.fixed.set("plan/lora_rank", 16);
    const bool may_freeze = found.base.plan.lora_rank == 0 && found.base.plan.passes == Passes::kTraining;
    if (may_freeze && others.fits(freezes)) fits.push_back("small adapters trained instead, --lora-rank 16");
  }
  return fits.empty() ? "" : fmt::format("what fits: {}", fmt::join(fits, "; "));
}

// Numbers of GPUs below the given one of which there are more plans, the largest first.
std::vector<std::int64_t> rounder_sizes(const Sizes& sizes, std::int64_t gpus, std::int64_t node) {
  const std::int64_t even = power_of_two_up_to(node);
  std::vector<std::int64_t> fewer;
  if (const auto best = sizes.best(gpus / 2 + 1, gpus, gpus); best && *best) fewer.push_back(**best);
  // Those that can be halved more often, and the next power of two.
  for (std::int64_t rounder = 4 * (gpus & -gpus); rounder < gpus; rounder *= 4) {
    fewer.push_back(gpus / rounder * rounder);
  }
  if (gpus % node == 0 && node != even) fewer.push_back(gpus / node * even);  // 64 of each 72
  if (gpus > 1) fewer.push_back(power_of_two_up_to(gpus - 1));
  std::sort(fewer.rbegin(), fewer.rend());
  fewer.erase(std::unique(fewer.begin(), fewer.end()), fewer.end());
  return fewer;
}

// Fewer GPUs that are faster.
std::string fewer_gpus(const SearchRequest& request, const SearchCase& found, const Sizes& sizes,
                       OtherSearches& others) {
  const std::int64_t gpus = found.gpus, node = found.base.cluster.gpus_per_node();
  const bool even = power_of_two_up_to(node) == node;
  if (gpus < sizes.unit() || (even && sizes.unit() % sizes.replica(gpus) == 0)) return "";
  Seconds least = found.result.answers.front().report.step;
  std::string text;
  for (const std::int64_t size : rounder_sizes(sizes, gpus, node)) {
    const auto step = others.step(with_gpus(request, size), least);
    if (!step) continue;
    least = *step;
    text = fmt::format("fewer GPUs are faster: --gpus {}, {} or less", size, duration_text(least));
  }
  return text;
}

// The global batch nearest to that of the request, the micro-batches, and the number of GPUs below, of which plans are
// possible.
std::string what_is_possible(const SearchRequest& request, const SearchCase& found, const Sizes& sizes,
                             OtherSearches& others) {
  std::vector<std::string> possible;
  const std::int64_t batch = found.base.training.global_batch;
  std::vector<std::int64_t> batches;
  const bool is_free = !request.gives("plan/dp") && !request.lists(kGlobalBatch);
  std::vector<std::int64_t> micro_batches = numbers_of(request, kMicroBatch);
  const bool divides_none =
      !micro_batches.empty() &&
      std::none_of(micro_batches.begin(), micro_batches.end(), [&](std::int64_t size) { return batch % size == 0; });
  if (micro_batches.empty()) micro_batches = {1};
  for (const std::int64_t size : micro_batches) {
    for (std::int64_t replicas = found.gpus; is_free; replicas /= 2) {
      const std::int64_t unit = replicas * size, nearest = std::max<std::int64_t>(1, (batch + unit / 2) / unit) * unit;
      if (nearest != batch) batches.push_back(nearest);
      if (replicas % 2 != 0) break;
    }
  }
  std::stable_sort(batches.begin(), batches.end(),
                   [&](std::int64_t a, std::int64_t b) { return std::abs(a - batch) < std::abs(b - batch); });
  batches.erase(std::unique(batches.begin(), batches.end()), batches.end());
  constexpr std::size_t kMostTried = 4;
  batches.resize(std::min(kMostTried, batches.size()));
  std::optional<std::pair<Seconds, std::int64_t>> best;  // of which a sequence takes least
  for (const std::int64_t other : batches) {
    SearchRequest changed = without(request, kGlobalBatch);
    changed.fixed.set(kGlobalBatch, other);
    auto step = others.step(changed);
    if (!step) step = others.step(small_plans(changed));
    const auto each = [](Seconds of, std::int64_t sequences) { return of / static_cast<double>(sequences); };
    if (step && (!best || each(*step, other) < each(best->first, best->second))) best = {*step, other};
  }
  if (best) {
    possible.push_back(
        fmt::format("another batch, as --global-batch {}: {} or less", best->second, duration_text(best->first)));
  }
  if (divides_none && !request.lists(kMicroBatch)) {
    if (const auto step = others.step(without(request, kMicroBatch))) {
      possible.push_back(fmt::format("without --micro-batch: {} or less", duration_text(*step)));
    }
  }
  std::optional<std::pair<Seconds, std::int64_t>> fastest;
  for (const std::int64_t size : rounder_sizes(sizes, found.gpus, found.base.cluster.gpus_per_node())) {
    const auto step = others.step(with_gpus(request, size));
    if (step && (!fastest || *step < fastest->first)) fastest = {*step, size};
  }
  if (fastest)
    possible.push_back(
        fmt::format("fewer GPUs, as --gpus {}: {} or less", fastest->second, duration_text(fastest->first)));
  return possible.empty() ? "" : fmt::format("what is possible: {}", fmt::join(possible, "; "));
}

}  // namespace

std::string better_size(const SearchRequest& request, const SearchCase& found, const SearchOptions& options,
                        const Catalog& catalog) {
  if (found.result.interrupted) return "";
  OtherSearches others(options, catalog, found.result.plans);
  const bool none = found.result.answers.empty();
  if (none && lacks_memory(found.result)) return what_fits(request, found, others);
  const bool several = request.lists(kGlobalBatch);
  const auto sizes = Sizes::make(request, catalog, options.watch);
  if (!sizes || (several && !none)) return "";
  return none ? what_is_possible(request, found, *sizes, others) : fewer_gpus(request, found, *sizes, others);
}

}  // namespace ns_dist::cli
