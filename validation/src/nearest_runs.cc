#include "ns_dist/nearest_runs.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "ns_dist/fields.h"
#include "ns_dist/parameters.h"

namespace ns_dist {
namespace {

// What makes two steps alike.
struct Traits {
  std::string model, gpu, architecture, vendor, framework, schedule;
  bool experts = false;
  Precision precision = Precision::kBf16;
  Recompute recompute = Recompute::kNone;
  bool shards_weights = false, adapters = false;
  double parameters = 0, layers = 1, gpus = 1, batch = 1, sequence = 0, tp = 1, pp = 1, cp = 1, ep = 1;
};

// How unlike: 4 is another generation of GPUs, or adapters alone that are trained (LoRA), 1 another framework, or 8
// bits for 16. Chosen, not fitted: it decides which runs are shown, not what any forecast says.
constexpr double kMostUnlike = 4;  // of the nearest run, but for its GPU, of which the answer says that it is another

double distance_of_gpus(const Traits& a, const Traits& b) {
  if (a.gpu == b.gpu) return 0;
  return a.architecture == b.architecture ? 0.5 : 4;
}

double distance_of_steps(const Traits& a, const Traits& b) {
  const auto octaves = [](double x, double y) { return std::abs(std::log2(x / y)); };
  double sum = 0;
  if (a.precision != b.precision) {
    sum += size_of(product_type(a.precision)) == size_of(product_type(b.precision)) ? 0.25 : 1;
  }
  if (a.framework != b.framework) sum += 1;
  if (a.adapters != b.adapters) sum += 4;
  if (a.shards_weights != b.shards_weights) sum += 1;
  if (a.recompute != b.recompute) sum += 0.25;
  if (a.pp > 1 && b.pp > 1 && a.schedule != b.schedule) sum += 0.25;
  sum += 0.25 * (octaves(a.parameters, b.parameters) + octaves(a.sequence, b.sequence));
  sum += 0.25 * (octaves(a.tp, b.tp) + octaves(a.cp, b.cp) + octaves(a.ep, b.ep));
  sum += 0.15 * (octaves(a.pp, b.pp) + octaves(a.gpus, b.gpus));
  sum += 0.05 * octaves(a.batch, b.batch);
  return sum;
}

void describe(Traits& traits, const Model& model) {
  traits.model = model.id;
  traits.experts = model.moe.has_value();
  traits.parameters = model_parameters(model).total();
  traits.layers = static_cast<double>(model.layers);
  traits.sequence = static_cast<double>(model.sequence);
}

void describe(Traits& traits, const Gpu& gpu) {
  traits.gpu = gpu.id;
  traits.architecture = gpu.architecture;
  traits.vendor = gpu.vendor;
}

Traits traits_of(const Scenario& scenario) {
  Traits traits;
  describe(traits, scenario.model);
  describe(traits, scenario.cluster.gpu);
  const auto sold = Catalog::standard().gpu(scenario.cluster.gpu.id);
  if (!sold || !(*sold == scenario.cluster.gpu)) traits.gpu.clear();  // a changed GPU is another one
  const ParallelPlan& plan = scenario.plan;
  traits.framework = scenario.framework;
  traits.precision = scenario.training.precision;
  traits.recompute = plan.recompute;
  traits.schedule = plan.schedule;
  traits.shards_weights = plan.zero == ZeroStage::kParameters;
  traits.adapters = plan.lora_rank > 0;
  traits.gpus = static_cast<double>(rank_count(plan).value_or(1));
  traits.batch = static_cast<double>(scenario.training.global_batch);
  traits.sequence = static_cast<double>(scenario.training.sequence);
  traits.tp = static_cast<double>(plan.tp);
  traits.pp = static_cast<double>(plan.pp);
  traits.cp = static_cast<double>(plan.cp);
  traits.ep = static_cast<double>(plan.ep);
  return traits;
}

// Reads runs without resolving them: several hundred are looked at for each answer.
class Reader {
 public:
  explicit Reader(const Catalog& catalog) : catalog_(catalog) {}

