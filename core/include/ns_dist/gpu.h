// A GPU as its data sheet describes it. Fields come from configs/gpus/<id>.json, with their sources there, except
// flop_energy.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/dtype.h"
#include "ns_dist/units.h"

namespace ns_dist {

// Links between GPUs of one node, as the GPU's own data sheet gives them.
struct ScaleUpLink {
  std::string kind;          // "nvlink", "nvlink-bridge", "xgmi", "ualink"
  int generation = 0;        // 0 where the vendor does not count
  int links = 0;             // a GPU
  BytesPerSecond bandwidth;  // all links of a GPU together, one direction
  friend bool operator==(const ScaleUpLink&, const ScaleUpLink&) = default;
};

// The CPU of a superchip, where it is joined by more than PCIe.
struct HostSide {
  std::string link;                 // "nvlink-c2c"
  BytesPerSecond bandwidth;         // of the link, for a GPU, one direction
  BytesPerSecond memory_bandwidth;  // of the CPU's memory, a GPU's share
  friend bool operator==(const HostSide&, const HostSide&) = default;
};

// The generation of an architecture: "blackwell" of "blackwell-ultra".
constexpr std::string_view generation_of(std::string_view architecture) {
  return architecture.substr(0, architecture.find('-'));
}

// Architectures whose kernels and links some forecast tells from others.
inline constexpr std::array<std::string_view, 12> kArchitectures = {"pascal", "volta",  "turing",    "ampere",
                                                                    "ada",    "hopper", "blackwell", "blackwell-ultra",
                                                                    "cdna1",  "cdna2",  "cdna3",     "cdna4"};
constexpr bool is_known_architecture(std::string_view architecture) {
  return std::find(kArchitectures.begin(), kArchitectures.end(), architecture) != kArchitectures.end();
}

struct Gpu {
  std::string id, name;
  std::vector<std::string> aliases;
  std::string like;                // the id of the GPU whose file its own file changes; empty: its file is whole
  std::string vendor;              // "nvidia", "amd" or "other"
  std::string architecture;        // of kArchitectures, or another one, which has no laws of its own
  std::string compute_capability;  // "9.0", "gfx942"
  int process_nm = 0;              // name of the process node, nm
  int sm_count = 0;                // streaming multiprocessors, or compute units
  Hertz base_clock, boost_clock;
  // Dense peaks; zero where the format is missing. vector: at the boost clock; tensor: at the vendor's clock (Hopper:
  // 1830 MHz).
  RateTable tensor, vector;
  std::string memory_type;   // "HBM3e", "GDDR7", ...: the technology in capitals; empty: not told
  bool ecc_in_line = false;  // ECC lies among the data: a part of the capacity and of the bandwidth is its own
  Bytes memory;              // that a program can have: with ECC in line, 1/16 less than the data sheet's
  BytesPerSecond memory_bandwidth;
  Bytes l2_cache, shared_memory_per_sm, registers_per_sm;
  Watts board_power;
  // Energy of a FLOP over that of other GPUs of its process node. No data sheet has it: `what_if` lowers it for a GPU
  // that is faster at the same power.
  double flop_energy = 1;
  std::optional<ScaleUpLink> scale_up;
  BytesPerSecond pcie_bandwidth;  // one direction
  std::optional<HostSide> host;
  std::string usual_cluster;  // id of the cluster this GPU is usually found in

  // Fastest dense matrix rate for `dtype`: tensor unit, or vector unit where there is none; zero where neither has it.
  FlopsPerSecond matrix_peak(DType dtype) const {
    if (tensor[dtype] > FlopsPerSecond()) return tensor[dtype];
    // Halves may be multiplied in fp32 instead (P4).
    const bool half = dtype == DType::kFp16 || dtype == DType::kBf16;
    return half && vector[dtype] > FlopsPerSecond() ? std::max(vector[dtype], vector[DType::kFp32]) : vector[dtype];
  }

  bool has_gddr() const { return memory_type.starts_with("GDDR") || memory_type.starts_with("gddr"); }
  // By its id or another name.
  bool is_called(std::string_view other) const {
    return other == id || std::find(aliases.begin(), aliases.end(), other) != aliases.end();
  }
  friend bool operator==(const Gpu&, const Gpu&) = default;
};

}  // namespace ns_dist
