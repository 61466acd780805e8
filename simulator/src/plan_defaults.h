// What follows for a plan from the fields that are set.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ns_dist/scenario.h"

namespace ns_dist {

// Sets what follows for `plan` from other fields of it. `named`: those that the user set; `given`: these and what the
// framework set; `before`: the plan that is changed, if any.
void follow_fields(ParallelPlan& plan, const FieldNames& named, const FieldNames& given, const ParallelPlan* before);
// Sets what follows for the plan from the model and the machine, except what is in `given` or what `base`, if any, has
// from its user.
void follow_machine(Scenario& scenario, const FieldNames& given, const Scenario* base);

// `before` with these fields set, and what follows from them: as resolve() makes it from a scenario with this plan.
ParallelPlan with_fields(const ParallelPlan& before, std::span<const Assignment> assignments);

// cp_comm and cp_inner where nobody has set them. TransformerEngine has no ring of sliding windows
// (context_parallel.py).
ContextExchange usual_cp_comm(const Model& model);
std::int64_t usual_cp_inner(const Scenario& scenario);
// Sets cp_inner of `after` where that of `before` was the usual one, or was for another exchange of contexts.
void follow_context(const Scenario& before, Scenario& after);
// Whether the GPU's 8-bit products read operands of either layout: those of Ada and Hopper need the reduced dimension
// innermost, those of Blackwell of data centers do not (TransformerEngine, nvte_is_non_tn_fp8_gemm_supported:
// capability 10 and 11, not 12).
bool usual_fp8_any_layout(const Scenario& scenario);

}  // namespace ns_dist