  // Nothing where the run names a model or a GPU that the catalog does not have.
  std::optional<Traits> traits_of(const PublishedRun& run) {
    const Traits* model = known(models_, run.model, [&](Traits& traits) {
      const auto found = catalog_.model(run.model);
      if (found) describe(traits, *found);
      return found.has_value();
    });
    const bool of_gpu = !run.gpu.empty();
    const Traits* gpu = known(gpus_, of_gpu ? run.gpu : run.cluster, [&](Traits& traits) {
      if (of_gpu) {
        const auto found = catalog_.gpu(run.gpu);
        if (found) describe(traits, *found);
        return found.has_value();
      }
      const auto found = catalog_.cluster(run.cluster);
      if (found) describe(traits, found->gpu);
      return found.has_value();
    });
    if (model == nullptr || gpu == nullptr) return std::nullopt;
    Traits traits = *model;
    traits.gpu = gpu->gpu;
    traits.architecture = gpu->architecture;
    traits.vendor = gpu->vendor;
    traits.framework = run.framework;
    traits.schedule = ParallelPlan().schedule;
    double dp = 1;
    for (const Assignment& each : run.set) {
      const std::string_view field = each.field;
      const auto number = [&](double& value) {
        if (const auto read = read_whole_number(each.text, 1, kMostOfAField)) value = static_cast<double>(*read);
      };
      if (field == "plan/tp") number(traits.tp);
      if (field == "plan/pp") number(traits.pp);
      if (field == "plan/cp") number(traits.cp);
      if (field == "plan/ep") number(traits.ep);
      if (field == "plan/dp") number(dp);
      if (field == "training/sequence") number(traits.sequence);
      if (field == "training/global_batch") number(traits.batch);
      if (field == "plan/schedule") traits.schedule = each.text;
      if (field == "training/layers") {
        const double all = traits.layers;
        number(traits.layers);
        traits.parameters *= traits.layers / all;
      }
      if (field == "plan/zero") traits.shards_weights = each.text == field_text(ZeroStage::kParameters);
      if (field == "plan/lora_rank") traits.adapters = each.text != "0";
      if (field == "plan/recompute") {
        traits.recompute =
            enumerator_from_name<Recompute>(each.text.substr(0, each.text.find(':'))).value_or(traits.recompute);
      }
      if (field == "training/dtype") {
        traits.precision = enumerator_from_name<Precision>(each.text).value_or(traits.precision);
      }
    }
    traits.gpus = traits.tp * traits.pp * traits.cp * dp;
    return traits;
  }

 private:
  template <class Find>
  const Traits* known(std::map<std::string, std::optional<Traits>>& all, const std::string& name, Find find) {
    const auto [at, is_new] = all.try_emplace(name);
    if (is_new) {
      Traits traits;
      if (find(traits)) at->second = std::move(traits);
    }
    return at->second ? &*at->second : nullptr;
  }

  const Catalog& catalog_;
  std::map<std::string, std::optional<Traits>> models_, gpus_;
};

}  // namespace

Result<std::vector<RunCheck>> nearest_runs(const Scenario& scenario, const Catalog& catalog, std::size_t most) {
  struct Candidate {
    double distance, of_steps;
    std::string publication;
    PublishedRun run;
    Traits traits;
  };
  const Traits own = traits_of(scenario);
  std::vector<Candidate> candidates;
  Reader reader(catalog);
  for (const CatalogEntry& entry : catalog.list(CatalogKind::kRuns)) {
    NS_TRY(PublishedRuns runs, catalog.runs(entry.id));
    for (PublishedRun& run : runs.runs) {
      std::optional<Traits> traits = reader.traits_of(run);
      if (!traits || traits->experts != own.experts || traits->vendor != own.vendor) continue;
      const double of_steps = distance_of_steps(own, *traits);
      candidates.push_back(
          {distance_of_gpus(own, *traits) + of_steps, of_steps, runs.id, std::move(run), *std::move(traits)});
    }
  }
  std::ranges::stable_sort(candidates, {}, &Candidate::distance);
  if (candidates.empty() || candidates.front().of_steps > kMostUnlike) return std::vector<RunCheck>();
  std::vector<PublishedRuns> chosen;
  std::set<std::tuple<std::string, std::string, Precision, std::string>> seen;
  for (Candidate& each : candidates) {
    if (chosen.size() == most) break;
    if (!seen.emplace(each.traits.model, each.traits.gpu, each.traits.precision, each.traits.framework).second)
      continue;
    chosen.push_back({each.publication, "", "", {std::move(each.run)}});
  }
  return check_runs(chosen, catalog);
}

}  // namespace ns_dist
