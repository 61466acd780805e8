// What `explain` is asked about: an operator on a GPU, or a collective on a cluster.
#pragma once

#include <CLI/App.hpp>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.h"
#include "ns_dist/collective.h"
#include "ns_dist/forecast.h"
#include "ns_dist/operator_forms.h"
#include "ns_dist/result.h"

namespace ns_dist::cli {

// The headings of their flags in the help.
inline constexpr const char* kOperatorFlags = "Operators";
inline constexpr const char* kCollectiveFlags = "Collectives";

struct ExplainRequest {
  std::string subject, shape;
  std::optional<std::string> gpu;
  bool json = false;
  // Of operators.
  std::string dtype = "bf16", pass = "forward", mode = "sustained";
  std::optional<std::string> kernel_calibration;
  std::map<std::string_view, std::string> texts;  // of flags that some operators have; empty: not given
  std::map<std::string_view, bool> switches;      // the same, of flags without a value
  // Of collectives.
  std::string ranks, stride = "1", nodes;
  std::optional<std::string> cluster;
  FieldTexts network;
  double imbalance = 1;
};

struct Explained {
  Explanation explanation;
  std::string facts;  // a line above the steps: what people ask first
};

void add_operator_flags(CLI::App& app, ExplainRequest& request);
void add_collective_flags(CLI::App& app, ExplainRequest& request);

// Of a flag that some operators have: the families of these. Otherwise empty.
std::vector<std::string_view> families_with(std::string_view flag);

Result<Explained> explain_operator(const OperatorForm& form, const ExplainRequest& request);
Result<Explained> explain_collective(CollectiveKind kind, const ExplainRequest& request);

// "64 MiB", at most 1000000 TB.
Result<Bytes> read_bytes(std::string_view text, std::string_view flag, Bytes least);

// Nobody wrote how large the subject is. `example`: what to explain.
tl::unexpected<Error> without_shape(std::string_view expected, std::string_view example);

}  // namespace ns_dist::cli
