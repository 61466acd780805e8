#include "fewer_layers.h"

#include <utility>

#include "scenario_fields.h"

namespace ns_dist {

std::optional<FewerLayers> fewest_layers(const Scenario& scenario, const Session& session, std::int64_t least,
                                         std::int64_t end, const std::function<bool(const MemoryBudget&)>& suits) {
  ParallelPlan plan = scenario.plan;
  std::optional<FewerLayers> found;
  for (std::int64_t layers = end - 1; least < end; layers = least + (end - least) / 2) {
    set_recomputation(plan, {.recompute = Recompute::kFull, .layers = layers});
    auto memory = memory_budget(scenario.model, plan, scenario.training, session.plans());
    if (memory && suits(*memory)) {
      found = FewerLayers{plan, *std::move(memory)};
      end = layers;
    } else if (!found) {
      return std::nullopt;
    } else {
      least = layers + 1;
    }
  }
  return found;
}

std::optional<FewerLayers> recomputing_fewer_layers(const Scenario& scenario, const Scenario& before,
                                                    const Session& session) {
  const Bytes capacity = scenario.cluster.gpu.memory;
  const auto whole = memory_budget(scenario.model, scenario.plan, scenario.training, session.plans());
  if (!whole || !whole->fits(capacity)) return std::nullopt;
  const bool tight = whole->device() > capacity;
  auto found = fewest_layers(scenario, session, 1, layers_of_chunk(scenario), [&](const MemoryBudget& memory) {
    return memory.fits(capacity) && (tight || memory.device() <= capacity);
  });
  if (!found) return std::nullopt;
  Scenario changed = scenario;
  changed.plan = found->plan;
  return framework_has(before, changed) ? std::move(found) : std::nullopt;
}

}  // namespace ns_dist
