// Defined away from its callers, as in ASTRA-Sim: this is what lets the linker put a wrapper between.
#include "astra-sim/system/Sys.hh"

namespace AstraSim {

Sys::Sys(int ranks) : total_nodes(ranks) {}

// Everything takes place one after the other.
void Sys::register_event(Callable* callable, EventType event, CallData* callData, Tick delta_cycles) {
  now += delta_cycles;
  callable->call(event, callData);
}

}  // namespace AstraSim
