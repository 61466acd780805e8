// What the works of a program take. Actors whose ranks lie alike in the cluster share one row.
#pragma once

#include <cstdint>
#include <vector>

#include "ns_dist/forecast.h"
#include "ns_dist/simulator.h"
#include "ns_dist/step_program.h"

namespace ns_dist {

struct ProgramCosts {
  struct Row {                        // by WorkId
    std::vector<Forecast> forecasts;  // latency: what the work takes alone
    std::vector<Demand> demands;      // empty: nothing shares anything
  };
  std::vector<Row> rows;
  std::vector<std::uint32_t> row_of_actor;
  const Row& row(std::size_t actor) const { return rows[row_of_actor[actor]]; }
};

}  // namespace ns_dist
