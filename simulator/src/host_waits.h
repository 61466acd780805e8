// Where the GPU waits for the host.
#pragma once

#include "ns_dist/host_launches.h"
#include "ns_dist/simulator.h"

namespace ns_dist {

// A host launches one kernel or collective of a fragment after the other. Where that takes longer than the fragment,
// the GPU waits: a work kHostLaunches with what is missing ends the fragment. Kernels beside the fragment's own
// collectives take longer where costs have demands, and hide more. Launches that block add their time to
// every fragment. Behind a result that the host reads (WorkItem::after_read) nothing is launched ahead, and the GPU
// waits for the first launch at least. Ranks that meet wait for the slowest host; `deviation` is
// TrainingConstants::hosts. `every`: fragments whose kernels hide all launches get such a work, too, of no time.
// Returns whether the GPU waits anywhere.
bool add_host_waits(const Host& host, double deviation, StepProgram& program, ProgramCosts& costs, bool every = false);

// The host maps `memory`'s activations in each step: a work "host.memory" of each stage.
void add_memory_mapping(const Scenario& scenario, const MemoryBudget& memory, StepProgram& program,
                        ProgramCosts& costs);

}  // namespace ns_dist
