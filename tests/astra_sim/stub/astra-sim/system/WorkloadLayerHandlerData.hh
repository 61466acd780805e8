#pragma once

#include <cstdint>

#include "astra-sim/system/Sys.hh"

namespace AstraSim {

class WorkloadLayerHandlerData : public CallData {
 public:
  std::uint64_t node_id = 0;
};

}  // namespace AstraSim
