#include "plan_cache.h"

namespace ns_dist {

PlanCache::PlanCache() : contents_(std::make_unique<Contents>()) {}
PlanCache::~PlanCache() = default;
PlanCache::PlanCache(PlanCache&&) noexcept = default;
PlanCache& PlanCache::operator=(PlanCache&&) noexcept = default;

}  // namespace ns_dist
