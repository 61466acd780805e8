// What the works of a program take on a machine.
#pragma once

#include "ns_dist/scenario.h"
#include "ns_dist/session.h"
#include "ns_dist/simulator.h"
#include "ns_dist/step_program.h"

namespace ns_dist {

// Forecasts of every work, and, where the scenario says that works share ports, SMs or memory bandwidth, what they take
// of these. Stages whose ranks lie alike in the cluster share a row. Errors: those of the session's models, with the
// work's name.
Result<ProgramCosts> costs_of(const StepProgram& program, const Scenario& scenario, const Session& session);

// A message as its network model sees it: a send and receive between the representatives of its stages.
Collective as_collective(const Message& message, const Mesh& mesh);

}  // namespace ns_dist
