// A library of another age.
#include <cstdint>

extern "C" {
std::uint32_t ns_dist_abi();
std::uint32_t ns_dist_abi() { return 2; }
}
