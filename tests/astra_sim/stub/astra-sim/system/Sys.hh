// The names of ASTRA-Sim's classes that apps/astra_sim/ns_dist_compute.cc uses, with just enough behind them to run
// kernels one after the other. Namespaces, names and types are ASTRA-Sim's interface; the rest is ours.
#pragma once

#include <cstdint>

namespace AstraSim {

using Tick = unsigned long long;
enum class EventType { CallEvents, General, PacketSent };

class CallData {};

class Callable {
 public:
  virtual ~Callable() = default;
  virtual void call(EventType type, CallData* data) = 0;
};

class Sys {
 public:
  explicit Sys(int ranks);
  void register_event(Callable* callable, EventType event, CallData* callData, Tick delta_cycles);
  Tick now = 0;
  int id = 0, total_nodes;
};

}  // namespace AstraSim
