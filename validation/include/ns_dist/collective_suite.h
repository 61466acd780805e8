// How far off are our forecasts of collectives that others measured?
//
// Reads a folder laid out as
//   collectives/nccl.csv[.gz]                  inside a node: gpu, collective, ranks, gpus_per_node, bytes, dtype,
//                                              latency_ms
//   collectives/dgx.csv[.gz]                   systems of two nodes: system and the same
//   collectives/astra_sim_analytical.csv[.gz]  runs of ASTRA-Sim's analytical backends, with their configuration
// If a file is missing, its sections are left out. The sections on held-out sizes and left-out GPUs fit the model again
// on the other rows of the folder.
#pragma once

#include <filesystem>
#include <functional>

#include "ns_dist/catalog.h"
#include "ns_dist/network_fit.h"
#include "ns_dist/result.h"
#include "ns_dist/suite_report.h"

namespace ns_dist {

// `progress` is told the share done. Errors: a folder without any of these files; a file whose columns are missing or
// that cannot be read; a GPU that is unknown.
Result<SuiteReport> check_collectives(const std::filesystem::path& data, const Catalog& catalog,
                                      const std::function<void(double)>& progress = {});

// The calibration that is fitted on such a folder, as it is compiled in: of GPU families inside a node
// (kFamiliesRecipe), or of single clusters (kClustersRecipe). Errors: as above; a file that is missing.
Result<NetworkCalibration> learn_collectives(const std::filesystem::path& data, const CalibrationRecipe& recipe,
                                             const Catalog& catalog);

}  // namespace ns_dist
