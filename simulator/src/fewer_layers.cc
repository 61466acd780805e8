#include "fewer_layers.h"

#include <cstdint>
#include <utility>

#include "scenario_fields.h"

namespace ns_dist {

std::optional<FewerLayers> recomputing_fewer_layers(const Scenario& scenario, const Scenario& before,
                                                    const Session& session) {
  const Bytes capacity = scenario.cluster.gpu.memory;
  const auto memory_of = [&](const ParallelPlan& plan) {
    return memory_budget(scenario.model, plan, scenario.training, session.plans());
  };
  const auto whole = memory_of(scenario.plan);
  if (!whole || !whole->fits(capacity)) return std::nullopt;
  const bool tight = whole->device() > capacity;
  std::optional<FewerLayers> found;
  std::int64_t least = 1, most = scenario.model.layers / (scenario.plan.pp * scenario.plan.vpp);
  while (least < most) {
    const std::int64_t layers = least + (most - least) / 2;
    Scenario changed = scenario;
    set_recomputation(changed.plan, {.recompute = Recompute::kFull, .layers = layers});
    auto memory = memory_of(changed.plan);
    const bool fits =
        memory && memory->fits(capacity) && (tight || memory->device() <= capacity) && framework_has(before, changed);
    if (fits) found = FewerLayers{std::move(changed), *std::move(memory)};
    (fits ? most : least) = fits ? layers : layers + 1;
  }
  return found;
}

}  // namespace ns_dist
