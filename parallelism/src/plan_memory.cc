#include "plan_memory.h"

namespace ns_dist {

PlanMemory::PlanMemory() : contents_(std::make_unique<Contents>()) {}
PlanMemory::~PlanMemory() = default;
PlanMemory::PlanMemory(PlanMemory&&) noexcept = default;
PlanMemory& PlanMemory::operator=(PlanMemory&&) noexcept = default;

}  // namespace ns_dist
