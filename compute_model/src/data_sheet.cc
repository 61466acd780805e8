#include "data_sheet.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace ns_dist {
namespace {

// Each field once, for reading, writing and copying: visit(key, member, unit).
template <class SomeGpu, class Visit>
void visit_fields(SomeGpu& gpu, const Visit& visit) {
  using namespace units;
  visit("vendor", gpu.vendor, 0);
  visit("architecture", gpu.architecture, 0);
  visit("compute_capability", gpu.compute_capability, 0);
  visit("process_nm", gpu.process_nm, 0);
  visit("sm_count", gpu.sm_count, 0);
  visit("boost_clock", gpu.boost_clock, Hz);
  for (const DType dtype : kAllDTypes) {
    visit("tensor_" + std::string(name_of(dtype)), gpu.tensor[dtype], FLOP / s);
    visit("vector_" + std::string(name_of(dtype)), gpu.vector[dtype], FLOP / s);
  }
  visit("memory_type", gpu.memory_type, 0);
  visit("memory_bandwidth", gpu.memory_bandwidth, B / s);
  visit("l2_cache", gpu.l2_cache, B);
  visit("shared_memory_per_sm", gpu.shared_memory_per_sm, B);
  visit("board_power", gpu.board_power, W);
}

}  // namespace

Gpu data_sheet_of(const Gpu& gpu) {
  Gpu sheet;
  sheet.id = gpu.id;
  sheet.vendor = gpu.vendor;
  sheet.architecture = gpu.architecture;
  sheet.compute_capability = gpu.compute_capability;
  sheet.process_nm = gpu.process_nm;
  sheet.sm_count = gpu.sm_count;
  sheet.boost_clock = gpu.boost_clock;
  sheet.tensor = gpu.tensor;
  sheet.vector = gpu.vector;
  sheet.memory_type = gpu.memory_type;
  sheet.memory_bandwidth = gpu.memory_bandwidth;
  sheet.l2_cache = gpu.l2_cache;
  sheet.shared_memory_per_sm = gpu.shared_memory_per_sm;
  sheet.board_power = gpu.board_power;
  return sheet;
}

std::string to_json(const Gpu& sheet) {
  nlohmann::ordered_json json;
  visit_fields(sheet, [&](const std::string& key, const auto& value, auto unit) {
    if constexpr (std::is_same_v<decltype(unit), int>) {
      json[key] = value;
    } else if (value / unit > 0) {  // formats and sizes that the GPU does not have are left out
      json[key] = value / unit;
    }
  });
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Result<Gpu> read_data_sheet(std::string_view text, std::string id, const std::string& where) {
  constexpr double kLargest = 1e30;  // of any quantity in base units
  const auto json = nlohmann::json::parse(text, nullptr, false);
  std::string problem = json.is_object() ? "" : "no JSON object";
  Gpu sheet;
  sheet.id = std::move(id);
  visit_fields(sheet, [&](const std::string& key, auto& value, auto unit) {
    using Value = std::remove_reference_t<decltype(value)>;
    if (!problem.empty()) return;
    const auto found = json.find(key);
    if constexpr (std::is_same_v<Value, std::string>) {
      if (found == json.end() || !found->is_string()) {
        problem = fmt::format("no text \"{}\"", key);
      } else {
        value = found->template get<std::string>();
      }
    } else if constexpr (std::is_same_v<Value, int>) {
      if (found == json.end() || !found->is_number_integer() || !(*found >= 0 && *found <= 1'000'000)) {
        problem = fmt::format("no whole number \"{}\" from 0 to 1000000", key);
      } else {
        value = found->template get<int>();
      }
    } else if (found != json.end()) {
      if (!found->is_number() || !(*found >= 0 && *found <= kLargest)) {
        problem = fmt::format("\"{}\" is no number from 0 to 1e30", key);
      } else {
        value = found->template get<double>() * unit;
      }
    }
  });
  if (problem.empty()) return sheet;
  return fail({ErrorCode::kInvalidInput,
               "the data sheet of " + sheet.id + " has " + problem,
               where,
               "the fields that ns-dist fit writes",
               "write the weights anew with this version's ns-dist fit",
               {}});
}

}  // namespace ns_dist
