// GPUs for tests, from NVIDIA's data sheets.
#pragma once

#include <vector>

#include "ns_dist/gpu.h"

namespace ns_dist {

inline Gpu make_test_gpu(const char* id, const char* architecture, int nm, int sms, double tensor_tflops,
                         double fp8_tflops, double vector_tflops, const char* memory, double gbs, double l2_mib,
                         double watts) {
  using namespace units;
  Gpu gpu;
  gpu.id = gpu.name = id;
  gpu.vendor = "nvidia";
  gpu.architecture = architecture;
  gpu.process_nm = nm;
  gpu.sm_count = sms;
  gpu.boost_clock = 1500 * MHz;
  gpu.base_clock = 1200 * MHz;
  gpu.tensor[DType::kFp16] = gpu.tensor[DType::kBf16] = tensor_tflops * TFLOP / s;
  gpu.tensor[DType::kFp8] = fp8_tflops * TFLOP / s;
  gpu.vector[DType::kFp32] = vector_tflops * TFLOP / s;
  gpu.memory_type = memory;
  gpu.memory = 80 * GiB;
  gpu.memory_bandwidth = gbs * GB / s;
  gpu.l2_cache = l2_mib * MiB;
  gpu.shared_memory_per_sm = 164 * KiB;
  gpu.registers_per_sm = 256 * KiB;
  gpu.board_power = watts * W;
  return gpu;
}

inline Gpu a100() { return make_test_gpu("a100", "ampere", 7, 108, 312, 0, 19.5, "HBM2e", 2039, 40, 400); }
inline Gpu h100() { return make_test_gpu("h100", "hopper", 4, 132, 989.4, 1978.9, 66.9, "HBM3", 3350, 50, 700); }

inline std::vector<Gpu> test_gpus() {
  return {a100(),
          h100(),
          make_test_gpu("v100", "volta", 12, 80, 125, 0, 15.7, "HBM2", 900, 6, 300),
          make_test_gpu("l4", "ada", 4, 58, 121, 242, 30.3, "GDDR6", 300, 48, 72),
          make_test_gpu("b200", "blackwell", 4, 148, 2250, 4500, 75, "HBM3e", 7700, 126, 1000),
          make_test_gpu("new", "unheard-of", 2, 200, 5000, 10000, 150, "HBM4", 16000, 200, 1500)};
}

}  // namespace ns_dist
