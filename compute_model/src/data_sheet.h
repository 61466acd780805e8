// What the kernel model reads of a GPU's description, and nothing else: weights carry it of the GPUs that they were
// fitted on, so that a forecast depends on its inputs alone.
#pragma once

#include <string>
#include <string_view>

#include "ns_dist/gpu.h"
#include "ns_dist/result.h"

namespace ns_dist {

// A GPU with these fields alone; the others are left at their defaults. Two GPUs of equal sheets have equal forecasts.
Gpu data_sheet_of(const Gpu& gpu);

// Whether two GPUs run kernels alike: equal sheets but for ids and fp64, which no measured kernel uses. They differ in
// links or in the size of their memory (H800 and H100, A800 and A100, V100 with 16 and 32 GB).
bool run_kernels_alike(const Gpu& a, const Gpu& b);

// A JSON object in base units (Hz, FLOP/s, B, B/s, W), without the id.
std::string to_json(const Gpu& sheet);
// Errors: not such an object; a number that is negative or too large.
Result<Gpu> read_data_sheet(std::string_view json, std::string id, const std::string& where);

}  // namespace ns_dist
