// What `ns-dist validate --suite` can recompute, one source file each.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "ns_dist/result.h"

namespace ns_dist::cli {

struct SuiteRequest {
  std::filesystem::path data;       // measured data, as --data names it: a folder, of runs a file; empty: none given
  std::vector<std::string> runs;    // ids or files of published runs
  std::vector<std::string> titles;  // of publications of runs and plans
  std::string rows;                 // which runs of a file, as RunRows names them; empty: those that it recommends
  std::string calibration, kernel_calibration;  // files, of the machine of the runs; empty: none
  unsigned threads = 1;
  bool refit = false;  // leave each GPU out in turn
};

struct SuiteAnswer {
  std::string markdown;
  std::vector<Error> mistakes;  // rows that could not be forecast, each with its file and line
  std::size_t rows = 0;         // rows read
};

struct Suite {
  std::string_view name, summary;
  bool needs_data;
  std::string_view takes;  // how long, if that is minutes; otherwise empty
  Result<SuiteAnswer> (*answer)(const SuiteRequest&);
};

Result<SuiteAnswer> validate_runs(const SuiteRequest& request);
Result<SuiteAnswer> validate_plans(const SuiteRequest& request);
Result<SuiteAnswer> validate_kernels(const SuiteRequest& request);
Result<SuiteAnswer> validate_models(const SuiteRequest& request);
Result<SuiteAnswer> validate_collectives(const SuiteRequest& request);

}  // namespace ns_dist::cli
